"""Replace a method of one object, and put back what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PatchedMethod:
    """`owner.name` is `replacement` from now on, for this object and not for its class.

    Not a closure but an object, so that it can be copied with the model it belongs to.
    """

    def __init__(self, owner: object, name: str, replacement: Callable[..., Any]) -> None:
        self.owner = owner
        self.name = name
        self.replacement = replacement
        self.own: Callable[..., Any] = getattr(owner, name)
        """what was there before: the class's method, or another replacement"""
        self._was_patched = name in vars(owner)
        setattr(owner, name, replacement)

    def __getstate__(self) -> dict[str, object]:
        """A method of the class is not pickled: by its name it would be found again as the
        replacement.
        """
        own = self.own if self._was_patched else None
        return {**vars(self), "own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not self._was_patched:
            self.own = getattr(type(self.owner), self.name).__get__(self.owner)

    @property
    def in_place(self) -> bool:
        """Whether the replacement has not been replaced."""
        return vars(self.owner).get(self.name) is self.replacement

    def restore(self) -> None:
        """Put back what was there before."""
        if self._was_patched:
            setattr(self.owner, self.name, self.own)
        else:
            # the method of the class appears again
            delattr(self.owner, self.name)
