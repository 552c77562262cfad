"""Structures from HDF5 files in the layout of mace's `mace_prepare_data`."""

import os
from collections.abc import Iterator

import numpy as np

from eqfuse.data.readers.ase_files import stress_of
from eqfuse.data.readers.format import (
    USUAL_KEYS,
    Keys,
    Units,
    imported,
    named,
    refused_as,
    require_file,
)
from eqfuse.data.structures import DataError, Structure, Weights


def iterate_hdf5(
    path: str | os.PathLike, *, keys: Keys = USUAL_KEYS, units: Units | None = None
) -> Iterator[Structure]:
    """Yield the configurations of a file that mace's `mace_prepare_data` wrote.

    The file has groups config_batch_0, config_batch_1, ... of groups config_0, config_1, ..., each
    with `atomic_numbers`, `positions`, `cell`, `pbc`, `config_type`, `weight`, and the groups
    `properties` and `property_weights`. "None" stands for what is missing. Virials are read as in
    `iterate_extxyz`.

    References: mace 0.3, mace/data/hdf5_dataset.py.
    """

    def structure(group, origin: str) -> Structure:
        with refused_as("not a configuration of mace"):
            return _structure(group, keys, units or Units(), origin)

    return named(_groups(path), path, structure)


def _groups(path) -> Iterator:
    require_file(path)
    h5py = imported("h5py", path)
    with refused_as(f"{path} cannot be read as HDF5"), h5py.File(path, "r") as file:
        batches = _numbered(file, "config_batch_")
        if not batches:
            raise DataError(
                f"{path} has no groups config_batch_0, ... as files of mace_prepare_data; it "
                f"has {', '.join(list(file)[:10]) or 'nothing'}"
            )
        for batch in batches:
            yield from _numbered(batch, "config_")


def _numbered(group, prefix: str) -> list:
    """Return the items of a group named by a prefix and a number, in the order of the numbers."""
    # Names in damaged files are bytes.
    names = [n for n in group if isinstance(n, str) and n.removeprefix(prefix).isdecimal()]
    return [group[name] for name in sorted(names, key=lambda n: int(n.removeprefix(prefix)))]


def _value(dataset):
    """Return the value of a data set; None for "None"."""
    value = dataset[()]
    value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return None if isinstance(value, str) and value == "None" else value


def _structure(group, keys: Keys, units: Units, origin: str) -> Structure:
    numbers, positions = (_value(group[key]) for key in ("atomic_numbers", "positions"))
    cell, pbc, config_type, weight = (
        _value(group[key]) if key in group else None
        for key in ("cell", "pbc", "config_type", "weight")
    )
    properties, weights = (
        {key: _value(value) for key, value in group[name].items()} if name in group else {}
        for name in ("properties", "property_weights")
    )
    cell = np.zeros((3, 3)) if cell is None else np.asarray(cell, np.float64)
    common = 1.0 if weight is None else float(weight)
    of_labels = (common * float(weights.get(key, 1.0)) for key in keys)
    volume = abs(np.linalg.det(cell)) if cell.shape == (3, 3) else 0.0
    energy = properties.get(keys.energy)
    return units.structure(
        numbers=numbers,
        positions=positions,
        cell=cell,
        pbc=None if pbc is None else np.broadcast_to(pbc, 3),
        energy=None if energy is None else float(energy),
        forces=properties.get(keys.forces),
        stress=stress_of(properties, keys.stress, volume),
        config_type=None if config_type in (None, "Default") else str(config_type),
        origin=origin,
        weights=Weights(*of_labels, common * float(weights.get("hessian", 1.0))),
        hessian=properties.get("hessian"),
    )
