"""The console command `eqfuse`."""

import contextlib
import difflib
import importlib
import os
import sys
from pathlib import Path

from eqfuse import __version__

COMMANDS = {
    "train": "eqfuse.train.main",
    "predict": "eqfuse.inference.commands:run_predict",
    "evaluate": "eqfuse.inference.evaluate",
    "select": "eqfuse.inference.commands:run_select",
    "uncertainty": "eqfuse.inference.uncertainty",
    "distill": "eqfuse.distill.command",
    "md": "eqfuse.md.command",
    "relax": "eqfuse.md.command:relax_main",
    "check": "eqfuse.certify.check",
    "compare": "eqfuse.certify.compare",
    "export": "eqfuse.export.command",
    "convert": "eqfuse.convert.command",
    "info": "eqfuse.inference.commands:run_info",
}
"""The module of each, and its function if it is not `main`; imported when it is called."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command, by default that of the command line, and return its exit code.

    The code is 2 for an unknown one, 130 if it is interrupted, and 141 (128 and SIGPIPE) if what
    reads its output has ended, as `head` does.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # Python flushes them once more at the end
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 141
    except KeyboardInterrupt:  # while it imports; later see `eqfuse.runs.exit_code`
        print("interrupted", file=sys.stderr)
        return 130


def _run(arguments: list[str] | None) -> int:
    name, *others = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("--help", "-h"):
        print(Path(__file__).with_name("help.txt").read_text(encoding="utf-8"), end="")
        return 0
    if name == "--version":
        commit = Path(__file__).with_name("built_from.txt")  # of a wheel, by hatch_build.py
        of = f" (of commit {commit.read_text().strip()})" if commit.exists() else ""
        print(f"eqfuse {__version__}{of}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(COMMANDS)}"
        what = f"{name!a} is not a command of eqfuse" if name else "eqfuse needs a command"
        print(f"error: {what}; {hint}", file=sys.stderr)
        return 2
    # XLA's own messages (slow compilations, constant folding) are no advice to a user
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    module, _, function = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(module), function or "main")(others) or 0
