"""Files with random damage are read, or refused with a DataError; nothing else happens."""

import ase.io
import numpy as np
import pytest

from eqfuse.data import DataError, read_extxyz, read_rmd17

ROUNDS = 150


def damaged(content: bytes, rng) -> bytes:
    """A copy with bytes changed, cut out, doubled or cut off."""
    data = bytearray(content)
    kind = rng.integers(4)
    start = int(rng.integers(len(data)))
    end = min(start + int(rng.integers(1, 40)), len(data))
    if kind == 0:
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            data[place] = rng.integers(256)
    elif kind == 1:
        del data[start:end]
    elif kind == 2:
        data[start:start] = data[start:end]
    else:
        del data[start:]
    return bytes(data)


def assert_read_or_refused(read, path, rng):
    content, refusals = path.read_bytes(), 0
    target = path.with_name(f"damaged{path.suffix}")
    for _ in range(ROUNDS):
        target.write_bytes(damaged(content, rng))
        try:
            structures = read(target)
        except DataError as error:
            assert str(target) in str(error)  # noqa: PT017 - it may also not be raised
            refusals += 1
        else:
            assert all(np.isfinite(s.positions).all() for s in structures)
    assert refusals > ROUNDS // 10


@pytest.mark.parametrize("name", ["frames.xyz", "frames.xyz.gz", "frames.xyz.bz2", "frames.xyz.xz"])
def test_extxyz(name, make_structure, tmp_path, rng):
    frames = []
    for _ in range(3):
        s = make_structure(rng, periodic=True)
        atoms = ase.Atoms(s.numbers, s.positions, cell=s.cell, pbc=True)
        atoms.info["energy"], atoms.arrays["forces"] = s.energy, s.forces
        frames.append(atoms)
    ase.io.write(tmp_path / name, frames, format="extxyz")
    assert_read_or_refused(read_extxyz, tmp_path / name, rng)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rmd17(save, tmp_path, rng):
    save(
        tmp_path / "frames.npz",
        nuclear_charges=np.array([1, 6, 8]),
        coords=rng.normal(size=(4, 3, 3)),
        energies=rng.normal(size=4),
        forces=rng.normal(size=(4, 3, 3)),
    )
    assert_read_or_refused(read_rmd17, tmp_path / "frames.npz", rng)
