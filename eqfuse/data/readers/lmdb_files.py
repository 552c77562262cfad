"""Structures from LMDB files of ASE's rows, as fairchem's data sets are."""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import ase
import numpy as np
from ase.calculators.calculator import all_properties
from ase.db.row import AtomsRow
from ase.io.jsonio import decode

from eqfuse.data.readers.ase_files import of_row
from eqfuse.data.readers.format import Room, imported, refused_as, require_file
from eqfuse.data.structures import DataError

_NOT_ROWS = (b"nextid", b"deleted_ids", b"metadata")


def frames_of_lmdb(path: str | os.PathLike) -> Iterator[ase.Atoms]:
    """Yield the rows of an LMDB database of ASE (.aselmdb, .lmdb), in the order of their ids.

    A row is JSON, compressed by zlib, under its id as text. Its labels are as in databases of ASE,
    see `read_by_ase`. LMDB files of pickled objects, as of fairchem's first years, are refused:
    reading them would execute what they hold. The files of a folder are read in the order of their
    names.

    References: https://gitlab.com/ase/ase-db-backends, aselmdb.
    """
    require_file(path)
    lmdb = imported("lmdb", path)
    folder = os.path.isdir(path)
    if folder and not (Path(path) / "data.mdb").exists():
        for file in sorted([*Path(path).glob("*.aselmdb"), *Path(path).glob("*.lmdb")]):
            yield from frames_of_lmdb(file)
        return
    how = {"subdir": folder, "readonly": True, "lock": False, "create": False}
    with (
        refused_as(f"{path} cannot be read as LMDB"),
        lmdb.open(os.fspath(path), **how) as environment,
        environment.begin() as transaction,
    ):
        room = Room(os.path.join(path, "data.mdb") if folder else path)
        ids = [key for key, _ in transaction.cursor() if key not in _NOT_ROWS]
        for key in sorted(ids, key=_number):
            with refused_as(f"{path}: a row is damaged"):
                atoms = of_row(_row(path, transaction.get(key), key, room))
            yield atoms


def _number(key: bytes) -> tuple[int, bytes]:
    return (int(key), b"") if key.isdigit() else (0, key)


def _row(path, value: bytes, key: bytes, room: Room) -> AtomsRow:
    try:
        text = zlib.decompressobj().decompress(value, room.left + 1)
        room.take(len(text))
        fields = decode(text.decode("utf-8"))
    except (zlib.error, json.JSONDecodeError, UnicodeDecodeError) as err:
        raise DataError(
            f"{path} does not hold rows of ASE as compressed JSON ({err}); files of pickled "
            "objects are not read, since they can run any code: write .aselmdb or extended XYZ"
        ) from err
    for name in all_properties:
        if isinstance(fields.get(name), list):
            fields[name] = np.array(fields[name])
    return AtomsRow(fields | {"id": _number(key)[0]})
