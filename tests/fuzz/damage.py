"""One file that a run leaves, or that is made of it, is damaged, and read by what reads it.

The run is resumed, or its network read. The other files are stored frames, the fit of an
uncertainty, exported folders, networks that were converted, also with a right digest
of wrong arrays, and frames of replay. The answer is the same, or one sentence names what is damaged
and the rest is left as it is. How many were tried, found and harmless is printed at the end.
"""

import collections
import csv
import functools
import hashlib
import os
import shutil
import sys
import warnings
from pathlib import Path

import ase.build
import ase.io
import jax
import numpy as np

import eqfuse
from eqfuse import cli
from eqfuse.data import DataError, read_structures
from eqfuse.data.store import samples_of, store_structures
from eqfuse.export import export_folder
from eqfuse.inference import uncertainty
from eqfuse.inference.network import UNCERTAINTY
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import encode, read_file
from eqfuse.train import load_run
from eqfuse.train.tuning import FILE as REPLAY
from tests.child import ROOT
from tests.export.test_folder import MISSING, compiled, started
from tests.fuzz.checks import (
    FailureError,
    check_no_traceback,
    check_refusal,
    run_command,
    small_run,
    water,
)
from tests.lammps.untrained import untrained_run

EPOCHS, LONGER = 2, 3
_SIZES = [(4, 40)]


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
    "a pipe for": os.mkfifo,
    "a broken link for": lambda path: path.symlink_to(path.with_name("nothing")),
}


def _rewritten(change):
    """Return a damage of the arrays of a network, whose digest is right again."""

    def damage(rng, path: Path):
        arrays, metadata = read_file(path)
        name = sorted(arrays)[rng.integers(len(arrays))]
        if (array := change(arrays.pop(name))) is not None:
            arrays[name] = array
        path.write_bytes(encode(arrays, metadata))

    return damage


_REWRITTEN = {
    "an array is NaN in": _rewritten(lambda array: np.full_like(array, np.nan)),
    "an array is missing in": _rewritten(lambda array: None),
    "an array is longer in": _rewritten(lambda array: np.concatenate([np.atleast_1d(array)] * 2)),
}


class Cases:
    """The damages; see `__main__`. What is damaged is made in a folder, where it is not yet."""

    seconds = 180

    def __init__(self, folder: Path):
        self._path, self.counts = folder / "damaged", collections.Counter()
        self._source, self._data, self._host = folder / "whole", water(folder), _host(folder)
        self._frame = ase.Atoms(ase.build.molecule("H2O"), cell=[9, 9, 9], pbc=True)
        if not (self._source / "made").exists():
            shutil.rmtree(self._source, ignore_errors=True)
            self._make(folder)
            (self._source / "made").touch()
        exported = ["manifest.txt", "eqfuse_kernels.so", "program*", "weights.bin"]
        doors = {  # what reads it, the folder, and its files
            "resume": (self._resume, "run", ["config.yaml", "metrics.csv", "checkpoints/*"]),
            "best": (functools.partial(_network, which="best"), "run", ["checkpoints/best*"]),
            "last": (functools.partial(_network, which="last"), "run", ["checkpoints/last*"]),
            "store": (self._read_store, "store", ["*/*", "*/*/*"]),
            "spread": (self._spread, "spread", [UNCERTAINTY]),
            "network": (self._predict, "network", ["checkpoints/*"]),
            "exported": (self._run_host, "exported", exported),
            "replay": (self._resume_replay, "replay", [REPLAY]),
        }
        if self._host is None:
            del doors["exported"]
        self._doors = {
            name: (door, of, [f for p in patterns for f in self._files(of, p)])
            for name, (door, of, patterns) in doors.items()
        }
        self._answers = {name: self._answer(name) for name in self._doors if name != "replay"}

    def _files(self, name: str, pattern: str) -> list[Path]:
        paths = sorted((self._source / name).glob(pattern))
        return [path for path in paths if path.is_file() and path.stat().st_size]

    def _make(self, folder: Path):
        """Write what is damaged."""
        self._source.mkdir()
        # with a rate that does not depend on where the end is
        given = small_run(folder, f"epochs={EPOCHS}", "training.schedule=constant")
        _succeed(["train", *given, f"run={self._source / 'run'}"])
        run = untrained_run(self._source, numbers=(1, 8))
        (self._source / "store").mkdir()
        self._read_store(self._source / "store")
        shutil.copytree(run, self._source / "spread")
        shutil.copytree(run, self._source / "network")
        uncertainty.fit(self._source / "spread", self._data, self._data)
        if self._host is not None:
            export_folder(run, self._source / "exported", sizes=_SIZES)
        settings = ["data.val=4", "steps=2", f"replay={self._data}", "replay_frames=2"]
        given = [f"start_from={run}", f"data={self._data}", *settings]
        _succeed(["train", *given, f"run={self._source / 'replay'}"])

    def prepare(self, seed: int):
        """Choose what is damaged, and how; the run with replay in one of 20 cases."""
        rng = np.random.default_rng(seed)
        names = [name for name in self._doors if name != "replay"]
        name = "replay" if seed % 20 == 19 else names[rng.integers(len(names))]
        door, of, files = self._doors[name]
        file = files[rng.integers(len(files))].relative_to(self._source / of)
        ways = [*CHANGES, *REPLACED, *(_REWRITTEN if name == "network" else [])]
        how = "one bit flipped in" if rng.random() < 0.4 else ways[rng.integers(len(ways))]

        def case():
            shutil.rmtree(self._path, ignore_errors=True)
            shutil.copytree(self._source / of, self._path)
            target = self._path / file
            content = target.read_bytes()
            if how in CHANGES:
                target.write_bytes(CHANGES[how](rng, content))
            elif how in REPLACED:
                target.unlink()
                REPLACED[how](target)
            else:
                _REWRITTEN[how](rng, target)
            return self._judge(name, door, target, how, content)

        return f"{how} {file} of {name}", case

    def _judge(self, name: str, door, target: Path, how: str, content: bytes) -> str:
        same = target.is_file() and target.read_bytes() == content
        forgotten = target.name == "metrics.csv" and _forgets(target, content)
        answers, before = [], _contents(self._path, target)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            output = run_command(functools.partial(_as_command, answers, door, self._path))
        self.counts["tried"] += 1
        if output.code != 0:
            check_refusal(output, target.name, "checkpoint", str(target.parent))
            after = _contents(self._path, target)
            if changed := [file for file in before if after.get(file) != before[file]]:
                raise FailureError(f"refused, but changed {changed}: {output.error[:200]}")
            self.counts["found"] += 1
            return f"refused: {output.error}"
        check_no_traceback(output)
        self.counts["harmless"] += 1
        text = output.out + output.err + " ".join(str(warning.message) for warning in caught)
        if "from the beginning" in text:
            raise FailureError(f"all that was saved is given up: {output.err[:200]}")
        if name == "spread" and how in ("deleted", "a broken link for") and answers == [None]:
            return "there is no fit"
        if name == "replay":  # the run goes on, and is refused for other frames
            if _frames(target) != _frames(self._source / "replay" / REPLAY):
                raise FailureError("a run went on with other frames of replay")
        elif name in ("best", "last") and answers != [self._answers[name]]:
            if os.path.lexists(target) and not ("damaged" in text or "missing" in text):
                raise FailureError("another checkpoint was taken without a warning")
            return "an older one, with a warning"
        elif name == "resume" and answers[0][0] == self._answers[name][0]:
            if answers != [self._answers[name]] and not forgotten and "metrics.csv" not in text:
                raise FailureError(f"metrics.csv lost epochs without a warning: {answers[0][1]}")
            return f"went on: {output.err.strip()}"
        elif answers != [self._answers[name]]:
            raise FailureError("another answer, without a word")
        elif target.suffix == ".so" and not same:  # a process loads it once
            raise FailureError("a changed library was loaded")
        return "the same"

    def _answer(self, name: str):
        door, of, _ = self._doors[name]
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(self._source / of, self._path)
        return door(self._path)

    def _resume(self, path: Path) -> tuple:
        """Return what the run has at its end, and the epochs of its table."""
        _succeed(["train", f"resume={path}", f"epochs={LONGER}"])
        return _digests(path), _epochs(path)

    def _resume_replay(self, path: Path) -> dict:
        _succeed(["train", f"resume={path}", "steps=3"])
        return _digests(path)

    def _read_store(self, path: Path) -> str:
        samples = samples_of(store_structures([self._data], folder=path), 4.0, (1, 8), {1: 0, 8: 0})
        return _digest(array for s in samples for array in (s.positions, s.senders, s.forces))

    def _spread(self, path: Path):
        [found] = eqfuse.predict(path, self._frame)
        return found.spread and _digest([found.forces, found.spread.forces])

    def _predict(self, path: Path) -> str:
        [found] = eqfuse.predict(path, self._frame)
        return _digest([found.forces, found.energy])

    def _run_host(self, path: Path) -> str:
        done = started(self._host, path, self._frame)
        if done.returncode < 0:
            raise FailureError(f"signal {-done.returncode}: {done.stderr[-300:]}")
        if done.returncode:
            raise ValueError(done.stderr.strip())
        return done.stdout


def _succeed(arguments: list[str]):
    if code := cli.main(arguments):
        raise SystemExit(code)


def _digests(run: Path) -> dict:
    """SHA-256 of the last parameters and state of a run."""
    return read_checkpoint(run, ("last",))[1]["arrays_sha256"]


def _network(run: Path, which: str) -> str:
    """Return the parameters of a network as SHA-256."""
    return _digest(jax.tree.leaves(load_run(run, which=which)[1]))


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


def _as_command(answers: list, door, path: Path) -> int:
    """Ask as a command does, whose errors are for the user."""
    try:
        answers.append(door(path))
    except SystemExit as error:  # it has printed its error
        return error.code
    except (DataError, CheckpointError, ValueError) as error:
        if type(error) not in (DataError, CheckpointError, ValueError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        jax.clear_caches()
    return 0


def _digest(arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _frames(path: Path) -> str:
    """Return the frames of a file as SHA-256; some of its bytes are padding."""
    frames = read_structures(path)
    return _digest(a for s in frames for a in (s.numbers, s.positions, s.energy, s.forces))


def _host(folder: Path) -> Path | None:
    """Return the compiled example in C++, where it can run what is exported."""
    if shutil.which("g++") is None or MISSING:
        return None
    program = folder / "host"
    return program if program.exists() else compiled(ROOT / "examples" / "host.cpp", program)
