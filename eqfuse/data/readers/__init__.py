"""Read files of structures: one registry of formats for training, evaluation and prediction.

To add a format, write `readers/NAME.py` with a function that yields the frames of a file as
`ase.Atoms`, and add a line to `FORMATS`.
"""

import fnmatch
import functools
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import ase
from ase.io.formats import open_with_compression

from eqfuse.data.lazy import reported
from eqfuse.data.readers.ase_files import (
    frames_of_cif,
    frames_of_poscar,
    frames_of_rows,
    of_atoms,
    of_row,
    read_by_ase,
    unlabelled,
)
from eqfuse.data.readers.extxyz import frames_of_extxyz, label_candidates
from eqfuse.data.readers.format import (
    COMPRESSED,
    USUAL_KEYS,
    Keys,
    Units,
    indexed,
    require_room,
)
from eqfuse.data.readers.hdf5 import frames_of_hdf5
from eqfuse.data.readers.lammps import frames_of_lammps
from eqfuse.data.readers.lmdb_files import frames_of_lmdb
from eqfuse.data.readers.pdb import frames_of_pdb
from eqfuse.data.readers.rmd17 import frames_of_rmd17
from eqfuse.data.readers.vasp import frames_of_vasp
from eqfuse.data.structures import DataError, Structure, count_labelled, counted


class Format(NamedTuple):
    """A function of a path that yields frames, the names of its files, and what others hold.

    Frames are `ase.Atoms`, see `of_atoms`, or functions that return them, whose errors are of that
    frame alone; None is a frame that is left out. `needs` names a further argument, `keys` or
    `types` of `read_structures`.
    """

    frames: Callable[..., Iterator]
    names: tuple[str, ...]
    holds: str | None = None
    needs: str | None = None


def _by_ase(name: str, format: str) -> Format:
    return Format(functools.partial(read_by_ase, format=format), (name,))


def _of_vasp(name: str, format: str, holds: str) -> Format:
    return Format(functools.partial(frames_of_vasp, format=format), (name,), holds)


_LAMMPS = ("*.lammpstrj", "*.dump", "*.lammps", "*.lmp")
_TYPED = r"\AITEM: |^\s*\d+\s+atom types\s*$"
_OUTCAR = r"\A\s*vasp\.\d"
FORMATS = {
    "extxyz": Format(frames_of_extxyz, ("*.xyz", "*.extxyz"), needs="keys"),
    "rmd17": Format(frames_of_rmd17, ("*.npz",)),
    "hdf5": Format(frames_of_hdf5, ("*.h5", "*.hdf5"), needs="keys"),
    "lmdb": Format(frames_of_lmdb, ("*.lmdb", "*.aselmdb")),
    "traj": _by_ase("*.traj", "traj"),
    "db": Format(functools.partial(frames_of_rows, type="db"), ("*.db",)),
    "json": Format(functools.partial(frames_of_rows, type="json"), ("*.json",)),
    "cif": Format(frames_of_cif, ("*.cif",)),
    "gen": _by_ase("*.gen", "gen"),
    "pdb": Format(frames_of_pdb, ("*.pdb",)),
    "vasp-xml": _of_vasp("*vasprun*.xml", "vasp-xml", "<modeling>"),
    "vasp-out": _of_vasp("*OUTCAR*", "vasp-out", _OUTCAR),
    "vasp-xdatcar": _by_ase("*XDATCAR*", "vasp-xdatcar"),
    "vasp": Format(frames_of_poscar, ("*.vasp", "*.poscar", "*POSCAR*", "*CONTCAR*")),
    "lammps": Format(frames_of_lammps, _LAMMPS, _TYPED, needs="types"),
}
"""Formats by name. The first one reads files of any other name that hold nothing known."""
_UNPACKED = ("rmd17", "hdf5", "lmdb", "db", "json")


def iterate_structures(path, format=None, keys=USUAL_KEYS, units=None, types=None) -> Iterator:
    """Yield the structures of a file while it is read; see `read_structures`."""
    made = functools.partial(of_atoms, keys=keys, units=units)
    return _each(path, made, format, keys, types)


def _each(given, made: Callable, format=None, keys: Keys = USUAL_KEYS, types=None) -> Iterator:
    """Yield what is `made` of each frame of a file, and of its `origin`, which errors name.

    What takes longer than a few seconds is reported, and a file without frames refused.
    """
    path, index = indexed(given)
    require_room(path)
    format = format or _format(path)
    if format not in FORMATS:
        raise DataError(f"the format {format!r} is unknown; choose from: {', '.join(FORMATS)}")
    packed = os.path.splitext(path)[1]
    if packed.lower() in COMPRESSED and (format in _UNPACKED or packed not in COMPRESSED):
        raise DataError(f"{path} is not read while it is compressed so; unpack it")
    frames, needs = FORMATS[format].frames, FORMATS[format].needs
    if types and needs != "types":
        raise DataError(f"{path} is no file of LAMMPS, so that it has no types; leave them out")
    types = re.findall(r"[^\s,]+", types) if isinstance(types, str) else types or ()
    how = {needs: {"keys": keys, "types": types}[needs]} if needs else {}
    numbered, ends = enumerate(frames(path, **how)), [index.start, index.stop, index.step]
    from_end = any(n is not None and n < 0 for n in ends)
    numbered = [*numbered][index] if from_end else itertools.islice(numbered, *ends)
    known, origin = ((k, frame) for k, frame in numbered if frame is not None), None
    for number, frame in reported(known, f"frames of {given} read"):
        origin = f"{path}, frame {number}"
        try:
            yield made(frame() if callable(frame) else frame, origin=origin)
        except DataError as err:
            raise DataError(f"{origin}: {err}") from err
    if origin is None:
        need = "a file with structures in it" if index == slice(None) else "another index"
        raise DataError(f"{given} has no frames; give {need}")


def read_with_atoms(
    path: str | os.PathLike, keys: Keys, types: str | Sequence[str] | None = None
) -> list[tuple[Structure, ase.Atoms]]:
    """Return the structures of a file, whose labels may be missing, and the atoms with all it has.

    For keys and types see `read_structures`.
    """

    def made(atoms: ase.Atoms, origin: str):
        return of_atoms(atoms, keys, origin=origin), atoms

    return [*_each(path, made, keys=keys, types=types)]


def has_types(path: str | os.PathLike) -> bool:
    """Return whether a file is one of LAMMPS, whose types have no elements."""
    return FORMATS[_format(path)].needs == "types"


def read_structures(
    path: str | os.PathLike,
    *,
    format: str | None = None,
    keys: Keys = USUAL_KEYS,
    units: Units | None = None,
    types: str | Sequence[str] | None = None,
    require_labels: bool = True,
) -> list[Structure]:
    """Read every structure of a file; what takes longer than a few seconds is reported.

    Args:
      path: the file, or FILE@INDEX for some of its frames, as in ASE: FILE@0, FILE@-1, FILE@2:8:2.
      format: a key of `FORMATS`; None to choose by the name, also before .gz, .bz2 or .xz, or by
        what the file begins with.
      keys: names of the labels in the file, where the format has names.
      units: of the file; None for those that the file names, or else the usual ones of the format.
      types: the elements of LAMMPS's types 1, 2, ..., such as "Si O", for a dump or a data file.
      require_labels: refuse a file without any energies or any forces.
    Returns:
      the structures in order, in eV and Å.
    Raises:
      DataError: an unknown format, or a file that cannot be read; names the file and the frame.
    """
    structures = [*iterate_structures(path, format, keys, units, types)]
    frames = [s for s in structures if not s.is_isolated_atom]
    for name, labelled in (("energy", structures), ("forces", frames)):
        if require_labels and labelled and not count_labelled(labelled, name):
            missing = missing_label(path, name, keys, format)
            raise DataError(f"{path}, in none of {counted(len(labelled), 'frame')}: {missing}")
    return structures


def iterate_atoms(
    path: str | os.PathLike, *, types: str | Sequence[str] | None = None
) -> Iterator[ase.Atoms]:
    """Yield every structure of a file as `ase.Atoms` without labels; see `read_structures`.

    They have velocities, masses, constraints and other properties where the file has them.
    """
    return _each(path, unlabelled, types=types)


def frames_of(given, read: Callable = iterate_atoms) -> list:
    """Return the structures that a public function was given, in any form, as a list.

    Functions that return a list return one result in it for one structure; the others return that
    result alone, see `is_one`.

    Args:
      given: `ase.Atoms`, a `Structure`, a row of ASE's databases, or a file, see `read_structures`;
        or several of these: a list, a tuple, a generator, a trajectory.
      read: returns the frames of a file.
    Returns:
      `ase.Atoms` and structures as they were given, and what `read` returns of files.
    Raises:
      TypeError: anything else, which is named.
      DataError: none at all, or a file that cannot be read.
    """
    found = []
    alone = is_one(given) or isinstance(given, str | Mapping) or not isinstance(given, Iterable)
    for one in [given] if alone else given:
        if isinstance(one, str | os.PathLike):
            found.extend(read(one))
        elif isinstance(one, ase.Atoms | Structure):
            found.append(one)
        elif hasattr(one, "toatoms"):
            found.append(of_row(one))
        else:
            raise TypeError(
                f"structures must be ase.Atoms, files, or several of them, got {type(one).__name__}"
            )
    if not found:
        raise DataError("there are no structures; give one or more")
    return found


def is_one(given) -> bool:
    """Test whether what a public function was given is one structure, and not several or a file."""
    return isinstance(given, ase.Atoms | Structure) or hasattr(given, "toatoms")


def missing_label(path: str | os.PathLike, name: str, keys: Keys, format: str | None = None) -> str:
    """Return the advice for a label, energy, forces or stress, that no frame of a file has."""
    key = getattr(keys, name)
    if (format or _format(path)) != "extxyz":
        return f"no {name} under the key {key!r}"
    known = ", ".join(sorted(label_candidates(indexed(path)[0], name, keys))) or "none"
    return (
        f"no {name} under the key {key!r}; candidates: {known} (data.{name}_key=KEY, or "
        f"--{name}-key KEY where a run is evaluated)"
    )


_PEEKED = 10_000  # bytes, within which all formats say what they are


def _format(path: str | os.PathLike) -> str:
    """Return the format of a file by its name, or else by what it begins with."""
    path, _ = indexed(path)
    name = stem(path, COMPRESSED).lower()
    for format, known in FORMATS.items():
        if any(fnmatch.fnmatchcase(name, pattern.lower()) for pattern in known.names):
            return format
    begin = _begin(path)
    holding = (n for n, f in FORMATS.items() if f.holds and re.search(f.holds, begin, re.M))
    return next(holding, next(iter(FORMATS)))


def _begin(path) -> str:
    """Return the first bytes of a file as text; "" where it is none, which its reader refuses."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open_with_compression(os.fspath(path), "rb") as file:
            return file.read(_PEEKED).decode("latin-1")
    except Exception:  # of a damaged archive
        return ""


def stem(path: str | os.PathLike, suffixes=None) -> str:
    """Return the name of a file without the suffixes of compression and format."""
    name = os.path.basename(indexed(path)[0])
    patterns = [pattern[1:] for f in FORMATS.values() for pattern in f.names]
    known = (*COMPRESSED, *(p for p in patterns if p.startswith(".") and "*" not in p))
    for suffix in known if suffixes is None else suffixes:
        name = name.removesuffix(suffix) or name
    return name
