"""Read files of structures: one registry of formats for training, evaluation and prediction.

To add a format, write `readers/NAME.py` with a function that is a `Reader`, and add a line to
`FORMATS`.
"""

import functools
import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from eqfuse.data.lazy import reported
from eqfuse.data.readers.ase_files import SUFFIXES, iterate_ase
from eqfuse.data.readers.extxyz import iterate_extxyz, label_candidates
from eqfuse.data.readers.format import USUAL_KEYS, Keys, Units, collected
from eqfuse.data.readers.hdf5 import iterate_hdf5
from eqfuse.data.readers.lmdb_files import iterate_lmdb
from eqfuse.data.readers.rmd17 import iterate_rmd17
from eqfuse.data.structures import DataError, Structure

_COMPRESSED = (".gz", ".bz2", ".xz")


class Reader(Protocol):
    """A function that yields the structures of a file, in eV and Å, while it is read.

    `keys` are names of the labels in the file, `units` those of the file: None for what it names,
    or eV and Å. A `DataError` names the file and the frame, counted from 0.
    """

    def __call__(
        self, path: str | os.PathLike, *, keys: Keys = USUAL_KEYS, units: Units | None = None
    ) -> Iterator[Structure]: ...


class Format(NamedTuple):
    """A reader, and the suffixes of file names that it is chosen for."""

    iterate: Reader
    suffixes: tuple[str, ...]


FORMATS = {
    "extxyz": Format(iterate_extxyz, (".xyz", ".extxyz")),
    "rmd17": Format(iterate_rmd17, (".npz",)),
    "hdf5": Format(iterate_hdf5, (".h5", ".hdf5")),
    "lmdb": Format(iterate_lmdb, (".lmdb", ".aselmdb")),
    "ase": Format(iterate_ase, SUFFIXES),
}
"""Formats by name. The first one reads files of any other suffix."""


def iterate_structures(
    path: str | os.PathLike,
    *,
    format: str | None = None,
    keys: Keys = USUAL_KEYS,
    units: Units | None = None,
) -> Iterator[Structure]:
    """Yield the structures of a file while it is read; see `read_structures`."""
    format = format or _format(path)
    if format not in FORMATS:
        raise DataError(f"the format {format!r} is unknown; choose from: {', '.join(FORMATS)}")
    return FORMATS[format].iterate(path, keys=keys, units=units)


def read_structures(
    path: str | os.PathLike,
    *,
    format: str | None = None,
    keys: Keys = USUAL_KEYS,
    units: Units | None = None,
    require_labels: bool = True,
) -> list[Structure]:
    """Read every structure of a file; what takes longer than a few seconds is reported.

    Args:
      path: the file.
      format: a key of `FORMATS`; None to choose by the suffix, also before .gz, .bz2 or .xz.
      keys: names of the labels in the file, where the format has names.
      units: of the file; None for those that the file names, or else the usual ones of the format.
      require_labels: refuse a file without any energies or any forces.
    Returns:
      the structures in order, in eV and Å.
    Raises:
      DataError: an unknown format, or a file that cannot be read; names the file and the frame.
    """
    structures = iterate_structures(path, format=format, keys=keys, units=units)
    missing = functools.partial(missing_label, path, keys=keys, format=format)
    structures = reported(structures, f"frames of {path} read")
    return collected(structures, path, missing if require_labels else None)


def missing_label(path: str | os.PathLike, name: str, keys: Keys, format: str | None = None) -> str:
    """Return the advice for a label, energy, forces or stress, that no frame of a file has."""
    key = getattr(keys, name)
    if (format or _format(path)) != "extxyz":
        return f"no {name} under the key {key!r}"
    known = ", ".join(sorted(label_candidates(path, name, keys.stress))) or "none"
    return (
        f"no {name} under the key {key!r}; candidates: {known} (data.{name}_key=KEY, or "
        f"--{name}-key KEY where a run is evaluated)"
    )


def _format(path: str | os.PathLike) -> str:
    """Return the format of a file by its suffix."""
    name = stem(path, _COMPRESSED)
    by_suffix = (n for n, known in FORMATS.items() if name.endswith(known.suffixes))
    return next(by_suffix, next(iter(FORMATS)))


def stem(path: str | os.PathLike, suffixes=None) -> str:
    """Return the name of a file without the suffixes of compression and format."""
    name = os.path.basename(path)
    known = (*_COMPRESSED, *(s for f in FORMATS.values() for s in f.suffixes))
    for suffix in known if suffixes is None else suffixes:
        name = name.removesuffix(suffix) or name
    return name
