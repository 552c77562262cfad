"""One file of a finished run is damaged, and the run is resumed or used.

It goes on or predicts as if nothing had been damaged, or says in one line what is damaged and
leaves the rest as it is.
"""

import csv
import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import ase.build
import jax
import numpy as np

from eqfuse.inference.calculator import Calculator
from eqfuse.train import CheckpointError, load_run
from eqfuse.train.main import main
from eqfuse.train.run.checkpoint import read_checkpoint
from tests.fuzz.checks import (
    FailureError,
    check_no_traceback,
    check_refusal,
    run_command,
    small_run,
)

EPOCHS, LONGER = 2, 3


def _zero_range(rng, content: bytes) -> bytes:
    start = int(rng.integers(len(content) + 1))
    end = min(len(content), start + int(rng.integers(1, 200)))
    return content[:start] + bytes(end - start) + content[end:]


def _flip(rng, content: bytes) -> bytes:
    data = bytearray(content)
    for place in rng.integers(len(data), size=rng.integers(1, 6)) if data else ():
        data[place] ^= 1 << rng.integers(8)
    return bytes(data)


def _delete_line(rng, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    if lines:
        del lines[int(rng.integers(len(lines)))]
    return b"".join(lines)


def _change_number(rng, content: bytes) -> bytes:
    digits = [k for k, byte in enumerate(content) if 48 <= byte <= 57]
    data = bytearray(content)
    if digits:
        data[digits[int(rng.integers(len(digits)))]] = int(rng.integers(48, 58))
    return bytes(data)


_CHANGES: dict[str, Callable] = {
    "cut off": lambda rng, content: content[: int(rng.integers(len(content) + 1))],
    "a range of zeros in": _zero_range,
    "bits flipped in": _flip,
    "random bytes for": lambda rng, content: rng.bytes(int(rng.integers(1, 2 * len(content) + 2))),
    "bytes appended to": lambda rng, content: content + rng.bytes(int(rng.integers(1, 100))),
    "emptied": lambda rng, content: b"",
    "NULs for": lambda rng, content: bytes(len(content)),
    "a line deleted of": _delete_line,
    "a digit changed in": _change_number,
}
_REPLACED: dict[str, Callable] = {
    "deleted": lambda path: None,
    "a folder for": Path.mkdir,
    "a broken link for": lambda path: path.symlink_to(path.with_name("nothing")),
}
# Of what is damaged, by those that read it.
_USES = {
    "config.yaml": ("resume",),
    "metrics.csv": ("resume",),
    "last.safetensors": ("resume", "last"),
    "previous.safetensors": ("resume", "last"),
    "best.safetensors": ("load_run", "best", "Calculator", "resume"),
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
            # With a rate that does not depend on where the end is.
            given.append("training.schedule=constant")
            _succeed([*given, f"run={self._whole}"])
            shutil.copytree(self._whole, self._longer)
            _succeed([f"resume={self._longer}", f"epochs={LONGER}"])
            (self._longer / "made").touch()
        self._last = _digests(self._longer)
        self._answers = {
            use: _answer(use, self._whole) for use in ("load_run", "best", "last", "Calculator")
        }

    def prepare(self, seed: int):
        """Choose what is damaged, how, and what is done with the run then."""
        rng = np.random.default_rng(seed)
        files = sorted(self._whole.glob("checkpoints/*"))
        top = [self._whole / name for name in ("config.yaml", "metrics.csv")]
        file = top[int(rng.integers(2))] if rng.random() < 0.3 else files[rng.integers(len(files))]
        ways = [*_CHANGES, *_REPLACED]
        how = ways[rng.integers(len(ways))]
        name = file.relative_to(self._whole)
        uses = _USES[name.parts[min(1, len(name.parts) - 1)]]
        use = uses[rng.integers(len(uses))]

        def case():
            shutil.rmtree(self._path, ignore_errors=True)
            shutil.copytree(self._whole, self._path)
            target = self._path / name
            content = target.read_bytes()
            if how in _CHANGES:
                target.write_bytes(_CHANGES[how](rng, content))
            else:
                target.unlink()
                _REPLACED[how](target)
            try:
                return self._resume(target, content) if use == "resume" else self._use(use, target)
            finally:
                jax.clear_caches()

        return f"{how} {name}, {use}", case

    def _resume(self, damaged: Path, content: bytes):
        forgotten = damaged.name == "metrics.csv" and _forgets(damaged, content)
        before = _contents(self._path, damaged)
        output = run_command(main, [f"resume={self._path}", f"epochs={LONGER}"])
        if output.code != 0:
            check_refusal(output, _part(damaged))
            if changed := _changed(before, _contents(self._path, damaged)):
                raise FailureError(f"refused, but changed {changed}: {output.error[:200]}")
            return f"refused: {output.error}"
        check_no_traceback(output)
        if "from the beginning" in output.out:
            raise FailureError(f"all that was saved is given up: {output.err[:200]}")
        if _digests(self._path) != self._last:
            raise FailureError("it went on, and ended with other parameters or another state")
        text = output.out + output.err
        complete = forgotten or _epochs(self._path) == _epochs(self._longer)
        if not complete and "metrics.csv" not in text:
            raise FailureError(
                f"metrics.csv lost epochs without a warning: {_epochs(self._path)} are left"
            )
        return f"went on: {output.err.strip()}"

    def _use(self, use: str, damaged: Path):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answers = []
            output = run_command(_command, lambda: answers.append(_answer(use, self._path)))
        if output.code != 0:
            check_refusal(output, _part(damaged))
            return f"refused: {output.error}"
        check_no_traceback(output)
        warned = output.err + " ".join(str(warning.message) for warning in caught)
        # A run without a best network gives the last one.
        other = answers[0] != self._answers[use] and os.path.lexists(damaged)
        if other and not ("damaged" in warned or "missing" in warned):
            raise FailureError("another checkpoint was taken without a warning")
        return "the same" if answers[0] == self._answers[use] else "an older one, with a warning"


def _part(damaged: Path) -> str:
    """Return what an error must name."""
    return damaged.name if damaged.name in ("config.yaml", "metrics.csv") else "checkpoint"


def _command(use: Callable) -> int:
    """Call a function of Python as a command would, whose errors are for the user."""
    try:
        use()
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _succeed(arguments: list[str]):
    output = run_command(main, arguments)
    if output.code != 0:
        raise RuntimeError(f"the run that is to be damaged failed: {output.err}")


def _digests(run: Path) -> dict:
    """SHA-256 of the last parameters and state of a run."""
    return read_checkpoint(run, ("last",))[1]["arrays_sha256"]


def _answer(use: str, run: Path) -> str:
    """Return what a run gives to a user of Python, as SHA-256."""
    if use == "Calculator":
        atoms = ase.build.molecule("H2O")
        atoms.calc = Calculator(run)
        arrays = [np.float64(atoms.get_potential_energy()), atoms.get_forces()]
    else:
        which = None if use == "load_run" else use
        arrays = jax.tree.leaves(load_run(run, which=which)[1])
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


def _forgets(metrics: Path, before: bytes) -> bool:
    """Whether the damage took whole lines and left the others: it cannot be seen."""
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


def _changed(before: dict, after: dict) -> str:
    """Return the names of files that are gone or changed."""
    return ", ".join(name for name, content in before.items() if after.get(name) != content)


def _epochs(run: Path) -> list[str]:
    """Return the epochs in metrics.csv."""
    try:
        with open(run / "metrics.csv", newline="", encoding="utf-8", errors="replace") as file:
            return [row.get("epoch", "") for row in csv.DictReader(file)]
    except (OSError, csv.Error):
        return []
