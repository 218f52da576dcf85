"""What follows from selection probabilities alone: the gradient of the expected dual, its variance
and its second moment.

Tokens must be independent of each other. Experts need not be (errata 19): a token's K choices may
depend on each other in any way, and the diagonal of their covariance is all that enters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.optimum.arrays import Floats


class LoadMoments:
    """Moments of the gap g = A - L of T independent tokens, from T, K and pi (E)."""

    if TYPE_CHECKING:
        # not at run time: dataclasses would take the properties for their fields' defaults
        @property
        def num_tokens(self) -> int: ...

        @property
        def top_k(self) -> int: ...

        @property
        def selection_probability(self) -> Floats: ...

    @property
    def gradient(self) -> Floats:
        """T pi - L, the mean of A - L (eq. 29, Prop. 12)."""
        pi = self.selection_probability
        return self.num_tokens * (pi - self.top_k / pi.size)

    @property
    def variance(self) -> float:
        """E ||g - E g||^2 = T (K - sum pi^2) (Prop. 13)."""
        return float(self.num_tokens * (self.top_k - (self.selection_probability**2).sum()))

    @property
    def second_moment(self) -> float:
        """E ||g||^2 (Prop. 13)."""
        return float((self.gradient**2).sum() + self.variance)
