"""Names of labels, units and checks of files, which the readers of all formats share."""

import contextlib
import dataclasses
import importlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ase.units
from ase.io.formats import open_with_compression

from eqfuse.data.structures import DataError, Structure

_KCAL_PER_MOL = ase.units.kcal / ase.units.mol
_ENERGIES = {
    "ev": 1.0,
    "kcal/mol": _KCAL_PER_MOL,
    "kcalmol-1": _KCAL_PER_MOL,
    "kj/mol": ase.units.kJ / ase.units.mol,
    "hartree": ase.units.Hartree,
    "ha": ase.units.Hartree,
}
_LENGTHS = {"å": 1.0, "a": 1.0, "ang": 1.0, "angstrom": 1.0, "bohr": ase.units.Bohr}


class Keys(NamedTuple):
    """Names of the labels in a file."""

    energy: str = "energy"
    forces: str = "forces"
    stress: str = "stress"
    charge: str | None = None  # the total charge; None: it is not read


USUAL_KEYS = Keys()
PLAIN = "eqfuse_"
"""Begins the keys of `atoms.info` that readers put there for `of_atoms`."""
UNITS = PLAIN + "units"
"""The key of the units that a file names."""


class Units(NamedTuple):
    """Units of a file: `energy` in eV and `length` in Å.

    Forces are in energy / length, stresses in energy / length^3.
    """

    energy: float = 1.0
    length: float = 1.0

    @classmethod
    def of(cls, energy: str = "eV", length: str = "Å") -> "Units":
        """Return the units of these names.

        Args:
          energy: eV, kcal/mol, kJ/mol or Hartree (Ha), in any case.
          length: Å (A, Ang, Angstrom) or Bohr, in any case.
        Raises:
          DataError: a name that is not known.
        """
        return cls(_factor("energy", energy, _ENERGIES), _factor("length", length, _LENGTHS))

    def structure(self, **fields) -> Structure:
        """Return the `Structure` of these fields, which are in these units, in eV and Å."""
        given = Structure(**fields)
        if self == Units():
            return given
        energy, length = self
        factors = {
            "positions": length,
            "cell": length,
            "energy": energy,
            "forces": energy / length,
            "stress": energy / length**3,
            "hessian": energy / length**2,
        }
        values = {name: getattr(given, name) for name in factors}
        scaled = {name: v * factors[name] for name, v in values.items() if v is not None}
        return dataclasses.replace(given, **scaled)


def _factor(quantity: str, name: str, known: dict[str, float]) -> float:
    factor = known.get("".join(name.lower().replace("^", "").split()))
    if factor is None:
        raise DataError(f"the unit of {quantity} {name!r} is unknown; known: {', '.join(known)}")
    return factor


def require_file(path: str | os.PathLike) -> None:
    """Refuse what is not there, and pipes, devices and sockets, which may never end."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as err:
        raise DataError(f"no such file: {path}") from err
    except OSError as err:
        raise DataError(f"{path} cannot be read: {err.strerror}") from err
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise DataError(
            f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')} and not a file; write its "
            "contents to a file, and name that one"
        )


COMPRESSED = (".gz", ".bz2", ".xz")


class Room:
    """The memory that the content of a file may take: `times` its bytes, and a megabyte."""

    def __init__(self, path: str | os.PathLike, times: int = 64):
        self._path, self.left = path, times * os.path.getsize(path) + 2**20

    def take(self, size: int):
        """Note memory that is asked for, bytes, or refuse it by a DataError."""
        self.left -= size
        if self.left < 0:
            raise DataError(
                f"{self._path} would be inflated to far more than its bytes: it is no data set, or "
                "has to be unpacked before"
            )


def require_room(path: str | os.PathLike):
    """Refuse a compressed file that would fill the memory; its reader refuses a damaged one."""
    if not os.fspath(path).endswith(COMPRESSED) or not os.path.isfile(path):
        return
    room, damaged = Room(path), (OSError, EOFError, zlib.error, lzma.LZMAError)
    with contextlib.suppress(damaged), open_with_compression(os.fspath(path), "rb") as file:
        while part := file.read(2**20):
            room.take(len(part))


def lines_of(path: str | os.PathLike) -> Iterator[str]:
    """Yield the lines of a text, which may be compressed (.gz, .bz2, .xz)."""
    require_file(path)
    try:
        with (
            open_with_compression(os.fspath(path), "rb") as file,
            io.TextIOWrapper(file, encoding="utf-8-sig") as text,  # without a byte-order mark
        ):
            yield from text
    except IsADirectoryError as err:
        files = os.path.join(path, "*.xyz")
        raise DataError(f"{path} is a folder; give a file or a pattern: '{files}'") from err
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as err:
        raise DataError(f"{path} cannot be read as text: {err}") from err


def indexed(path: str | os.PathLike) -> tuple[str | os.PathLike, slice]:
    """Return the file that FILE@INDEX names, as ASE spells it, and the slice of its frames.

    A file whose own name has an @ is itself, with all its frames.
    """
    file, at, index = os.fspath(path).rpartition("@")
    if not at or os.path.exists(path) or not os.path.exists(file):
        return path, slice(None)
    try:
        first, *rest = (int(n) if n.strip() else None for n in index.split(":"))
        found = slice(first, *rest) if rest else slice(first, first + 1 or None)
        range(0)[found]  # raises of a step of 0
    except (TypeError, ValueError) as err:
        raise DataError(
            f"{path}: {index!r} is no index of frames; write {file}@0, @-1, @:10 or @2:8:2"
        ) from err
    return file, found


def files_of(path: str | os.PathLike) -> list[Path]:
    """Return the files that FILE, FILE@INDEX or a folder of LMDB is read from."""
    file = Path(indexed(path)[0])
    return sorted(set(file.glob("*mdb")) - {file / "lock.mdb"}) if os.path.isdir(file) else [file]


@contextlib.contextmanager
def refused_as(text: str):
    """Turn what a library raises into a `DataError` with this text; they raise many types."""
    try:
        yield
    except DataError:
        raise
    except Exception as err:
        raise DataError(f"{text}: {type(err).__name__}: {err}") from err


def imported(module: str, path: str | os.PathLike):
    """Return a module, for a file, that the extra of eqfuse of the same name installs."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise DataError(
            f"{path} needs the package {module}: pip install 'eqfuse[{module}]'"
        ) from err
