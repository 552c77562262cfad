"""Files of arrays, as of rMD17, that are wrong in some way, made from random numbers."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import ase.build
import numpy as np

from tests.fuzz.bad_file import EITHER, FRAMES, READ, REFUSED, BadFile


def _arrays(rng) -> dict:
    return {
        "nuclear_charges": np.array([8, 1, 1]),
        "coords": np.stack([ase.build.molecule("H2O").positions] * FRAMES)
        + rng.normal(scale=0.05, size=(FRAMES, 3, 3)),
        "energies": rng.normal(size=FRAMES),
        "forces": rng.normal(size=(FRAMES, 3, 3)),
    }


def _npz(change: Callable, expected=REFUSED) -> BadFile:
    """Return an npz of the arrays that `change(rng, arrays)` returns."""

    def make(rng, folder: Path) -> Path:
        path = folder / "bad.npz"
        np.savez(path, **change(rng, _arrays(rng)))
        return path

    return BadFile(make, expected, ("data=rmd17",))


def _npz_bytes(change: Callable, expected=EITHER) -> BadFile:
    """Return an npz whose bytes are changed by `change(rng, bytes)`."""

    def make(rng, folder: Path) -> Path:
        file = io.BytesIO()
        np.savez_compressed(file, **_arrays(rng))
        path = folder / "bad.npz"
        path.write_bytes(change(rng, file.getvalue()))
        return path

    return BadFile(make, expected, ("data=rmd17",))


def _flip_bytes(rng, content: bytes) -> bytes:
    data = bytearray(content)
    for place in rng.integers(len(data), size=rng.integers(1, 10)):
        data[place] = rng.integers(256)
    return bytes(data)


def _claims_terabytes(rng, content: bytes) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 3, 3)}
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, zipfile.ZipFile(io.BytesIO(content)) as before:
        for name in before.namelist():
            data = header.getvalue() if name == "coords.npy" else before.read(name)
            archive.writestr(name, data)
    return file.getvalue()


def _with(**arrays):
    return lambda rng, before: {**before, **arrays}


def _without(name: str):
    return lambda rng, before: {key: a for key, a in before.items() if key != name}


def _as(name: str, change: Callable):
    return lambda rng, before: {**before, name: change(before[name])}


def _poked(name: str, value: float):
    def change(rng, before: dict) -> dict:
        before[name].reshape(-1)[rng.integers(before[name].size)] = value
        return before

    return change


ARRAYS = {
    "npz without forces": _npz(_without("forces")),
    "npz without charges": _npz(_without("nuclear_charges")),
    "npz of nothing": _npz(lambda *_: {}),
    "npz with a pickle": _npz(_as("energies", lambda a: a.astype(object))),
    "npz of text": _npz(_as("coords", lambda a: a.astype(str))),
    "npz of words": _npz(_as("energies", lambda a: np.full(len(a), "low"))),
    "npz of complex numbers": _npz(_as("forces", lambda a: a * 1j)),
    "npz of float16": _npz(_as("coords", lambda a: a.astype(np.float16)), READ),
    "npz of other shapes": _npz(_as("forces", lambda a: a[:, :2])),
    "npz of fewer energies": _npz(_as("energies", lambda a: a[:-1])),
    "npz of no frames": _npz(
        lambda rng, a: {k: v if k == "nuclear_charges" else v[:0] for k, v in a.items()}
    ),
    "npz of scalars": _npz(lambda rng, a: dict.fromkeys(a, 1.0)),
    "npz with a NaN position": _npz(_poked("coords", np.nan)),
    "npz with an infinite force": _npz(_poked("forces", np.inf)),
    "npz with charges of floats": _npz(_as("nuclear_charges", lambda a: a + 0.5)),
    "npz with a charge of 200": _npz(_with(nuclear_charges=np.array([8, 1, 200]))),
    "npz with a charge of -1": _npz(_with(nuclear_charges=np.array([8, 1, -1]))),
    "npz in Hartree": _npz(_with(e_unit="hartree"), READ),
    "npz in unknown units": _npz(_with(e_unit="furlong")),
    "npz with units of bytes": _npz(_with(r_unit=b"\xff\xfe")),
    "npz cut off": _npz_bytes(lambda rng, content: content[: rng.integers(len(content))], REFUSED),
    "npz with bytes changed": _npz_bytes(_flip_bytes),
    "npz that claims terabytes": _npz_bytes(_claims_terabytes, REFUSED),
    "npz with bytes before it": _npz_bytes(lambda rng, content: rng.bytes(100) + content),
}
