"""Structures from HDF5 files in the layout of mace's `mace_prepare_data`."""

import os
from collections.abc import Callable, Iterator

import ase
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse.data.readers.ase_files import as_atoms
from eqfuse.data.readers.format import (
    USUAL_KEYS,
    Keys,
    Room,
    imported,
    refused_as,
    require_file,
)
from eqfuse.data.remarks import CHARGES
from eqfuse.data.structures import DataError, Structure


def frames_of_hdf5(
    path: str | os.PathLike, keys: Keys = USUAL_KEYS
) -> Iterator[Callable[[], ase.Atoms]]:
    """Yield the configurations of a file that mace's `mace_prepare_data` wrote.

    The file has groups config_batch_0, config_batch_1, ... of groups config_0, config_1, ..., each
    with `atomic_numbers`, `positions`, `cell`, `pbc`, `config_type`, `weight`, and the groups
    `properties` and `property_weights`; before mace 0.3.13, properties and weights, such as
    `energy` and `energy_weight`, are in config_0 itself. "None", or a weight of zero, stands for
    what is missing. Virials are read as in extended XYZ.

    References: mace 0.3, mace/data/hdf5_dataset.py.
    """
    require_file(path)
    h5py = imported("h5py", path)
    with refused_as(f"{path} cannot be read as HDF5"), h5py.File(path, "r") as file:
        room, batches = Room(path), _numbered(file, "config_batch_")
        if not batches:
            raise DataError(
                f"{path} has no groups config_batch_0, ... as files of mace_prepare_data; it "
                f"has {', '.join(list(file)[:10]) or 'nothing'}"
            )
        for batch in batches:
            for group in _numbered(batch, "config_"):
                yield lambda group=group: _atoms(group, keys, room)


def _numbered(group, prefix: str) -> list:
    """Return the items of a group named by a prefix and a number, in the order of the numbers."""
    # Names in damaged files are bytes.
    names = [n for n in group if isinstance(n, str) and n.removeprefix(prefix).isdecimal()]
    _require_own(group, names)
    return [group[name] for name in sorted(names, key=lambda n: int(n.removeprefix(prefix)))]


def _require_own(group, names):
    """Refuse links to other files, which may be anything."""
    for name in names:
        if hasattr(group.get(name, getlink=True), "filename"):
            raise DataError(f"{group.name}/{name} is in another file; write one file")


def _values(group, room: Room) -> dict:
    """Return the values of the data sets of a group, without those that are "None"."""
    _require_own(group, group)
    found = {}
    for key, item in group.items():
        if hasattr(item, "shape") and not (item.shape and item.dtype.hasobject):
            if item.is_virtual or item.external:
                raise DataError(f"{item.name} is in another file; write one file")
            room.take(item.nbytes)
            found[key] = item[()]
    text = {k: v.decode("utf-8", "replace") for k, v in found.items() if isinstance(v, bytes)}
    return {key: value for key, value in (found | text).items() if text.get(key) != "None"}


_FRAME = ("atomic_numbers", "positions", "cell", "pbc", "config_type")


def _atoms(group, keys: Keys, room: Room) -> ase.Atoms:
    with refused_as("not a configuration of mace"):
        own = _values(group, room)
        if "properties" in group:
            groups = (group.get(name, {}) for name in ("properties", "property_weights"))
            properties, weights = (_values(one, room) for one in groups)
        else:
            properties = {k: v for k, v in own.items() if k not in _FRAME and "weight" not in k}
            weights = {k.removesuffix("_weight"): own[k] for k in own if k.endswith("_weight")}
        geometry = (own[key] for key in ("atomic_numbers", "positions"))
        pbc = np.broadcast_to(own.get("pbc", False), 3)
        atoms = as_atoms(Structure(*geometry, own.get("cell"), pbc))
        if own.get("config_type", "Default") != "Default":
            atoms.info["config_type"] = own["config_type"]
        named = {**keys._asdict(), "hessian": "hessian", "virials": "virials"}
        given = {f"config_{n}_weight": weights[key] for n, key in named.items() if key in weights}
        for name, weight in {"config_weight": own.get("weight", 1.0), **given}.items():
            atoms.info[name] = float(weight)
        if keys.energy in properties:
            properties[keys.energy] = float(properties[keys.energy])
        known = {k: v for k, v in properties.items() if weights.get(k) != 0 or k == keys.energy}
        atoms.info |= {k: known.pop(k) for k in CHARGES if k in known}
        atoms.calc = SinglePointCalculator(atoms)
        atoms.calc.results.update(known)
        return atoms
