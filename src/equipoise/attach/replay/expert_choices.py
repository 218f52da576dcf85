"""ExpertChoices: which experts every token took, layer by layer, small and on the host.

One number is a byte up to 256 experts and two bytes above; -1, a token that is routed live, needs
two. A token's experts stand in the order in which its router chose them: a sum over experts in
another order has other last bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.storage.atomic import replace_file
from equipoise.storage.npz import PARSER_ERRORS, refuse_zip_bomb

Rows = NDArray[Any]
"""(T, K) integers, or what was measured of each token"""

_MEASURES = ("margins", "levels", "gates")
_KINDS = ("experts", *_MEASURES)


class ExpertChoices:
    """The experts of every layer, (T, K), and by what margin they were chosen where that is known.

    Tokens are those of all forwards, one forward after another.

    Args:
        experts: (T, K) integers by the name of the layer.
    """

    def __init__(self, experts: Mapping[str, Rows] | None = None) -> None:
        self._parts: dict[str, dict[str, list[Rows]]] = {kind: {} for kind in _KINDS}
        for layer, rows in (experts or {}).items():
            self.add_rows(layer, rows)

    def add_rows(
        self,
        layer: str,
        rows: Rows,
        margins: Rows | None = None,
        *,
        levels: Rows | None = None,
        gates: Rows | None = None,
    ) -> None:
        """Append the (T, K) experts of one forward of a layer, and what was measured of them."""
        self._parts["experts"].setdefault(layer, []).append(narrow_integers(rows))
        for kind, values in zip(_MEASURES, (margins, levels, gates), strict=True):
            if values is not None:
                self._parts[kind].setdefault(layer, []).append(values.astype(np.float32))

    @property
    def experts(self) -> dict[str, Rows]:
        """(T, K) by layer."""
        return {layer: self._join("experts", layer) for layer in self.layers}

    @property
    def margins(self) -> dict[str, Rows]:
        """(T,) float32 by layer: how far the last expert chosen was above the first that was not.

        Empty where nobody asked for them.
        """
        return self._measured("margins")

    @property
    def levels(self) -> dict[str, Rows]:
        """(T,) float32 by layer: the larger magnitude of the two scores that a margin lies between.

        They say how coarse a precision is there. Kept with the margins.
        """
        return self._measured("levels")

    @property
    def gates(self) -> dict[str, Rows]:
        """(T, K) float32 by layer: the scores of the experts, divided by their sum; the softmax of
        their logits where logits are ranked. Kept with the margins.
        """
        return self._measured("gates")

    @property
    def layers(self) -> list[str]:
        """The names of the layers, in the order in which they were met."""
        return list(self._parts["experts"])

    def __getitem__(self, layer: str) -> Rows:
        return self._join("experts", layer)

    def save(self, path: str | Path) -> Path:
        """Write them into one .npz file, whole or not at all."""
        path = Path(path)
        named = {f"experts/{layer}": rows for layer, rows in self.experts.items()}
        for kind in _MEASURES:
            named |= {f"{kind}/{layer}": rows for layer, rows in self._measured(kind).items()}
        with replace_file(path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, allow_pickle=False, **named)
        return path

    @classmethod
    def load(cls, path: str | Path) -> ExpertChoices:
        """Read what `save` wrote. ValueError says what is wrong with the file."""
        path, found = Path(path), cls()
        try:
            refuse_zip_bomb(path)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                for key in archive.files:
                    kind, _, layer = key.partition("/")
                    found._parts[kind][layer] = [archive[key]]
            found._check_loaded()
        except PARSER_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"{path} is no recording of experts: {reason}") from error
        return found

    def _check_loaded(self) -> None:
        for layer, rows in self.experts.items():
            if rows.ndim != 2 or rows.dtype.kind not in "iu":
                raise ValueError(f"{layer} holds {rows.dtype} of shape {rows.shape}")
        for kind, each in itertools.product(_MEASURES, self.layers):
            values = self._measured(kind).get(each)
            shape = self[each].shape if kind == "gates" else self[each].shape[:1]
            if values is not None and (values.dtype.kind != "f" or values.shape != shape):
                raise ValueError(f"the {kind} of {each} are not one for each of its tokens")
        if not self.layers:
            raise ValueError("it holds no layer")

    def _measured(self, kind: str) -> dict[str, Rows]:
        return {layer: self._join(kind, layer) for layer in self._parts[kind]}

    def _join(self, kind: str, layer: str) -> Rows:
        parts = self._parts[kind][layer]
        if len(parts) > 1:
            self._parts[kind][layer] = parts = [np.concatenate(parts)]
        return parts[0]


def narrow_integers(rows: Rows) -> Rows:
    """The same integers in as few bytes as all of them need; int16 where one is -1."""
    low, high = (int(rows.min()), int(rows.max())) if rows.size else (0, 0)
    for kind in (np.uint8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return rows.astype(kind, copy=False)
    return rows
