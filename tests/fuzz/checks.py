"""The small run that is fuzzed, limits, and checks of what a command prints that refuses."""

import contextlib
import dataclasses
import gc
import os
import re
import resource
import signal
import tempfile
import traceback
from pathlib import Path

import ase.build

from tests.small_runs import TINY, write_displaced


def water(folder: Path) -> Path:
    """Return the path of 20 distorted water molecules with energies and forces."""
    path = folder / "water.xyz"
    if not path.exists():
        write_displaced(path, ase.build.molecule("H2O"), 20, seed=0)
    return path


def one(rng, choices):
    """Return one of some choices, of any kind."""
    return choices[int(rng.integers(len(choices)))]


def small_run(folder: Path, *more: str) -> list[str]:
    """Return the settings of a network that compiles in seconds, trained on a file of water."""
    data = ["data=extxyz", f"data.path={water(folder)}"]
    return [*data, *TINY, "training.checkpoint_seconds=0", *more]


@contextlib.contextmanager
def time_limit(seconds: float):
    """Raise FailureError in what takes longer than this."""

    def late(*_):
        raise FailureError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def memory_limit(megabytes: int):
    """Let this process take so much more memory than it has now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    now = 1024 * int(re.search(r"VmSize:\s+(\d+) kB", status)[1])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * 2**20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class FailureError(Exception):
    """Something that a user must not see; the message says what."""


@dataclasses.dataclass(frozen=True)
class CommandOutput:
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The last line of the errors."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


def run_command(command, *arguments) -> CommandOutput:
    """Call a function that returns an exit code, and note what it prints.

    Raises:
      FailureError: it raised an exception, of which a user would see the traceback.
    """
    with _captured(1) as out, _captured(2) as err:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = command(*arguments)
            except FailureError:
                raise
            except (Exception, SystemExit) as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
                text = (str(error).splitlines() or [""])[0][:200]
                raise FailureError(f"{where}: {text}") from error
            gc.collect()  # what was left open complains when it goes
        texts = []
        for file in (out, err):
            file.flush()
            file.seek(0)
            texts.append(file.read())
    return CommandOutput(code, *texts)


@contextlib.contextmanager
def _captured(descriptor: int):
    """Context in which a file takes what is written there, by native code and loggers too."""
    before = os.dup(descriptor)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as file:
        os.dup2(file.fileno(), descriptor)
        try:
            yield file
        finally:
            os.dup2(before, descriptor)
            os.close(before)


def check_no_traceback(output: CommandOutput):
    """Refuse a traceback among what was printed."""
    for text in (output.out, output.err):
        _, *after = text.split("Traceback (most recent call last):\n")
        if after:
            lines = (line for line in after[0].splitlines() if not line.startswith(" "))
            said = next(lines, "")[:200]
            raise FailureError(f"{len(after)} tracebacks were printed: {said}")


def check_refusal(output: CommandOutput, *parts: str):
    """Require that a command failed with one clear line, which has at least one of the texts.

    Raises:
      FailureError: another exit code, more or fewer lines, or a line that has none of them.
    """
    check_no_traceback(output)
    if output.code not in (1, 2):
        raise FailureError(f"exit code {output.code}: {output.error[:200]}")
    errors = [line for line in output.err.splitlines() if line.startswith("error: ")]
    if len(errors) != 1 or errors[0] != output.error:
        raise FailureError(f"not one line of error but {output.err[-300:]!r}")
    if not any(part in output.error for part in parts):
        raise FailureError(f"names none of {', '.join(parts)[:100]}: {output.error[:300]}")
    if not output.error.isprintable():
        raise FailureError(f"cannot be printed: {output.error[:200]!r}")
