"""Small networks that mace-torch made, and what it says of two structures."""

import functools
import lzma
from pathlib import Path

import ase
import numpy as np
import pytest

from eqfuse import __version__
from eqfuse.convert import convert
from eqfuse.convert.records import read_module

GOLDENS = Path(__file__).parent / "goldens"
SEVERAL_HEADS = ("nonlinear", "two_heads")
NAMES = sorted(path.name.removesuffix(".model.xz") for path in GOLDENS.glob("*.model.xz"))


def unpacked(golden, folder) -> Path:
    """Return a copy of a golden that is not compressed, in a folder."""
    path = folder / golden.name.removesuffix(".xz")
    path.write_bytes(lzma.decompress(golden.read_bytes()))
    return path


def expected(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a golden: numbers, positions, cells, and the results of mace of them."""
    with np.load(GOLDENS / f"{name}.npz") as stored:
        return dict(stored)


def from_arrays(arrays) -> list[ase.Atoms]:
    """Return the structures of `scripts.network_goldens.to_arrays`, as goldens hold them."""
    names = ("numbers", "positions", "cell", "pbc")
    return [
        ase.Atoms(**{name: arrays[f"{k}_{name}"] for name in names})
        for k in range(int(arrays["count"]))
    ]


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Path of a small package of nequip."""
    golden = GOLDENS / "networks" / "nequip_pair_cutoffs.nequip.zip.xz"
    return unpacked(golden, tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    """Path of the .model file of a golden, by its name."""
    folder = tmp_path_factory.mktemp("models")
    return functools.cache(lambda name: unpacked(GOLDENS / f"{name}.model.xz", folder))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return an empty home, of which our folder and those of the programs are part."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def nequix(home, shared_data):
    """Put nequix-mp-1 where its program keeps it; return the folder of its conversion."""
    kept = home / ".cache" / "nequix" / "models"
    kept.mkdir(parents=True)
    file = shared_data / "networks" / "nequix-mp-1.nqx"
    (kept / file.name).symlink_to(file)
    return home / "cache/eqfuse/runs" / f"nequix-mp-1-1647af8e627e-{__version__}"


@pytest.fixture
def network(model_file):
    """Return the records of a golden, by its name; each test may change its own."""
    return lambda name: read_module(model_file(name))


@pytest.fixture(scope="session")
def run(model_file, tmp_path_factory):
    """Folder of the converted run of a golden, by its name."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def make(name):
        head = "two" if name in SEVERAL_HEADS else None
        convert("mace", model_file(name), folder / name, choice=head)
        return folder / name

    return make
