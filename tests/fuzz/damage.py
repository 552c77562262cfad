"""One file of a finished run is damaged, and the run is resumed or its network read.

It goes on or is read as if nothing had been damaged, or says in one line what is damaged and leaves
the rest as it is.
"""

import csv
import hashlib
import os
import shutil
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError
from eqfuse.train import load_run
from eqfuse.train.main import main
from tests.fuzz.checks import (
    FailureError,
    check_no_traceback,
    check_refusal,
    run_command,
    small_run,
)

EPOCHS, LONGER = 2, 3


def _flip(rng, content: bytes) -> bytes:
    data = bytearray(content)
    for place in rng.integers(len(data), size=rng.integers(1, 20)):
        data[place] = rng.integers(256)
    return bytes(data)


def _flip_bit(rng, content: bytes) -> bytes:
    data, place = bytearray(content), int(rng.integers(8 * len(content)))
    data[place // 8] ^= 1 << place % 8
    return bytes(data)


def _double(rng, content: bytes) -> bytes:
    start, end = sorted(rng.integers(len(content), size=2))
    return content[:end] + content[start:]


def _zero_range(rng, content: bytes) -> bytes:
    start = int(rng.integers(len(content) + 1))
    end = min(len(content), start + int(rng.integers(1, 200)))
    return content[:start] + bytes(end - start) + content[end:]


def _delete_line(rng, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(np.delete(np.array(lines, object), rng.integers(len(lines))))


CHANGES = {
    "cut off": lambda rng, content: content[: rng.integers(len(content))],
    "bytes changed in": _flip,
    "one bit flipped in": _flip_bit,
    "a part doubled of": _double,
    "a range of zeros in": _zero_range,
    "random bytes for": lambda rng, content: rng.bytes(int(rng.integers(2 * len(content) + 2))),
    "bytes appended to": lambda rng, content: content + rng.bytes(int(rng.integers(1, 100))),
    "NULs for": lambda rng, content: bytes(len(content)),
    "a line deleted of": _delete_line,
}
REPLACED = {
    "deleted": lambda path: None,
    "a folder for": Path.mkdir,
    "a broken link for": lambda path: path.symlink_to(path.with_name("nothing")),
}


class Cases:
    """The damages; see `__main__`.

    Args:
      folder: to work in; the run that is damaged is made there if it is not there yet.
    """

    seconds = 180

    def __init__(self, folder: Path):
        self._whole, self._longer = folder / "damage-whole", folder / "damage-longer"
        self._path = folder / "damaged"
        if not (self._longer / "made").exists():
            for path in (self._whole, self._longer):
                shutil.rmtree(path, ignore_errors=True)
            given = small_run(folder, f"epochs={EPOCHS}")
            # with a rate that does not depend on where the end is
            _succeed([*given, "training.schedule=constant", f"run={self._whole}"])
            shutil.copytree(self._whole, self._longer)
            _succeed([f"resume={self._longer}", f"epochs={LONGER}"])
            (self._longer / "made").touch()
        self._last = _digests(self._longer)
        self._answers = {which: _network(self._whole, which) for which in ("best", "last")}

    def prepare(self, seed: int):
        """Choose what is damaged, how, and what is done with the run then."""
        rng = np.random.default_rng(seed)
        files = sorted(self._whole.glob("checkpoints/*"))
        top = [self._whole / name for name in ("config.yaml", "metrics.csv")]
        file = top[int(rng.integers(2))] if rng.random() < 0.3 else files[rng.integers(len(files))]
        ways = [*CHANGES, *REPLACED]
        how, name = ways[rng.integers(len(ways))], file.relative_to(self._whole)
        which = "best" if file.name.startswith("best") else "last"
        resumes = file in top or rng.random() < 0.5

        def case():
            shutil.rmtree(self._path, ignore_errors=True)
            shutil.copytree(self._whole, self._path)
            target = self._path / name
            content = target.read_bytes()
            if how in CHANGES:
                target.write_bytes(CHANGES[how](rng, content))
            else:
                target.unlink()
                REPLACED[how](target)
            try:
                return self._resume(target, content) if resumes else self._read(which, target)
            finally:
                jax.clear_caches()

        return f"{how} {name}, {'resume' if resumes else which}", case

    def _resume(self, damaged: Path, content: bytes) -> str:
        forgotten = damaged.name == "metrics.csv" and _forgets(damaged, content)
        before = _contents(self._path, damaged)
        output = run_command(main, [f"resume={self._path}", f"epochs={LONGER}"])
        if output.code != 0:
            check_refusal(output, _part(damaged))
            after = _contents(self._path, damaged)
            if changed := [name for name in before if after.get(name) != before[name]]:
                raise FailureError(f"refused, but changed {changed}: {output.error[:200]}")
            return f"refused: {output.error}"
        check_no_traceback(output)
        if "from the beginning" in output.out:
            raise FailureError(f"all that was saved is given up: {output.err[:200]}")
        if _digests(self._path) != self._last:
            raise FailureError("it went on, and ended with other parameters or another state")
        found, text = _epochs(self._path), output.out + output.err
        if not forgotten and found != _epochs(self._longer) and "metrics.csv" not in text:
            raise FailureError(f"metrics.csv lost epochs without a warning: {found} are left")
        return f"went on: {output.err.strip()}"

    def _read(self, which: str, damaged: Path) -> str:
        answers = []

        def command() -> int:
            """Read the network as a command would, whose errors are for the user."""
            try:
                answers.append(_network(self._path, which))
            except CheckpointError as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            return 0

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            output = run_command(command)
        if output.code != 0:
            check_refusal(output, _part(damaged))
            return f"refused: {output.error}"
        check_no_traceback(output)
        warned = output.err + " ".join(str(warning.message) for warning in caught)
        if answers == [self._answers[which]]:
            return "the same"
        if os.path.lexists(damaged) and not ("damaged" in warned or "missing" in warned):
            raise FailureError("another checkpoint was taken without a warning")
        return "an older one, with a warning"


def _part(damaged: Path) -> str:
    """Return the name that an error must have."""
    return damaged.name if damaged.name in ("config.yaml", "metrics.csv") else "checkpoint"


def _succeed(arguments: list[str]):
    output = run_command(main, arguments)
    if output.code != 0:
        raise RuntimeError(f"the run that is to be damaged failed: {output.err}")


def _digests(run: Path) -> dict:
    """SHA-256 of the last parameters and state of a run."""
    return read_checkpoint(run, ("last",))[1]["arrays_sha256"]


def _network(run: Path, which: str) -> str:
    """Return the parameters of a network as SHA-256."""
    digest = hashlib.sha256()
    for array in jax.tree.leaves(load_run(run, which=which)[1]):
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


def _forgets(metrics: Path, before: bytes) -> bool:
    """Check that the damage took whole lines and left the others: it cannot be seen."""
    if not metrics.exists():
        return True
    if not metrics.is_file():
        return False
    lines, left = (text.splitlines(keepends=True) for text in (before, metrics.read_bytes()))
    return not left or (left[0] == lines[0] and all(line in lines for line in left))


def _contents(run: Path, damaged: Path) -> dict[str, bytes]:
    """Return the content of all files that were not damaged."""
    paths = [path for path in run.rglob("*") if path.is_file() and path != damaged]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


def _epochs(run: Path) -> list[str]:
    """Return the epochs in metrics.csv."""
    try:
        with open(run / "metrics.csv", newline="", encoding="utf-8", errors="replace") as file:
            return [row.get("epoch", "") for row in csv.DictReader(file)]
    except (OSError, csv.Error):
        return []
