"""Damaged files of structures: each is read, or refused in one line, soon and in memory.

What each kind of mistake in a file leads to is tested in `tests/data/readers`.
"""

import gzip
import io
import shutil
from pathlib import Path

import ase.io
import numpy as np

from eqfuse.train import molecule
from eqfuse.train.main import main
from tests.fuzz.checks import FailureError, check_refusal, memory_limit, run_command, water
from tests.small_runs import TINY

WORDS = 'nan -inf 1e999 1e300 1e8 0 -1 119 1,5 X Qq " [ = T pos:R:3 energy=1 Lattice= 3 \\ \x00'


class ReadError(BaseException):
    """Ends a training when its data are read; `dataset` is what they are."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset


def _arrays(frames) -> bytes:
    file, names = io.BytesIO(), {"energies": "potential_energy", "forces": "forces"}
    arrays = {
        name: np.array([getattr(f, f"get_{of}")() for f in frames])
        for name, of in (names | {"coords": "positions"}).items()
    }
    np.savez(file, nuclear_charges=frames[0].numbers, **arrays)
    return file.getvalue()


def _changed_words(rng, content: bytes) -> bytes:
    words, others = content.split(b" "), WORDS.split(" ")
    for place in rng.integers(len(words), size=rng.integers(1, 4)):
        words[place] = others[rng.integers(len(others))].encode()
    return b" ".join(words)


def flipped(rng, content: bytes) -> bytes:
    data = bytearray(content)
    for place in rng.integers(len(data), size=rng.integers(1, 20)):
        data[place] = rng.integers(256)
    return bytes(data)


def cut(rng, content: bytes) -> bytes:
    return content[: rng.integers(len(content))]


def doubled(rng, content: bytes) -> bytes:
    start, end = sorted(rng.integers(len(content), size=2))
    return content[:end] + content[start:]


def _repeated(rng, content: bytes) -> bytes:
    """Return megabytes of a short piece of the content within it."""
    start = int(rng.integers(len(content)))
    piece = content[start : start + int(rng.integers(1, 8))]
    return content[:start] + piece * (4 * 10**6 // len(piece)) + content[start:]


DAMAGES = (_changed_words, flipped, cut, doubled, _repeated)


class Cases:
    """Damages of files; see `__main__`.

    Args:
      folder: to work in.
    """

    seconds = 60

    def __init__(self, folder: Path):
        self._folder = folder / "files"
        path = water(folder)
        text, arrays = path.read_bytes(), _arrays(ase.io.read(path, ":"))
        self._kinds = {  # the reader, the file, its content before it is packed, and how it is
            "text": ("extxyz", "bad.xyz", text, lambda content: content),
            "packed text": ("extxyz", "bad.xyz.gz", text, gzip.compress),
            "arrays": ("rmd17", "bad.npz", arrays, lambda content: content),
        }

    def prepare(self, seed: int):
        """Choose a kind of file and a damage, after or before it is packed."""
        rng = np.random.default_rng(seed)
        name = list(self._kinds)[rng.integers(len(self._kinds))]
        data, file, whole, pack = self._kinds[name]
        damage, packed = DAMAGES[rng.integers(len(DAMAGES))], rng.random() < 0.5

        def case():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            path, run = self._folder / file, self._folder / "run"
            path.write_bytes(damage(rng, pack(whole)) if packed else pack(damage(rng, whole)))
            dataset, output = self._read([*TINY, f"data={data}", f"data.path={path}", f"run={run}"])
            if run.exists():
                raise FailureError("a folder was made for a run on it")
            if dataset is None:
                check_refusal(output, str(path), "cutoff", "stress", "split")
                return f"refused: {output.error}"
            for sample in [*dataset.train, *dataset.val]:
                arrays = sample.positions, sample.forces, sample.energy
                if not all(np.isfinite(a).all() for a in arrays if a is not None):
                    raise FailureError("what was read is not finite")
            return f"read: {len(dataset.train) + len(dataset.val)} frames"

        return f"{name}, {damage.__name__.strip('_')}{', packed' if packed else ''}", case

    def _read(self, arguments):
        """Return the data set of a training, which ends there, or what was printed."""

        def read(config, dataset, backend):
            raise ReadError(dataset)

        build, molecule.build_potential = molecule.build_potential, read
        try:
            with memory_limit(3000):
                return None, run_command(main, arguments)
        except ReadError as end:
            return end.dataset, None
        finally:
            molecule.build_potential = build
