"""One file of what a run leaves besides its checkpoints is damaged, and read by what reads it.

These are stored frames, the fit of an uncertainty, exported folders and programs, networks that
were converted, also with a right digest of wrong arrays, and frames of replay. The answer is the
same, or one sentence names the file. How many were tried, found and harmless is printed at the end.
"""

import collections
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ase.build
import ase.io
import jax
import numpy as np

import eqfuse
from eqfuse import cli
from eqfuse.data import DataError
from eqfuse.data.store import samples_of, store_structures
from eqfuse.export import engine, export, export_folder
from eqfuse.inference import uncertainty
from eqfuse.inference.network import UNCERTAINTY
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import encode, read_file
from eqfuse.train.tuning import FILE as REPLAY
from tests.fuzz.checks import FailureError, check_refusal, run_command, water
from tests.fuzz.damage import CHANGES, REPLACED
from tests.lammps.untrained import untrained_run

_SIZES = [(4, 40)]
_GONE = ("deleted", "a broken link for")


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
        self._path, self.counts = folder / "damaged-door", collections.Counter()
        self._source = folder / "doors"
        self._frame = ase.build.molecule("H2O")
        self._data = water(folder)
        self._host = _host(folder)
        if not (self._source / "made").exists():
            shutil.rmtree(self._source, ignore_errors=True)
            self._make()
            (self._source / "made").touch()
        doors = {
            "store": (self._read_store, ["*/*", "*/*/*"]),
            "spread": (self._spread, [UNCERTAINTY]),
            "openmm": (self._engine, ["manifest.txt", "*.so", "program*"]),
            "program": (self._program, ["program.safetensors"]),
            "network": (self._predict, ["checkpoints/*"]),
            "pjrt": (self._run_host, ["manifest.txt", "*.so", "program*"]),
            "replay": (self._resume, [REPLAY]),
        }
        if self._host is None:
            del doors["pjrt"]
        self._doors = {
            name: (door, [f for pattern in patterns for f in self._files(name, pattern)])
            for name, (door, patterns) in doors.items()
        }
        self._answers = {name: self._answer(name) for name in self._doors if name != "replay"}

    def _files(self, name: str, pattern: str) -> list[Path]:
        return sorted(path for path in (self._source / name).glob(pattern) if path.is_file())

    def _make(self):
        """Write what is damaged."""
        self._source.mkdir()
        run = untrained_run(self._source, numbers=(1, 8))
        (self._source / "store").mkdir()
        self._read_store(self._source / "store")
        shutil.copytree(run, self._source / "spread")
        shutil.copytree(run, self._source / "network")
        uncertainty.fit(self._source / "spread", self._data, self._data)
        for name in ("openmm", "pjrt"):
            export_folder(run, self._source / name, engine=name, sizes=_SIZES)
        (self._source / "program").mkdir()
        export(run, self._source / "program" / "program.safetensors")
        settings = ["data.val=4", "steps=2", f"replay={self._data}", "replay_frames=2"]
        given = [f"start_from={run}", f"data={self._data}", *settings]
        if cli.main(["train", *given, f"run={self._source / 'replay'}"]):
            raise RuntimeError("the run that is to be damaged failed")

    def prepare(self, seed: int):
        """Choose what is damaged, and how; the run with replay in one of 20 cases."""
        rng = np.random.default_rng(seed)
        names = [name for name in self._doors if name != "replay"]
        name = "replay" if seed % 20 == 19 else names[rng.integers(len(names))]
        door, files = self._doors[name]
        file = files[rng.integers(len(files))].relative_to(self._source / name)
        ways = [*CHANGES, *REPLACED, *(_REWRITTEN if name == "network" else [])]
        how = "one bit flipped in" if rng.random() < 0.4 else ways[rng.integers(len(ways))]

        def case():
            shutil.rmtree(self._path, ignore_errors=True)
            shutil.copytree(self._source / name, self._path)
            target = self._path / file
            before = target.read_bytes()
            if how in CHANGES:
                target.write_bytes(CHANGES[how](rng, before))
            elif how in REPLACED:
                target.unlink()
                REPLACED[how](target)
            else:
                _REWRITTEN[how](rng, target)
            same = target.is_file() and target.read_bytes() == before
            return self._judge(name, door, target, how, same)

        return f"{how} {file} of {name}", case

    def _judge(self, name: str, door, target: Path, how: str, same: bool) -> str:
        answers = []
        output = run_command(functools.partial(_as_command, answers, door, self._path))
        self.counts["tried"] += 1
        if output.code != 0:
            check_refusal(output, target.name, "checkpoint", str(target.parent))
            self.counts["found"] += 1
            return f"refused: {output.error}"
        self.counts["harmless"] += 1
        if how in _GONE and name == "spread" and answers == [None]:
            return "there is no fit"
        if name == "replay":  # the run goes on, and is refused for other frames
            if not same:
                raise FailureError("a run went on with other frames of replay")
        elif answers != [self._answers[name]]:
            raise FailureError("another answer, without a word")
        elif target.suffix == ".so" and not same:  # a process loads it once
            raise FailureError("a changed library was loaded")
        return "the same"

    def _answer(self, name: str):
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(self._source / name, self._path)
        return self._doors[name][0](self._path)

    def _read_store(self, path: Path) -> str:
        samples = samples_of(store_structures([self._data], folder=path), 4.0, (1, 8), {1: 0, 8: 0})
        return _digest(array for s in samples for array in (s.positions, s.senders, s.forces))

    def _spread(self, path: Path):
        [found] = eqfuse.predict(path, self._frame)
        return found.spread and _digest([found.forces, found.spread.forces])

    def _engine(self, path: Path) -> str:
        frame = self._frame
        return _digest(engine.Engine(path).compute(frame.numbers, frame.positions))

    def _program(self, path: Path) -> str:
        """Read as `docs/how-to/export.md` does, in a process of its own."""
        consumer = Path(__file__).parents[1] / "export" / "consumer.py"
        arrays = {"numbers": self._frame.numbers, "positions": self._frame.positions}
        arrays |= {"cell": np.zeros((3, 3)), "pbc": np.zeros(3, bool)}
        given, out = path / "in.npz", path / "out.npz"
        np.savez(given, count=1, **{f"0_{name}": array for name, array in arrays.items()})
        files = map(str, (consumer, path / "program.safetensors", given, out))
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [sys.executable, *files]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=path)
        if done.returncode < 0:
            raise FailureError(f"signal {-done.returncode}: {done.stderr[-300:]}")
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1]
            raise ValueError(f"program.safetensors: {last}")
        with np.load(out) as results:
            return _digest(results.values())

    def _predict(self, path: Path) -> str:
        [found] = eqfuse.predict(path, self._frame)
        return _digest([found.forces, found.energy])

    def _run_host(self, path: Path) -> str:
        program, plugin = self._host
        ase.io.write(path / "start.xyz", self._frame)
        command = [program, path, plugin, path / "start.xyz"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env={})
        if done.returncode < 0:
            raise FailureError(f"signal {-done.returncode}: {done.stderr[-300:]}")
        if done.returncode:
            raise ValueError(done.stderr.strip())
        return done.stdout

    def _resume(self, path: Path) -> str:
        code = cli.main(["train", f"resume={path}", "steps=3"])
        if code:
            raise SystemExit(code)
        return read_checkpoint(path, ("last",))[1]["arrays_sha256"]


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


def _host(folder: Path) -> tuple[Path, str] | None:
    """Return the compiled C++ program and XLA's plug-in, where both can be had."""
    found = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    plugin = os.environ.get("EQFUSE_PJRT_PLUGIN")
    if found is not None:
        plugin = str(Path(found.origin).with_name("pjrt_c_api_cpu_plugin.so"))
    if plugin is None or shutil.which("g++") is None:
        return None
    source, program = Path(eqfuse.__file__).parent / "export" / "eqfuse_run.cpp", folder / "host"
    if not program.exists():
        flags = ["-O1", "-std=c++17", "-ldl", "-pthread"]
        subprocess.run(["g++", str(source), "-o", str(program), *flags], check=True)
    return program, plugin
