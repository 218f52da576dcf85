"""The command `equipoise`: each verb parses its options, calls the public function, and shows.

A file a verb. What a verb needs is imported when it runs, so that --help is quick.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

import equipoise
from equipoise.cli.advise import ADVISE
from equipoise.cli.agree import AGREE
from equipoise.cli.arena import ARENA
from equipoise.cli.compare import COMPARE
from equipoise.cli.completion import SHELLS, PrintCompletion
from equipoise.cli.config_file import VerbParser
from equipoise.cli.demo import DEMO
from equipoise.cli.doctor import DOCTOR
from equipoise.cli.export import EXPORT
from equipoise.cli.place import PLACE
from equipoise.cli.plan import PLAN
from equipoise.cli.record import RECORD
from equipoise.cli.report import REPORT
from equipoise.cli.simulate import SIMULATE
from equipoise.cli.solve import SOLVE
from equipoise.cli.sweep import SWEEP
from equipoise.cli.train import TRAIN
from equipoise.cli.tune import TUNE
from equipoise.cli.verify import VERIFY
from equipoise.cli.watch import WATCH
from equipoise.storage.optional import missing_module
from equipoise.storage.suggestions import did_you_mean

VERBS = (
    DEMO,
    ARENA,
    TUNE,
    ADVISE,
    RECORD,
    SOLVE,
    VERIFY,
    TRAIN,
    PLAN,
    PLACE,
    SIMULATE,
    COMPARE,
    SWEEP,
    REPORT,
    WATCH,
    EXPORT,
    DOCTOR,
    AGREE,
)
"""in the order of --help"""
_EPILOG = """\
`equipoise help VERB` describes a verb, with examples. Every verb takes --config
FILE, a YAML or TOML file of its options; lists may have spaces or commas.
Exit codes: 0 it worked; 1 the answer is bad news (a statement refuted, a trial
that failed, a serious finding); 2 a mistake, which is explained; 130 stopped.
To complete words in bash: source <(equipoise --completion bash)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns 0, 1 where the verb's answer is bad news (its --help says when), 2 for a mistake that
    was explained on stderr, 130 where it was stopped.
    """
    words = _spelled_out(sys.argv[1:] if arguments is None else arguments)
    options = build_parser().parse_args(words)
    try:
        options.run(options)
        # here and not at the interpreter's end, where nobody could catch what goes wrong
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return _leave_closed_pipe()
    except SystemExit as stop:
        # rich leaves with 1 where the pipe is closed, which is no bad news here
        if isinstance(stop.__context__, BrokenPipeError):
            return _leave_closed_pipe()
        raise
    except ModuleNotFoundError as error:
        print(f"equipoise: {missing_module(error, options.extra)}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        print(f"equipoise: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"equipoise: {_memory_words(error)}", file=sys.stderr)
        return 2
    except RecursionError:
        print("equipoise: a file is nested too deeply to be read", file=sys.stderr)
        return 2
    except RuntimeError as error:
        # torch has no type of its own for memory that is lacking on the CPU
        if "memory" not in str(error):
            raise
        print(f"equipoise: {_memory_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"equipoise: {str(stop) or 'stopped'}", file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    return 0


def _leave_closed_pipe() -> int:
    """The reader of our output is gone, as `head` is after ten lines: the code of SIGPIPE."""
    # what is still in the buffer must not be written at the interpreter's end
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _memory_words(error: Exception) -> str:
    """What to say where memory is lacking; numpy says how much was asked for, Python nothing."""
    details = f" ({str(error).splitlines()[0]})" if str(error) else ""
    return f"there is not enough memory{details}: try fewer tokens, experts or workers"


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """`equipoise` and `equipoise help [VERB]` as --help. A misspelt verb is refused here, with the
    ones that are spelled almost like it.
    """
    words, names = list(arguments), [verb.name for verb in VERBS]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words and not words[0].startswith("-") and words[0] not in names:
        print(
            f"equipoise: no verb {words[0]!r}{did_you_mean(words[0], names)}: there are "
            f"{', '.join(names)}",
            file=sys.stderr,
        )
        raise SystemExit(2)
    return words or ["--help"]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Keeps the experts of a sparse Mixture-of-Experts evenly loaded without an\n"
        "auxiliary loss.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"equipoise {equipoise.__version__}")
    parser.add_argument(
        "--completion",
        action=PrintCompletion,
        choices=SHELLS,
        help="print a script that completes words in this shell, and exit",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=VerbParser)
    for verb in VERBS:
        verb.add_to(verbs)
    return parser
