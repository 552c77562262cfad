"""The neighbour list of a calculator, and the sizes of the program that it is padded for."""

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from eqfuse.data.neighbors import spatial_order
from eqfuse.data.samples import species_index
from eqfuse.data.structures import FlownApartError
from eqfuse.inference.pairs import (
    Pairs,
    is_valid,
    list_side_by_side,
    padded_pairs,
    room_for_edges,
    room_for_pairs,
)
from eqfuse.inference.program import Program, Sizes

DIVERGED = (
    "the dynamics or relaxation has diverged before this step; make its steps shorter, or see what "
    "the structures before it look like"
)
_NODE_HEADROOM, _NODE_MULTIPLE = 1.1, 4
_FEW_ATOMS, _SKIN_OF_FEW, _SKIN = 32, 1.5, 0.7  # Å
_MOST_OWN, _MOST_OTHERS = 2, 1.2
"""How many times as large as needed a program may be that this calculator, or another, needed."""


class State(NamedTuple):
    """What results depend on of atoms, in bytes, which are compared quickly."""

    positions: bytes
    numbers: bytes
    cell: bytes
    pbc: bytes

    @classmethod
    def of(cls, atoms) -> "State":
        """Return the state of `ase.Atoms`."""
        arrays = atoms.arrays
        parts = arrays["positions"], arrays["numbers"], atoms.cell.array, atoms.pbc
        return cls(*[part.tobytes() for part in parts])


@dataclasses.dataclass(eq=False)
class Listed:
    """A neighbour list on the device, the structure for which it was made, and that of now.

    Atoms are numbered as in `order` on the device.

    Attributes:
      positions, cell: of the structure for which the list was made.
      skin: Å, by which it goes beyond the cutoff.
      order: [n_atoms] the atom that each node is.
      number: [n_atoms] the node that each atom is.
      references: [n_atoms] eV, in the order of the structure.
      sizes: of the program.
      pairs, of_nodes: the list, and species and number of the atoms, on the device.
      state: of now; the numbers and the periodic directions are those of the list.
      cell_now: the cell of now, where directions without a vector have zeros.
      geometry: [n_nodes + 3, 3] Å, positions of the nodes, and below them `cell_now`.
      volume: of the cell of now, Å^3.
    """

    positions: np.ndarray
    cell: np.ndarray
    skin: float
    order: np.ndarray
    number: np.ndarray
    references: np.ndarray
    sizes: Sizes
    pairs: Pairs
    of_nodes: list[jax.Array]
    state: State
    geometry: np.ndarray | None = None
    cell_now: np.ndarray | None = None
    volume: float = 0.0

    def is_valid(self, state: State, atoms, cell, cutoff: float) -> bool:
        """Return whether the list holds all pairs of atoms within the cutoff."""
        before = self.state
        return (before.numbers, before.pbc) == (state.numbers, state.pbc) and is_valid(
            (self.positions, self.cell), (atoms.positions, cell), cutoff, self.skin
        )

    def move(self, state: State, atoms, cell):
        """Take atoms, of a state, and their cell as those of now."""
        self.state = state
        if self.cell_now is not cell:
            self.cell_now, self.volume = cell, abs(np.linalg.det(cell))
        self.geometry = np.zeros((self.sizes.nodes + 3, 3))
        self.geometry[: len(self.order)] = atoms.positions.take(self.order, axis=0)
        self.geometry[-3:] = cell

    def in_structure(self, of_nodes: np.ndarray) -> np.ndarray:
        """Return what the nodes have, in the order of the structure."""
        return of_nodes.take(self.number, axis=0)


class Lister:
    """Makes the neighbour lists of a calculator, for programs that are shared with others.

    Args:
      program: of the network.
      known: sorted atomic numbers that the network knows.
      references: their energies, eV.
      cutoff: Å.
      skin: Å, by which lists go beyond the cutoff; None: see `skin_of`.
    """

    def __init__(
        self,
        program: Program,
        known: tuple[int, ...],
        references,
        cutoff: float,
        skin: float | None,
    ):
        self._program, self._known, self._references = program, known, references
        self._cutoff, self._skin = cutoff, skin
        self._used = set()

    def list(self, atoms, cell) -> Listed:
        """Return a neighbour list of atoms, on the device.

        Args:
          atoms: `ase.Atoms`.
          cell: [3, 3] Å, with zeros for directions without a vector.
        Raises:
          DataError: see `eqfuse.Calculator.calculate`.
        """
        positions, pbc, count = atoms.positions, atoms.pbc, len(atoms)
        species = species_index(atoms.numbers, self._known)
        skin = skin_of(count) if self._skin is None else self._skin
        try:
            structure = positions, cell
            *pairs, edges = list_side_by_side([structure], [pbc], self._cutoff, skin)
        except FlownApartError as err:
            raise FlownApartError(f"{err}; in a simulation: {DIVERGED}") from err
        order = spatial_order(positions, cell, pbc, self._cutoff)
        sizes = self.sizes(count, edges, len(pairs[0]))
        number = np.argsort(order)
        ends = number[pairs[0]], number[pairs[1]]
        pairs = padded_pairs(*ends, pairs[2], sizes.nodes, sizes.pairs)
        nodes = np.zeros(sizes.nodes, np.int32)
        nodes[:count] = species[order]
        with jax.enable_x64(True):
            pairs, *of_nodes = jax.device_put((pairs, nodes, np.int32(count)))
        places, references = (order, number), self._references[species]
        made_for = positions.copy(), cell, skin
        return Listed(*made_for, *places, references, sizes, pairs, of_nodes, State.of(atoms))

    def sizes(self, atoms: int, edges: int, pairs: int, nodes: int | None = None) -> Sizes:
        """Return compiled sizes that hold a structure, or new ones with less padding.

        Args:
          atoms, edges, pairs: that they hold at least.
          nodes: their number of nodes; None: any. The number of pairs is then given, too.
        """
        program, limit = self._program, room_for_edges(edges)

        def fits(sizes: Sizes) -> bool:
            most = _MOST_OWN if sizes in self._used else _MOST_OTHERS
            return (
                atoms <= sizes.nodes <= most * atoms
                and edges <= sizes.edges <= most * limit
                and pairs <= sizes.pairs
                and (nodes is None or (nodes, pairs) == sizes[:2])
            )

        with program.lock:
            fitting = list(filter(fits, program.sizes))
            if fitting:
                chosen = min(fitting, key=lambda sizes: (sizes.edges, sizes.nodes, sizes.pairs))
            else:
                chosen = self._new_sizes(atoms, edges, pairs, nodes)
                program.sizes.append(chosen)
        self._used.add(chosen)
        return chosen

    def _new_sizes(self, atoms: int, edges: int, pairs: int, nodes: int | None) -> Sizes:
        if nodes is not None:
            return Sizes(nodes, pairs, room_for_edges(edges))
        if all(sizes.nodes == atoms for sizes in self._used):
            # Dynamics keep their atoms, and pay for no others; where one came, more may.
            return Sizes(atoms, room_for_pairs(pairs), room_for_edges(edges))
        more = -(-int(_NODE_HEADROOM * atoms + 1) // _NODE_MULTIPLE) * _NODE_MULTIPLE
        pairs, edges = (math.ceil(count * more / atoms) for count in (pairs, edges))
        return Sizes(more, room_for_pairs(pairs), room_for_edges(edges))


def skin_of(num_atoms: int) -> float:
    """Return the skin of a calculator to which none is given, Å.

    To make a list of a few atoms takes as long as several steps, and more pairs cost them little.
    """
    return _SKIN_OF_FEW if num_atoms <= _FEW_ATOMS else _SKIN
