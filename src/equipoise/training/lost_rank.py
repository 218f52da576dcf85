"""A rank that has lost the others: how it is recognised, what is said, and how the process leaves.

The process must not destroy its model. torch's DDP Reducer (2.13) waits for gloo's thread to end
while it holds Python's lock; that thread, with collectives that failed still in its queue, waits
for the lock to drop what they refer to. One of three cut trainings never ended for it, and kept
torchrun and the machine waiting. So what holds the model is kept, and the process ends without
running destructors.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

import torch.distributed as dist

from equipoise.training.config import Config

EXIT_CODE = 2
"""as for every mistake that was explained (`equipoise help`)"""

_kept: list[BaseException] = []


def is_lost_rank(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank did not answer, or closed its connection.

    gloo raises plain RuntimeErrors that begin with the place in its own source; nccl's have a type.
    """
    return isinstance(error, dist.DistError) or "gloo/" in str(error)


def describe_lost_rank(error: RuntimeError, config: Config) -> str:
    """What happened, and what to do."""
    cause = str(error).splitlines()[0].split("] ")[-1].rstrip(".")
    return (
        f"rank {dist.get_rank()} lost the others ({cause}): a rank or its machine has ended, or "
        f"the network is cut (it waits {config.rank_timeout:g} s, --rank-timeout). Start all ranks "
        f"again with --resume: {config.out} continues from its newest checkpoint"
    )


def leave_without_destructors(error: BaseException) -> None:
    """Keep what the error's frames hold, the model too, and end the process with EXIT_CODE once
    Python has come to its end.
    """
    _kept.append(error)


# Python calls the handlers of its end from the newest to the oldest: this one, as old as the
# import, leaves nobody else's out.
@atexit.register
def _end_process() -> None:
    if not _kept:
        return
    for stream in (sys.stdout, sys.stderr):
        # a stream may be closed or None, and there is nobody left to tell
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(EXIT_CODE)
