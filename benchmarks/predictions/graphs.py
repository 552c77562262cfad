"""Two structures of real atoms with their edges, in the order that a batch has them."""

from __future__ import annotations

import functools
import os
import pathlib

import ase.build
import ase.io
import numpy as np
from vesin import ase_neighbor_list

from eqfuse import ops

SMALL, LARGE = (135, 2_700), (3_000, 160_000)
SIZES = (SMALL, LARGE)


def molecules(count: int) -> tuple[int, int]:
    """Return the size of so many molecules, as those of `SMALL`."""
    return 27 * count, 540 * count


def data_folder() -> pathlib.Path:
    """Return the folder of published data: EQFUSE_TEST_DATA, or `../shared/data`.

    Raises:
      FileNotFoundError: there is none.
    """
    default = pathlib.Path(__file__).parents[2] / ".." / "shared" / "data"
    folder = pathlib.Path(os.environ.get("EQFUSE_TEST_DATA", default)).resolve()
    if not folder.is_dir():
        raise FileNotFoundError(f"no data sets at {folder}; set EQFUSE_TEST_DATA to their folder")
    return folder


def _molecules(count: int) -> list[ase.Atoms]:
    """Return frames of 3BPA, of 27 atoms each, at 300 K."""
    return ase.io.read(data_folder() / "3bpa" / "train_300K.xyz", index=f":{count}")


def solid() -> ase.Atoms:
    """Return 3,000 atoms of silicon, 5 by 5 by 15 cells, moved by 0.05 Å."""
    atoms = ase.build.bulk("Si", "diamond", a=5.43, cubic=True) * (5, 5, 15)
    atoms.rattle(0.05, seed=0)
    return atoms


@functools.cache
def edges(size: tuple[int, int]) -> ops.Edges:
    """Return the edges of a size: the shortest distances, equally many in each structure.

    Edges are ordered by receiver and then sender, as those of a batch are.

    Args:
      size: `SMALL`, five molecules, `molecules(count)`, or `LARGE`, a solid.
    Raises:
      ValueError: another size.
    """
    count = size[0] // 27
    if size not in (LARGE, molecules(count)):
        raise ValueError(f"there are structures of {SIZES} (nodes, edges), not of {size}")
    structures = [solid()] if size == LARGE else _molecules(count)
    wanted, parts, first = size[1] // len(structures), [], 0
    for atoms in structures:
        i, j, distance = ase_neighbor_list("ijd", atoms, 7.5)
        # both directions of a pair have one distance, up to rounding, and stay together
        nearest = np.lexsort((np.maximum(i, j), np.minimum(i, j), distance.round(9)))[:wanted]
        if len(nearest) < wanted:
            raise ValueError(f"{len(atoms)} atoms have {len(nearest)} edges, {wanted} are wanted")
        parts.append(np.stack([j[nearest], i[nearest]]) + first)
        first += len(atoms)
    senders, receivers = np.concatenate(parts, axis=1)
    if first != size[0]:
        raise ValueError(f"the structures have {first} atoms, {size[0]} are wanted")
    order = np.lexsort((senders, receivers))
    return ops.Edges.from_arrays(senders[order], receivers[order], size[0])
