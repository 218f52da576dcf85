"""GivenRows: what one router takes in a replay, and how many of its tokens took other experts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equipoise.attach.replay.expert_choices import Rows


@dataclass
class GivenRows:
    """What one router takes in a replay, forward after forward."""

    rows: Rows
    """(T, K) of all forwards"""
    taken: int = 0
    """how many of them were routed"""
    counted: int | Tensor = 0
    live: int | Tensor = 0
    """tokens, without padding: all, and those routed live. Tensors stay on their device"""
    refused: int | Tensor = 0
    """choices of tokens that were not routed live, without padding: those below the floor"""

    def take_next(self, name: str, tokens: int) -> Rows:
        """(tokens, K) of the next forward."""
        left = len(self.rows) - self.taken
        if tokens > left:
            raise ValueError(
                f"{name} routes {tokens} tokens, and experts of {left} more are given "
                f"({len(self.rows)} in all): give those of every token, padding included"
            )
        self.taken += tokens
        return self.rows[self.taken - tokens : self.taken]

    def count_tokens(
        self, tokens: int, live: Tensor | None, refused: Tensor | None, padding: Tensor | None
    ) -> None:
        """Add one forward: which of its tokens were routed live, (T,) bool, and which choices were
        below the floor, (T, K) bool; None where there are none.
        """
        self.counted = self.counted + (tokens if padding is None else (~padding).sum())
        if live is not None:
            self.live = self.live + _count_where(live, padding)
        if refused is not None:
            # a router's own experts may be low, and are not refused
            refused = refused if live is None else refused & ~live.unsqueeze(1)
            self.refused = self.refused + _count_where(refused, padding)

    @property
    def live_share(self) -> Share:
        """Of tokens, those routed live."""
        return Share(float(self.live), float(self.counted))

    @property
    def refused_share(self) -> Share:
        """Of given choices, those below the floor."""
        choices = (float(self.counted) - float(self.live)) * self.rows.shape[1]
        return Share(float(self.refused), choices)


def _count_where(marked: Tensor, padding: Tensor | None) -> Tensor:
    """How many of (T, ...) are marked, padding left out."""
    if padding is None:
        return marked.sum()
    return (marked.view(len(marked), -1) & ~padding.unsqueeze(1)).sum()


@dataclass(frozen=True)
class Share:
    """A part of a whole; nothing of nothing is 0."""

    part: float
    whole: float

    def __add__(self, other: Share) -> Share:
        return Share(self.part + other.part, self.whole + other.whole)

    def __float__(self) -> float:
        return self.part / self.whole if self.whole else 0.0
