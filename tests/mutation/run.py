"""Mutants of the five rooms, each judged by the tests that call it: how many do the tests kill?

Each mutant is put into a copy of the package in a temporary folder; the work tree is only read.
First every test of the rooms, of tests/contracts and of tests/agreement runs without a mutant, to
see which functions it calls, how long it takes, and that it passes. Then each mutant is judged by
the tests that call its function, the cheapest first, up to a budget of seconds, until one fails. A
test that takes ten times as long as before (at least 40 s) fails too.

    python -m tests.mutation.run                            # 320 mutants, from where it stopped
    python -m tests.mutation.run --room routing --count 64  # one room
    python -m tests.mutation.run --again                    # survivors once more, after new tests
    python -m tests.mutation.run --json                     # the summary only, for programs
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "equipoise"


def main(arguments: list[str] | None = None) -> int:
    """Judge what is not judged yet, and print the table."""
    options = _options().parse_args(arguments)
    # before torch is imported: two threads help no small test
    os.environ["OMP_NUM_THREADS"] = "1"
    from tests.mutation.campaign import Campaign
    from tests.mutation.sampling import ROOMS

    os.chdir(ROOT)
    rooms = tuple(options.room or ROOMS)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        campaign = Campaign(PACKAGE, Path(folder), options.out, options)
        chosen = campaign.choose(rooms)
        if not options.json:
            campaign.judge_all(chosen, rooms)
        rows = campaign.summary(chosen, rooms)
    print(json.dumps(rows) if options.json else table(rows))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """The summary by room as text."""
    lines = ["room        mutants  judged  killed  survived   rate"]
    for row in rows:
        rate = f"{100 * row['killed'] / row['judged']:5.1f}%" if row["judged"] else "     -"
        lines.append(
            f"{row['room']:<10}{row['mutants']:>9}{row['judged']:>8}{row['killed']:>8}"
            f"{row['survived']:>10}  {rate}"
        )
    return "\n".join(lines)


def _options() -> argparse.ArgumentParser:
    summary, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation.run",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=17, help="of the sample (17)")
    parser.add_argument("--count", type=int, default=320, help="mutants in all rooms (320)")
    parser.add_argument("--room", action="append", help="only this room; may be repeated")
    parser.add_argument("--workers", type=int, default=1, help="mutants judged at once (1)")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests each (20)")
    parser.add_argument("--longest", type=float, default=10.0, help="seconds of a judge (10)")
    parser.add_argument("--again", action="store_true", help="judge survivors once more")
    parser.add_argument("--only", default="", help="mutants whose name contains this text")
    parser.add_argument("--json", action="store_true", help="print the summary so far as JSON")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / "mutation", help="folder of what is known"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
