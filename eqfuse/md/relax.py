"""Relaxation of structures of any sizes to the nearest minimum of the energy, several at once."""

import dataclasses
from typing import NamedTuple

import ase
import jax
import jax.numpy as jnp
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.filters import UnitCellFilter
from ase.optimize import FIRE
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Structure
from eqfuse.data.samples import species_index
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.evaluator import Geometry, Sizes, evaluate, strain_derivatives
from eqfuse.inference.lists import Pairs, list_side_by_side, naming, padded_pairs
from eqfuse.inference.network import Module, Network
from eqfuse.md.settings import RelaxSettings
from eqfuse.md.structures import require_apart

STEP, LONGEST_STEP, MOST_MOVED = 0.1, 1.0, 0.2
_PATIENCE, _FASTER, _SLOWER, _MIXING, _LESS_MIXING = 5, 1.1, 0.5, 0.1, 0.99


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The relaxation of one structure."""

    atoms: ase.Atoms  # at the end, with energy and forces, and stress if periodic
    first_energy: float  # eV, before
    largest: float  # eV/Å, force; of a cell, its share by atom (as in ASE's UnitCellFilter)
    steps: int  # that were taken
    is_relaxed: bool  # whether the largest force is below `fmax`


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
    run, network = network, Network(network, dtype=settings.dtype, backend=settings.backend)
    for number, atoms in enumerate(frames):
        with naming(f"frame {number}"):
            _require_possible(atoms, network, settings)
    if settings.dispersion is not None:
        return _relax_on_host(frames, settings, run)
    network = network.of_elements([number for atoms in frames for number in atoms.numbers])
    outcomes = []
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        batch = _Batch(network, settings)
        for group in _groups(frames, settings.batch_atoms):
            outcomes += batch.relax([frames[k] for k in group], group[0])
    return outcomes


def _relax_on_host(frames, settings: RelaxSettings, run) -> list[Outcome]:
    """Relax structures with dispersion, which is computed on the host, by ASE's FIRE."""
    calculator = Calculator(
        run,
        skin=settings.skin,
        dtype=settings.dtype,
        backend=settings.backend,
        dispersion=settings.dispersion,
    )
    outcomes = []
    for frame in frames:
        atoms = frame.copy()
        atoms.calc = calculator
        first = atoms.get_potential_energy()
        pressure = settings.pressure * units.GPa
        moved = UnitCellFilter(atoms, scalar_pressure=pressure) if settings.cell else atoms
        optimizer = FIRE(moved, logfile=None)
        optimizer.run(fmax=settings.fmax, steps=settings.steps)
        largest = float(np.linalg.norm(moved.get_forces(), axis=1).max())
        names = ("energy", "forces", *(["stress"] if atoms.pbc.all() else []))
        results = {name: calculator.get_property(name, atoms) for name in names}
        relaxed = atoms.copy()
        relaxed.info["dispersion"] = str(calculator.dispersion)
        relaxed.calc = SinglePointCalculator(relaxed, **results)
        steps, is_relaxed = optimizer.get_number_of_steps(), largest < settings.fmax
        outcomes.append(Outcome(relaxed, first, largest, steps, is_relaxed))
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


class _Initial(NamedTuple):
    """Structures side by side, as they are before the relaxation; the last one is padding."""

    positions: jax.Array  # [n_nodes, 3] Å
    cells: jax.Array  # [n_graphs, 3, 3] Å
    species: jax.Array  # [n_nodes] int32
    index: jax.Array  # [n_nodes] int32, the structure of each atom
    moves: jax.Array  # [n_nodes] bool, atoms that are neither fixed nor padding
    sizes: jax.Array  # [n_graphs] numbers of atoms


class _Fire(NamedTuple):
    """The state of FIRE between two steps; coordinates as in ASE's UnitCellFilter."""

    positions: jax.Array  # [n_nodes, 3] Å, before the deformation of the cell
    deformation: jax.Array  # [n_graphs, 3, 3], F, of positions and cells: r F^T
    velocities: tuple[jax.Array, jax.Array]  # of positions, and of deformation times atoms
    step: jax.Array  # [n_graphs] the timestep of each structure
    mixing: jax.Array  # [n_graphs] of velocity and force
    good: jax.Array  # [n_graphs] int32, good steps in a row
    steps: jax.Array  # [n_graphs] int32


class _Relaxed(NamedTuple):
    """The results of a call."""

    fire: _Fire  # the state, to go on from
    energies: jax.Array  # [n_nodes] eV, without reference energies
    forces: jax.Array  # [n_nodes, 3] eV/Å, also on fixed atoms
    strain: jax.Array  # [n_graphs, 3, 3] eV, the derivative by the strain
    largest: jax.Array  # [n_graphs] eV/Å, the largest force of what is relaxed
    is_listed: jax.Array  # whether the list holds all pairs; if not, no result is right
    num_edges: jax.Array  # int32, that were needed


def _place(structures: _Initial, fire: _Fire) -> tuple[jax.Array, jax.Array]:
    """Return positions and cells as they are now, Å."""
    of_node = fire.deformation[structures.index]
    positions = jnp.einsum("ai,aji->aj", fire.positions, of_node)
    return positions, jnp.einsum("gki,gji->gkj", structures.cells, fire.deformation)


def _step(structures, relaxed: _Relaxed, forces, limits) -> _Fire:
    """Return the state after a step of each structure that is not relaxed yet.

    The forces are those on the coordinates of `_Fire`, of atoms and of cells; the limits are the
    largest force (eV/Å) and number of steps.
    """
    fire, index, count = relaxed.fire, structures.index, len(structures.cells)

    def dot(one, other):
        """Return the product over the coordinates of each structure."""
        of_atoms = jax.ops.segment_sum(jnp.sum(one[0] * other[0], axis=1), index, count)
        return of_atoms + jnp.sum(one[1] * other[1], axis=(1, 2))

    def each(function, one, other, *factors):
        atoms = function(one[0], other[0], *(f[index][:, None] for f in factors))
        return atoms, function(one[1], other[1], *(f[:, None, None] for f in factors))

    velocities = fire.velocities
    downhill = dot(forces, velocities) > 0
    norm = jnp.sqrt(dot(velocities, velocities) / jnp.maximum(dot(forces, forces), 1e-300))
    mixed = each(
        lambda v, f, a, n, good: jnp.where(good, (1 - a) * v + a * n * f, 0),
        *(velocities, forces, fire.mixing, norm, downhill),
    )
    began = fire.steps > 0
    patient = downhill & (fire.good > _PATIENCE)
    faster = jnp.minimum(fire.step * _FASTER, LONGEST_STEP)
    timestep = jnp.where(patient, faster, jnp.where(downhill, fire.step, fire.step * _SLOWER))
    timestep = jnp.where(began, timestep, STEP)
    mixing = jnp.where(patient, fire.mixing * _LESS_MIXING, fire.mixing)
    mixing = jnp.where(downhill, mixing, _MIXING)
    kicked = each(lambda v, f, dt: v + dt * f, mixed, forces, timestep)
    length = timestep * jnp.sqrt(dot(kicked, kicked))
    share = timestep * jnp.minimum(1, MOST_MOVED / jnp.maximum(length, 1e-300))
    goes_on = (relaxed.largest >= limits[0]) & (fire.steps < limits[1])
    moved = each(lambda v, _, share: share * v, kicked, kicked, jnp.where(goes_on, share, 0))
    of_cells = moved[1] / jnp.maximum(structures.sizes, 1)[:, None, None]
    return _Fire(
        positions=fire.positions + moved[0],
        deformation=fire.deformation + of_cells,
        velocities=kicked,
        step=timestep,
        mixing=mixing,
        good=jnp.where(downhill, fire.good + 1, 0),
        steps=fire.steps + goes_on,
    )


def _compile_relax(module: Module, settings: RelaxSettings):
    """Compile a function: params, structures, fire, pairs, listed, limits -> `_Relaxed`.

    It takes the steps of ASE's FIRE for each structure (Bitzek et al. 2006, Phys. Rev. Lett. 97,
    170201, https://doi.org/10.1103/PhysRevLett.97.170201), until all are relaxed or have taken
    their steps, or the list is too short. `listed` is the state for which the list was made.
    """

    def relax(params, structures, fire, pairs: Pairs, listed: _Fire, limits, *, size) -> _Relaxed:
        index, count = structures.index, len(structures.cells)

        def evaluated(fire) -> tuple[_Relaxed, tuple[jax.Array, jax.Array]]:
            positions, cells = _place(structures, fire)
            atoms = jnp.sum(structures.sizes)
            geometry = Geometry(positions, cells, index, structures.species, atoms)
            done = evaluate(module, params, pairs, geometry, size=size)
            strain, needed = strain_derivatives(done, geometry), done.near.num_edges
            forces = _generalised(structures, fire, cells, done.forces, strain, settings)
            squares = jax.ops.segment_max(jnp.sum(forces[0] ** 2, axis=1), index, count)
            squares = jnp.maximum(squares, jnp.max(jnp.sum(forces[1] ** 2, axis=2), axis=1))
            largest = jnp.sqrt(jnp.where(structures.sizes > 0, squares, 0))
            reach = module.cutoff, settings.skin
            is_listed = _holds_all(structures, fire, listed, positions, *reach) & (needed <= size)
            found = fire, done.node_energy, done.forces, strain, largest, is_listed, needed
            return _Relaxed(*found), forces

        def goes_on(carry):
            relaxed = carry[0]
            open_ones = (relaxed.largest >= limits[0]) & (relaxed.fire.steps < limits[1])
            return relaxed.is_listed & jnp.any(open_ones)

        def body(carry):
            return evaluated(_step(structures, *carry, limits))

        return jax.lax.while_loop(goes_on, body, evaluated(fire))[0]

    return jax.jit(relax, static_argnames="size")


def _generalised(structures: _Initial, fire: _Fire, cells, forces, strain, settings):
    """Return the forces on the coordinates of `_Fire`."""
    forces = jnp.where(structures.moves[:, None], forces, 0)
    forces = jnp.einsum("ai,aij->aj", forces, fire.deformation[structures.index])
    if not settings.cell:
        return forces, jnp.zeros_like(strain)
    pressure = settings.pressure * units.GPa
    volume = jnp.abs(jnp.sum(cells[:, 0] * jnp.cross(cells[:, 1], cells[:, 2]), axis=1))
    virial = -strain - (pressure * volume)[:, None, None] * jnp.eye(3)
    transposed = jnp.linalg.solve(fire.deformation, jnp.swapaxes(virial, 1, 2))
    virial = jnp.swapaxes(transposed, 1, 2) / jnp.maximum(structures.sizes, 1)[:, None, None]
    return forces, virial


def _holds_all(structures: _Initial, fire: _Fire, listed: _Fire, positions, cutoff, skin):
    """See `eqfuse.inference.lists.is_valid`, with a bound of the singular value."""
    turned = jnp.linalg.solve(
        jnp.swapaxes(listed.deformation, 1, 2), jnp.swapaxes(fire.deformation, 1, 2)
    )
    stretch = 1 - jnp.sqrt(jnp.sum((turned - jnp.eye(3)) ** 2, axis=(1, 2)))
    before, _ = _place(structures, listed)
    moved = positions - jnp.einsum("ai,aij->aj", before, turned[structures.index])
    moved = jnp.sqrt(jnp.sum(moved**2, axis=1))
    room = ((cutoff + skin) * stretch - cutoff)[structures.index]
    return jnp.all((2 * moved <= room) | (room > 0) & (moved == 0))


class _Batch:
    """Relaxes groups of structures by one program, whose sizes grow."""

    def __init__(self, network: Network, settings: RelaxSettings):
        self._network, self._settings = network, settings
        self._compiled = _compile_relax(network.module, settings)
        self._sizes = Sizes()

    def relax(self, frames: list[ase.Atoms], first: int) -> list[Outcome]:
        """Relax frames, which are number `first` and those after it."""
        needed = Sizes(nodes=sum(map(len, frames)), graphs=len(frames) + 1)
        self._sizes = self._sizes.grown(needed)
        structures = self._side_by_side(frames)
        count = len(structures.cells)
        fire = _Fire(
            positions=structures.positions,
            deformation=np.tile(np.eye(3), (count, 1, 1)),
            velocities=(np.zeros_like(structures.positions), np.zeros((count, 3, 3))),
            step=np.full(count, STEP),
            mixing=np.full(count, _MIXING),
            good=np.zeros(count, np.int32),
            steps=np.zeros(count, np.int32),
        )
        before = self._run(structures, fire, frames, first, 0)
        after = self._run(structures, before.fire, frames, first, self._settings.steps)
        return self._outcomes(frames, structures, before, after)

    def _run(self, structures, fire, frames, first: int, steps: int):
        """Take steps until all are relaxed or have taken as many, with as many lists as needed."""
        limits = np.float64(self._settings.fmax), np.int32(steps)
        while True:
            pairs = self._list(structures, fire, frames)
            arguments = self._network.params, structures, fire, pairs, fire, limits
            done = jax.device_get(self._compiled(*arguments, size=self._sizes.edges))
            finite = np.isfinite(done.largest)
            if not finite.all():
                number = first + int(np.argmin(finite))
                raise DataError(f"frame {number}: forces are not finite; look at the structure")
            if done.is_listed:
                return done
            fire = done.fire
            self._sizes = self._sizes.grown(Sizes(edges=int(done.num_edges)))

    def _side_by_side(self, frames) -> _Initial:
        """Put the frames side by side, padded to the sizes of the program."""
        count, nodes, graphs = sum(map(len, frames)), self._sizes.nodes, self._sizes.graphs
        sizes, moves = np.zeros(graphs, np.int32), np.arange(nodes) < count
        cells, positions = np.zeros((graphs, 3, 3)), np.zeros((nodes, 3))
        species, index = np.zeros(nodes, np.int32), np.full(nodes, graphs - 1, np.int32)
        sizes[: len(frames)] = [len(atoms) for atoms in frames]
        index[:count] = np.repeat(np.arange(len(frames)), sizes[: len(frames)])
        positions[:count] = np.concatenate([atoms.positions for atoms in frames])
        numbers = np.concatenate([atoms.numbers for atoms in frames])
        species[:count] = species_index(numbers, self._network.species)
        for k, (start, atoms) in enumerate(zip(np.cumsum(sizes) - sizes, frames, strict=False)):
            cells[k] = atoms.cell.array * atoms.pbc[:, None]
            for constraint in atoms.constraints:
                moves[start + constraint.index] = False
        return _Initial(positions, cells, species, index, moves, sizes)

    def _list(self, structures: _Initial, fire, frames):
        positions, cells = jax.device_get(_place(structures, fire))
        ends = np.cumsum(structures.sizes)
        own = [(positions[ends[k] - len(a) : ends[k]], cells[k]) for k, a in enumerate(frames)]
        reach = self._network.cutoff, self._settings.skin
        *pairs, near = list_side_by_side(own, [atoms.pbc for atoms in frames], *reach)
        self._sizes = self._sizes.grown(Sizes(pairs=len(pairs[0]), edges=near))
        return padded_pairs(*pairs, self._sizes.nodes, self._sizes.pairs)

    def _outcomes(self, frames, structures: _Initial, before, after) -> list[Outcome]:
        outcomes, stop = [], 0
        positions, cells = jax.device_get(_place(structures, after.fire))
        for k, atoms in enumerate(frames):
            own = slice(stop, stop := stop + len(atoms))
            references = self._network.references[structures.species[own]].sum()
            first, last = (float(done.energies[own].sum() + references) for done in (before, after))
            relaxed = atoms.copy()
            if atoms.pbc.any() and self._settings.cell:
                relaxed.set_cell(cells[k])
            relaxed.set_positions(positions[own], apply_constraint=False)
            results = {"energy": last, "forces": after.forces[own]}
            if atoms.pbc.all():
                stress = after.strain[k] / relaxed.get_volume()
                results["stress"] = full_3x3_to_voigt_6_stress(stress)
            relaxed.calc = SinglePointCalculator(relaxed, **results)
            largest = float(after.largest[k])
            steps, is_relaxed = int(after.fire.steps[k]), largest < self._settings.fmax
            outcomes.append(Outcome(relaxed, first, largest, steps, is_relaxed))
        return outcomes
