"""A trained run as a calculator of ASE."""

import dataclasses
import difflib

import ase.calculators.calculator
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Sample, Shape, Structure, collate, neighbor_list
from eqfuse.data.errors import FlownApartError
from eqfuse.data.neighbors import gathering_offsets
from eqfuse.data.ordering import renumbered, spatial_order
from eqfuse.data.samples import species_index
from eqfuse.inference.predict import Network

_EDGE_MULTIPLE, _NODE_MULTIPLE = 64, 4
_HEADROOM = 1.1
_DIVERGED = (
    "the dynamics or relaxation has diverged before this step; make its steps shorter, or see what "
    "the structures before it look like"
)

_ARGUMENTS = ("run", "skin", "which", "dtype", "backend", "atoms", "label", "directory")
_OTHER_NAMES = {  # what calculators of mace and nequip call it
    "default_dtype": "here it is called dtype",
    "model_path": "here it is called run",
    "model_paths": "here it is called run, and is one run",
    "compile_path": "here it is called run, and nothing is compiled before",
    "device": "it is that of JAX; set JAX_PLATFORMS=cpu or cuda before the program starts",
}


class Calculator(ase.calculators.calculator.Calculator):
    """Energy, energies of atoms, forces and stress from a trained run.

        atoms.calc = eqfuse.Calculator("runs/first")

    The neighbour list extends by `skin` beyond the cutoff and is used until an atom has moved by
    half of that. A program is compiled for a number of atoms and a number of neighbours with a
    tenth of headroom, so that fluctuations compile nothing. Structures with fewer atoms use the
    same program; after atoms were added, the next program has a tenth of headroom for atoms too.
    The calculator can be copied and pickled. Atoms without a periodic direction have no stress;
    energies are totals, in eV, with the reference energies.

    Args:
      run: the run's folder, or a file of its network (.safetensors).
      skin: Å.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.
      atoms, label, directory: as in ASE's calculators.
    Raises:
      CheckpointError: no readable checkpoint.
      TypeError: an unknown argument; names the one that was probably meant.
      ValueError: a skin that is negative or not finite, another `which` or dtype, or a run that did
        not train a potential.
    """

    implemented_properties = ("energy", "energies", "forces", "stress", "free_energy")

    def __init__(
        self,
        run,
        *,
        skin: float = 0.5,
        which=None,
        dtype=None,
        backend=None,
        atoms=None,
        label=None,
        directory=".",
        **unknown,
    ):
        if unknown:
            raise TypeError("; ".join(map(_unknown_argument, unknown)))
        if not 0 <= skin < np.inf:
            raise ValueError(f"the skin must be zero or more Å, and finite, got {skin}")
        self.network = Network(run, which=which, dtype=dtype, backend=backend)
        self.skin = float(skin)
        self._neighbors = None
        self._shapes = []
        super().__init__(atoms=atoms, label=label, directory=directory)

    @property
    def species(self) -> tuple[int, ...]:
        """Sorted atomic numbers that the network knows."""
        return self.network.species

    @property
    def cutoff(self) -> float:
        """Cutoff of the network, Å."""
        return self.network.cutoff

    @property
    def num_compilations(self) -> int:
        """Number of programs that were compiled so far."""
        return self.network.num_compilations

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        """Compute energy, forces and stress as ASE's calculators do, in eV, eV/Å and eV/Å^3.

        Raises:
          DataError: an element that the run was not trained on, no atoms, atoms at one place,
            positions that are not finite or far apart, or too many pairs of them within cutoff and
            skin (see `eqfuse.data.neighbor_list`), a periodic direction without a lattice vector.
        """
        super().calculate(atoms, properties, system_changes)
        if not np.isfinite(self.atoms.positions).all():
            raise DataError(f"positions are not finite: {_DIVERGED}")
        atoms = self.atoms
        cell = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc).cell
        species = species_index(atoms.numbers, self.species)
        try:
            senders, receivers, shifts, positions, order = self._edges(cell)
        except FlownApartError as err:
            raise FlownApartError(f"{err}; in a simulation: {_DIVERGED}") from err
        sample = Sample(
            positions=positions,
            species=species[order],
            senders=senders,
            receivers=receivers,
            shifts=shifts,
            cell=cell,
            energy=0.0,
            forces=np.zeros((len(species), 3)),
            order=order,
        )
        graph = collate([sample], self._padded(sample), self.network.dtype).graph
        [predicted] = self.network.compute(graph, [sample])
        self.results = {
            "energy": predicted.energy,
            "free_energy": predicted.energy,
            "energies": predicted.energies,
            "forces": predicted.forces,
        }
        if predicted.stress is not None:
            self.results["stress"] = full_3x3_to_voigt_6_stress(predicted.stress)

    def _edges(self, cell):
        """Return the pairs within the cutoff, the positions that they join, and the atoms' order.

        They are of a list that is made anew when atoms have moved too far.
        """
        atoms, listed = self.atoms, self._neighbors
        fresh = (
            listed is None
            or not np.array_equal(listed.cell, cell)
            or not np.array_equal(listed.pbc, atoms.pbc)
            or listed.positions.shape != atoms.positions.shape
            or _largest_move(listed.positions, atoms.positions) > self.skin / 2
        )
        if fresh:
            senders, receivers, shifts = neighbor_list(
                atoms.positions, cell, atoms.pbc, self.cutoff + self.skin
            )
            order = spatial_order(atoms.positions, cell, atoms.pbc, self.cutoff)
            senders, receivers, shifts = renumbered(order, senders, receivers, shifts)
            offsets, shifts = gathering_offsets(atoms.positions[order], senders, receivers, shifts)
            made_for = atoms.positions.copy(), cell.copy(), atoms.pbc.copy()
            listed = _Neighbors(*made_for, order, offsets, senders, receivers, shifts)
            self._neighbors = listed
        positions = atoms.positions[listed.order] - listed.offsets
        senders, receivers, shifts = listed.senders, listed.receivers, listed.shifts
        vectors = positions[senders] + shifts - positions[receivers]
        near = np.einsum("ei,ei->e", vectors, vectors) < self.cutoff**2
        return senders[near], receivers[near], shifts[near], positions, listed.order

    def _padded(self, sample: Sample) -> Shape:
        """Return a compiled shape with room for the sample, or a new one with less padding."""
        n_nodes, n_edges = sample.num_atoms + 1, sample.num_edges
        fitting = [
            shape
            for shape in self._shapes
            if n_nodes <= shape.n_nodes <= 2 * n_nodes
            and n_edges <= shape.n_edges <= 2 * _room(n_edges, _EDGE_MULTIPLE)
        ]
        if fitting:
            return min(fitting, key=lambda shape: (shape.n_edges, shape.n_nodes))
        # Dynamics keep their atoms, and pay for no others; where one came, more may.
        if any(shape.n_nodes != n_nodes for shape in self._shapes):
            n_nodes = _room(n_nodes, _NODE_MULTIPLE)
        self._shapes.append(Shape(n_nodes, _room(n_edges, _EDGE_MULTIPLE), 2))
        return self._shapes[-1]


@dataclasses.dataclass(frozen=True)
class _Neighbors:
    """A list of pairs, and the structure for which it was made.

    Atoms are numbered as in `order`, except in `positions`. `shifts` are between the images to
    which `offsets` move the atoms, see `gathering_offsets`.
    """

    positions: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    order: np.ndarray
    offsets: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    shifts: np.ndarray


def _unknown_argument(name: str) -> str:
    """Return what to do instead of passing an argument that the calculator does not have."""
    if name in _OTHER_NAMES:
        return f"Calculator has no argument {name}: {_OTHER_NAMES[name]}"
    near = difflib.get_close_matches(name, _ARGUMENTS, n=1)
    hint = f"nearest: {near[0]}" if near else f"it has {', '.join(_ARGUMENTS)}"
    return f"Calculator has no argument {name}; {hint}"


def _room(count: int, multiple: int) -> int:
    """Return a count of atoms or edges plus a tenth and one, rounded up to a multiple."""
    return -(-int(_HEADROOM * count + 1) // multiple) * multiple


def _largest_move(before, now) -> float:
    return float(np.sqrt(((now - before) ** 2).sum(axis=1).max()))
