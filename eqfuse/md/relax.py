"""`eqfuse relax`: structures of any sizes at the nearest minimum of the energy, several at once."""

import dataclasses

import ase
import jax
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Structure
from eqfuse.data.samples import species_index
from eqfuse.inference.evaluator import Sizes
from eqfuse.inference.lists import list_side_by_side, naming, padded_pairs
from eqfuse.inference.network import Network
from eqfuse.md.fire import Structures, begin, compile_relax, place
from eqfuse.md.settings import RelaxSettings
from eqfuse.md.start import require_apart


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The relaxation of one structure.

    Attributes:
      atoms: at the end, with energy and forces, and stress if periodic.
      first_energy: eV, before.
      largest: eV/Å, the largest force; of a cell, its share by atom (as in ASE's UnitCellFilter).
      steps: that were taken.
      is_relaxed: whether the largest force is below `fmax`.
    """

    atoms: ase.Atoms
    first_energy: float
    largest: float
    steps: int
    is_relaxed: bool


def relax(network, frames, settings: RelaxSettings | None = None, **changes) -> list[Outcome]:
    """Relax structures by FIRE, each as ASE's FIRE does alone.

    Cells relax with the coordinates of ASE's UnitCellFilter. Constraints of type FixAtoms hold.

    Args:
      network: the folder of a run, or a file of its network (.safetensors).
      frames: list of `ase.Atoms`; they are not changed.
      settings: None for the defaults.
      changes: settings by name, such as fmax=0.001.
    Raises:
      ConfigError: impossible settings.
      DataError: atoms that overlap, are not finite, of unknown elements, periodic without a cell,
        with other constraints, or without three periodic directions where cells relax; or forces
        that became infinite; names the frame.
      CheckpointError: no readable network.
    """
    settings = dataclasses.replace(settings or RelaxSettings(), **changes)
    network = Network(network, dtype=settings.dtype, backend=settings.backend)
    for number, atoms in enumerate(frames):
        with naming(f"frame {number}"):
            _require_possible(atoms, network, settings)
    outcomes = []
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        batch = _Batch(network, settings)
        for group in _groups(frames, settings.batch_atoms):
            outcomes += batch.relax([frames[k] for k in group], group[0])
    return outcomes


def _require_possible(atoms: ase.Atoms, network: Network, settings: RelaxSettings):
    structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    species_index(atoms.numbers, network.species)
    require_apart(atoms.positions, structure.cell, atoms.pbc)
    if not all(isinstance(constraint, FixAtoms) for constraint in atoms.constraints):
        raise DataError("of constraints, only FixAtoms is known here; use ASE's optimisers")
    if settings.cell and not atoms.pbc.all():
        raise DataError(f"cell=true needs three periodic directions, and pbc={atoms.pbc.tolist()}")
    if settings.cell and atoms.constraints:
        raise DataError("cell=true moves all atoms with the cell; remove the constraints")


def _groups(frames, most: int) -> list[list[int]]:
    """Return the numbers of frames that are relaxed together, of at most so many atoms."""
    groups, atoms = [], most + 1
    for number, frame in enumerate(frames):
        if atoms + len(frame) > most:
            groups.append([])
            atoms = 0
        groups[-1].append(number)
        atoms += len(frame)
    return groups


class _Batch:
    """Relaxes groups of structures by one program, whose sizes grow."""

    def __init__(self, network: Network, settings: RelaxSettings):
        self._network, self._settings = network, settings
        pressure = settings.pressure * units.GPa
        self._compiled = compile_relax(network.module, settings.skin, pressure)
        self._sizes = Sizes()

    def relax(self, frames: list[ase.Atoms], first: int) -> list[Outcome]:
        """Relax frames, which are number `first` and those after it."""
        needed = Sizes(nodes=sum(map(len, frames)), graphs=len(frames) + 1)
        self._sizes = self._sizes.grown(needed)
        structures = self._structures(frames)
        fire = jax.device_get(begin(structures))
        before = self._run(structures, fire, frames, first, 0)
        after = self._run(structures, before.fire, frames, first, self._settings.steps)
        return self._outcomes(frames, structures, before, after)

    def _run(self, structures, fire, frames, first: int, steps: int):
        """Take steps until all are relaxed or have taken as many, with as many lists as needed."""
        limits = np.float64(self._settings.fmax), np.int32(steps)
        while True:
            pairs = self._list(structures, fire, frames)
            arguments = self._network._params, structures, fire, pairs, fire, limits
            done = jax.device_get(self._compiled(*arguments, size=self._sizes.edges))
            finite = np.isfinite(done.largest)
            if not finite.all():
                number = first + int(np.argmin(finite))
                raise DataError(f"frame {number}: forces are not finite; look at the structure")
            if done.is_listed:
                return done
            fire = done.fire
            self._sizes = self._sizes.grown(Sizes(edges=int(done.num_edges)))

    def _structures(self, frames) -> Structures:
        """Put the frames side by side, padded to the sizes of the program."""
        count, nodes, graphs = sum(map(len, frames)), self._sizes.nodes, self._sizes.graphs
        sizes, moves = np.zeros(graphs, np.int32), np.ones(nodes, bool)
        cells, periodic = np.zeros((graphs, 3, 3)), np.zeros(graphs, bool)
        positions, species = np.zeros((nodes, 3)), np.zeros(nodes, np.int32)
        sizes[: len(frames)] = [len(atoms) for atoms in frames]
        index = np.full(nodes, graphs - 1, np.int32)
        index[:count] = np.repeat(np.arange(len(frames)), sizes[: len(frames)])
        positions[:count] = np.concatenate([atoms.positions for atoms in frames])
        numbers = np.concatenate([atoms.numbers for atoms in frames])
        species[:count] = species_index(numbers, self._network.species)
        for k, start, atoms in zip(range(graphs), np.cumsum(sizes) - sizes, frames, strict=False):
            cells[k], periodic[k] = atoms.cell.array * atoms.pbc[:, None], self._settings.cell
            for constraint in atoms.constraints:
                moves[start + constraint.index] = False
        return Structures(positions, cells, species, index, moves, periodic, sizes, np.int32(count))

    def _list(self, structures: Structures, fire, frames):
        """Return the pairs of all structures as they are now."""
        positions, cells = jax.device_get(place(structures, fire))
        ends = np.cumsum(structures.sizes)
        own = [(positions[ends[k] - len(a) : ends[k]], cells[k]) for k, a in enumerate(frames)]
        reach = self._network.cutoff, self._settings.skin
        *pairs, near = list_side_by_side(own, [atoms.pbc for atoms in frames], *reach)
        self._sizes = self._sizes.grown(Sizes(pairs=len(pairs[0]), edges=near))
        return padded_pairs(*pairs, self._sizes.nodes, self._sizes.pairs)

    def _outcomes(self, frames, structures: Structures, before, after) -> list[Outcome]:
        outcomes, stop = [], 0
        for k, atoms in enumerate(frames):
            own = slice(stop, stop := stop + len(atoms))
            references = self._network.references[structures.species[own]].sum()
            first, last = (float(done.energies[own].sum() + references) for done in (before, after))
            relaxed = atoms.copy()
            if atoms.pbc.any() and self._settings.cell:
                relaxed.set_cell(after.cells[k])
            relaxed.set_positions(after.positions[own], apply_constraint=False)
            results = {"energy": last, "forces": after.forces[own]}
            if atoms.pbc.all():
                stress = after.strain[k] / relaxed.get_volume()
                results["stress"] = full_3x3_to_voigt_6_stress(stress)
            relaxed.calc = SinglePointCalculator(relaxed, **results)
            largest = float(after.largest[k])
            taken, is_relaxed = int(after.fire.taken[k]), largest < self._settings.fmax
            outcomes.append(Outcome(relaxed, first, largest, taken, is_relaxed))
        return outcomes
