"""feed: the runs that are watched, read once for all readers.

Files are looked at only while somebody reads, every half second, in a thread of their own. A reader
has a layer, and knows what it was sent: it is sent what has changed since.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from equipoise.report.run.messages import SentTables, make_message
from equipoise.results.follow.find_runs import find_runs
from equipoise.results.follow.run_follower import RunFollower, RunSnapshot

POLL_SECONDS = 0.5
MOST_READERS = 32
SILENT_POLLS = 30
"""after so many polls without news a reader is sent a sign of life"""


class TooManyReadersError(Exception):
    """More than the server reads for at the same time."""


class Feed:
    """What all readers share.

    Args:
        folders: of runs, sweeps or comparisons, as the user named them.
        poll_seconds: between two looks at the files.
    """

    def __init__(self, folders: Sequence[Path], *, poll_seconds: float = POLL_SECONDS) -> None:
        self.folders, self.poll_seconds = list(folders), poll_seconds
        self.readers: dict[int, int] = {}
        """reader -> the layer it looks at"""
        self._next = 0
        self._followers: dict[Path, RunFollower] = {}
        self._shown: list[RunFollower] = []
        self._left_out = 0
        self._reading = asyncio.Lock()

    async def events(self, layer: int) -> AsyncIterator[str | None]:
        """What a reader is sent, as JSON: first everything, then what has changed. None is a sign
        of life.
        """
        if len(self.readers) >= MOST_READERS:
            raise TooManyReadersError
        self._next += 1
        reader, sent, last, silent = self._next, SentTables(), "", 0
        self.readers[reader] = layer
        try:
            while True:
                text = await self._next_message(layer, sent)
                changed, silent = text != last, silent + 1
                if changed or silent >= SILENT_POLLS:
                    last, silent = text, 0
                    yield text if changed else None
                await asyncio.sleep(0.02 if self._behind() else self.poll_seconds)
        finally:
            del self.readers[reader]

    async def _next_message(self, layer: int, sent: SentTables) -> str:
        async with self._reading:
            return await asyncio.to_thread(self._read_message, layer, sent)

    def _read_message(self, layer: int, sent: SentTables) -> str:
        """In a thread; one at a time."""
        self.poll()
        runs = [self._snapshot(follower, layer) for follower in self._shown]
        message = make_message(runs, sent, left_out=self._left_out)
        return json.dumps(message, separators=(",", ":"), allow_nan=False)

    def poll(self) -> None:
        """Look for runs, and for what is new of each, at the layers that are looked at."""
        found = find_runs(self.folders)
        self._left_out = found.left_out
        # a run that was deleted stays on show with what was read of it
        for run in found.runs:
            if run.folder not in self._followers:
                self._followers[run.folder] = RunFollower(run.name, run.folder)
        self._shown = [self._followers[run.folder] for run in found.runs]
        layers = set(self.readers.values()) or {0}
        for follower in self._shown:
            follower.poll(layers)

    def _snapshot(self, follower: RunFollower, layer: int) -> RunSnapshot:
        return follower.snapshot((layer,))

    def _behind(self) -> bool:
        return any(follower.behind for follower in self._shown)
