"""Files and folders that somebody made to do harm, of which `damage` makes none by chance.

The answer is right, or one sentence names what is wrong; nothing is executed.
"""

import collections
import contextlib
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import struct
import warnings
import zipfile
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT
from safetensors.numpy import save

import eqfuse
from eqfuse.convert import convert
from eqfuse.data import read_structures
from eqfuse.data.readers import frames_of
from eqfuse.distill import rounds
from eqfuse.distill.settings import SETTINGS, Distill, settings_of
from eqfuse.inference import Network, uncertainty
from eqfuse.runs.files import digest_of, read_arrays, read_file
from eqfuse.train import parse
from tests.fuzz.checks import FailureError, memory_limit, one
from tests.fuzz.damage import CHANGES
from tests.lammps.untrained import untrained_run
from tests.runs.test_files import small_disk
from tests.small_runs import copper_cell, labelled

MEGABYTES = 1500
"""More than a case may take beyond what the process has."""
_TEACHER = "ase.calculators.emt:EMT()"
_SIZES = (0, 1, 255, 2**16, 2**28 - 1, 2**31 - 1)
_OPCODES = [(code, "<I") for code in (b"r", b"j", b"X", b"B", b"\x8b")]  # with a size
_OPCODES += [(code, "<Q") for code in (b"\x96", b"\x8d", b"\x8e", b"\x95")]
_STATEMENTS = [b"2\x86" * 1000, b"(" * 999 + b"t" * 999, b"\x8f2\x91", b"I" + b"9" * 5000 + b"\n"]
_STATEMENTS += [b"c%b\n\x85R" % name for name in (b"os\nsystem", b"builtins\nbytearray")]
_STATEMENTS += [b"]}Ns", b"N\x85Q", b"N\x85R", b"}(NNu", b"0", b"2", b"]", b"a", b"b"]
_TEXTS = ["", "nan", "1e999", "-1", "'", '"', "\x1b[31m", "=cmd", "+1", "@x", "\0", "x,y", "a\nb"]
_TEXTS += ["9" * 5000, "[" * 4000, "{a: 1}", "[1]", "&a [*a]", "0x" + "f" * 5000, "!!python/name:a"]
_JSON = [None, True, [], {}, {"a": [1]}, "", "x", -1, 1e308, 10**30, "9" * 5000, "a\0b"]
_METADATA = ["[" * 10**5, "[1]", '"a"', "", "1" * 5000]
_INDEX = ["", "0", "-1", "3", "8", "-9", "x", "9" * 5000]


class Cases:
    """The doors; see `__main__`. What is opened is made in a folder, where it is not yet."""

    seconds = 120

    def __init__(self, folder: Path):
        self._path, self.counts = folder / "opened", collections.Counter()
        self._source, self._executed = folder / "doors", folder / "executed"
        self._run, self._data = self._source / "nequip", self._source / "data.xyz"
        if not (self._source / "made").exists():
            shutil.rmtree(self._source, ignore_errors=True)
            self._make()
            (self._source / "made").touch()
        self._frames, self._calculator = ase.io.read(self._data, ":"), eqfuse.Calculator(self._run)
        self._energy = self._calculator.get_potential_energy(self._frames[0])
        self._labels = self._labels_of(self._source / "distill")

    def _make(self):
        """Write what is opened: a run with a spread, frames, and a distillation with labels."""
        self._source.mkdir(parents=True)
        untrained_run(self._source, numbers=(29,), channels=2, layers=1)
        frames = []
        for seed in range(8):
            frames.append(labelled(copper_cell(seed=seed)))
        ase.io.write(self._data, frames)
        uncertainty.fit(self._run, self._data, self._data)
        ase.io.write(self._source / "start.xyz", ase.build.bulk("Cu"))
        given = {"teacher": _TEACHER, "start": str(self._source / "start.xyz")}
        given |= {"batch": 12, "new": 4, "trajectories": 2, "atoms": 2}
        _opened(Distill(**given, run=str(self._source / "distill")))

    def prepare(self, seed: int):
        """Choose a kind by turns, and the rest by the seed."""
        kinds = [name for name in sorted(vars(Cases)) if name.startswith("_open_")]
        rng, kind = np.random.default_rng(seed), kinds[seed % len(kinds)]
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir()
        what, door, wanted, names = getattr(self, kind)(rng)
        kind = kind.removeprefix("_open_")
        return f"{kind}: {what}", functools.partial(self._judge, kind, door, wanted, names)

    def _judge(self, kind: str, door, wanted, names) -> str:
        self.counts[f"{kind} tried"] += 1
        try:
            with (
                memory_limit(MEGABYTES),
                warnings.catch_warnings(action="ignore"),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                found = door()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            ours = type(error).__module__.startswith("eqfuse.") or isinstance(error, OSError)
            if not ours or not any(name in found for name in names):
                raise FailureError(f"names none of {names}: {found}") from error
            self.counts[f"{kind} refused"] += 1
            outcome = f"refused: {found}"
        else:
            outcome = "read" if wanted is None else "the same"
            close = isinstance(wanted, float) and abs(found - wanted) < 1e-3
            if wanted is not None and found != wanted and not close:
                raise FailureError(f"another answer, without a word: {found!r:.100}")
        if self._executed.exists():
            self._executed.unlink()
            raise FailureError("it was executed")
        return outcome

    def _open_pickle(self, rng):
        sized = [code + struct.pack(size, one(rng, _SIZES)) for code, size in _OPCODES]
        parts = [one(rng, [*_STATEMENTS, *sized]) for _ in range(rng.integers(1, 12))]
        data, file = b"\x80\x04]" + b"".join(parts) + b".", self._path / "network.model"
        with zipfile.ZipFile(file, "w", one(rng, (0, 8))) as archive:
            archive.writestr("a/data.pkl", data)
            archive.writestr("a/data/0", bytes(one(rng, (0, 8, 2**24))))
        how = one(rng, ("mace", "sevennet")), file, self._path / "run"
        return repr(data[:60]), lambda: convert(*how), None, [file.name, "no network", "/data"]

    def _open_bomb(self, rng):
        name, size = one(rng, ("npz", "xyz.gz", "cif.xz")), 2 ** int(rng.integers(10, 23))
        file = self._path / f"bomb.{name}"
        if name == "npz":
            np.savez_compressed(file, R=np.zeros((size, 1, 3)), z=[1], E=np.zeros(size), F=[0])
        else:
            pack = {"xyz.gz": gzip.compress, "cif.xz": functools.partial(lzma.compress, preset=0)}
            file.write_bytes(pack[name](b"1\n\nH 0 0 0\n" * (size // 11)))
        return f"{size} of {file.name}", lambda: read_structures(file), None, [file.name]

    def _labels_of(self, folder: Path) -> list:
        made = _opened(settings_of(folder, _TEACHER), folder)
        made._sample("labels", 0)
        return [(a.info["place"], a.positions.tobytes()) for a in made.frames("labels")]

    def _open_distillation(self, rng):
        folder = Path(shutil.copytree(self._source / "distill", self._path / "distill"))
        files = [path for path in sorted((folder / "distill").iterdir()) if path.is_file()]
        file, how = one(rng, files), one(rng, [*CHANGES, "text for", "a pipe for"])
        if how == "a pipe for":
            file.unlink()
            os.mkfifo(file)
        else:
            text = "\n".join(one(rng, _TEXTS) for _ in range(3)).encode()
            file.write_bytes(CHANGES.get(how, lambda *_: text)(rng, file.read_bytes()))
        door = functools.partial(self._labels_of, folder)
        wanted = None if file.name == "settings.json" else self._labels
        return f"{how} {file.name}", door, wanted, [file.name, str(folder)]

    def _open_settings(self, rng):
        folder = Path(shutil.copytree(self._source / "distill", self._path / "distill"))
        file, code = folder / SETTINGS, f"os:system('touch {self._executed}')"
        plain, name = json.loads(file.read_text()), one(rng, [*Distill.__dataclass_fields__])
        plain[name] = one(rng, [*_JSON, code, f"data={code}", f"run={self._executed}"])
        file.write_text(json.dumps(plain))
        door = functools.partial(settings_of, folder, one(rng, (None, _TEACHER)))
        return f"{name}={plain[name]!r:.80}", door, None, [name, str(folder)]

    def _open_configuration(self, rng):
        text, file = (self._run / "config.yaml").read_text(), self._path / "config.yaml"
        line, value = one(rng, re.findall(r"^ *\w+: .*$", text, re.M)), one(rng, _TEXTS)
        name = line.partition(":")[0]
        file.write_text(text.replace(line, f"{name}: {value}", 1))
        given = [f"config={file}", f"data={self._data}"]
        return f"{name}: {value!r:.60}", lambda: parse(given), None, [str(file), name.strip()]

    def _open_checksum(self, rng):
        run = Path(shutil.copytree(self._run, self._path / "run"))
        arrays = read_arrays(spread := run / "uncertainty.npz")
        of, _, name = arrays.pop("network"), arrays.pop("sha256"), one(rng, sorted(arrays))
        arrays[name] = one(rng, [np.array("x"), np.zeros(0), np.full((2, 2), np.nan), np.array(3)])
        np.savez(spread, **arrays, network=of, sha256=digest_of(arrays))
        if rng.random() < 0.5:
            return f"{name} of {spread.name}", lambda: Network(run), None, [spread.name]
        spread.unlink()
        arrays, metadata = read_file(file := run / "checkpoints" / "best.safetensors")
        key, value = one(rng, sorted(metadata)), one(rng, _JSON)
        text = json.dumps(metadata | {key: value})
        text = text if rng.random() < 0.8 else one(rng, _METADATA)
        known = {"eqfuse": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        file.write_bytes(save(arrays, known))
        return f"{key}={value!r:.60} {text[:9]}", lambda: Network(run), None, [str(run)]

    def _open_far(self, rng):
        atoms, power = self._frames[0].copy(), rng.uniform(0, one(rng, (16, 300)))
        far = np.rint(10**power * rng.normal(size=3)) @ atoms.cell.array
        atoms.positions[rng.integers(len(atoms))] += far
        door = functools.partial(self._calculator.get_potential_energy, atoms)
        return f"1e{power:.1f} cells", door, self._energy, ["too far", "not finite"]

    def _open_disk(self, rng):
        size = int(10 ** rng.uniform(0, 6))

        def door():
            with small_disk(size), pytest.MonkeyPatch.context() as patch:
                patch.setenv("EQFUSE_CACHE_DIR", str(self._path / "cache"))
                return eqfuse.Calculator(self._run).get_potential_energy(self._frames[0])

        return f"files of {size} bytes", door, self._energy, []

    def _open_index(self, rng):
        numbers = [one(rng, _INDEX) for _ in range(rng.integers(1, 4))]
        file, wanted = f"{self._data}@{':'.join(numbers)}", []
        with contextlib.suppress(IndexError, ValueError, TypeError):
            parts = [int(n) if n else None for n in numbers]
            wanted = self._frames[slice(*parts)] if parts[1:] else [self._frames[parts[0]]]
        given, times = one(rng, [(file, 1), ((f for f in (file, file)), 2)])  # or a generator
        wanted = times * [atoms.positions.tolist() for atoms in wanted]
        door = lambda: [atoms.positions.tolist() for atoms in frames_of(given)]  # noqa: E731
        return ":".join(numbers)[:40], door, wanted, [self._data.name]


def _opened(*given) -> rounds.Distillation:
    """Return a distillation whose teacher is in this process, to be quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "open_teacher", lambda *_, **__: EMT())
        return rounds.Distillation(*given)
