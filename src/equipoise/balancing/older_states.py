"""older_states: which tensors the states of earlier releases may lack."""

from __future__ import annotations

from equipoise.balancing.shift.settling import belongs_to_settling

_ADDED_LATER = ("flipped", "flip_trust", "usual_tokens")
"""buffers of directions, which begin with the next update"""


def may_be_missing(name: str) -> bool:
    """Whether a state without this tensor of a balancer is whole: it was saved before there was
    one. A balancer that loads such a state begins with the tensor's first value.
    """
    return belongs_to_settling(name) or name.rpartition(".")[2] in _ADDED_LATER
