"""Steps of dynamics on the device, with neighbour lists that are made there when they are due."""

import dataclasses
import functools
import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase import units

from eqfuse.data import DataError
from eqfuse.inference import (
    Geometry,
    Grid,
    Kept,
    Module,
    Needed,
    Network,
    Pairs,
    Placed,
    Sizes,
    evaluate_pairs,
    list_structures,
    spread_of_atoms,
    strain_derivatives,
)
from eqfuse.md.integrators import CHAIN, Integrator, State, volume
from eqfuse.md.settings import Settings
from eqfuse.runs import give_back
from eqfuse.train import Dispersion

_SHRINKING = 0.94  # of lengths of a cell under pressure, before other boxes are needed
_GROWING = 1.2  # of the waves of sums of charges, where a cell has outgrown them
MOST_STEPS = 100
"""Steps that one call can take."""
_NOTHING = Needed(np.int32(0), np.int32(0), np.bool_(False))
RUNNING, LIMIT, OVERFLOW = range(3)
"""Why a call returned: all steps are done, a limit was passed, or arrays are too small."""
COLUMNS = (
    "potential",
    "kinetic",
    "temperature",
    "force",
    "conserved",
    "pressure",
    "volume",
    "spread",
)
"""Columns of the rows of a call, in eV, K, eV/Å, eV/Å^3, Å^3 and eV."""
NUMBERS = (
    *("temperature", "friction", "thermostat_time", "pressure", "pressure_time", "compressibility"),
    *("skin", "max_force", "max_temperature", "max_spread"),
)
"""Settings that are arguments of a compiled program, which is one for all of their values."""


class Constants(NamedTuple):
    """Constants of the structures of a batch, which have an axis in front of all arrays.

    They are padded to the same number of atoms, by atoms of no mass.
    """

    species: jax.Array  # [n_structures, n_atoms] int32
    masses: jax.Array  # [n_structures, n_atoms] atomic mass units; zero for padding
    freedoms: jax.Array  # [n_structures] degrees of freedom
    seeds: jax.Array  # [n_structures] of the noise
    charges: jax.Array  # [n_structures] e, the total charges


class Room(NamedTuple):
    """The sizes that a program is compiled for."""

    grid: Grid
    sizes: Sizes  # pairs of a structure, edges within the cutoff of all


class Listing(NamedTuple):
    """The neighbour list of all structures, and the positions and cells for which it was made.

    Positions that are infinite mean that a list has still to be made.
    """

    pairs: Pairs
    positions: jax.Array
    cell: jax.Array


class Most(NamedTuple):
    """The most that was needed."""

    needed: Needed
    edges: jax.Array  # of all structures
    lists: jax.Array  # that were made


class Advanced(NamedTuple):
    """Results of a call."""

    state: State  # the last good state
    listing: Listing  # to be passed to the next call
    reason: jax.Array  # RUNNING, LIMIT or OVERFLOW
    rows: jax.Array  # [MOST_STEPS, n_structures, len(COLUMNS)], without reference energies
    most: Most  # that was needed in this call


def _no_listing(room: Room, structures: int, atoms: int) -> Listing:
    """Return a listing which means that a list has to be made."""
    size = structures * min(room.sizes.pairs, room.grid.most_pairs(atoms))
    none = np.zeros((0, 3), np.int32)
    pairs = Pairs.padded(none[:, 0], none[:, 1], none, structures * atoms, size)
    positions = np.full((structures, atoms, 3), np.inf)
    return Listing(pairs, positions, np.tile(np.eye(3), (structures, 1, 1)))


class Dispersed(NamedTuple):
    """The dispersion of structures, which the host computes."""

    dispersion: Dispersion
    numbers: tuple[tuple[int, ...], ...]  # of the atoms of each structure
    pbc: tuple[bool, bool, bool]

    def __call__(self, positions, cells):
        """Return energies, forces and strain derivatives of all structures; inside of `jit`.

        They are NaN where there is none.
        """

        def on_host(*bits):
            positions, cells = (np.array(part).view(np.float64)[..., 0] for part in bits)
            out = np.zeros(len(cells)), np.zeros_like(positions), np.zeros_like(cells)
            for k, (numbers, cell) in enumerate(zip(self.numbers, cells, strict=True)):
                count, pbc = len(numbers), np.array(self.pbc)
                placed = Placed(np.array(numbers), positions[k, :count], cell, pbc)
                try:
                    out[0][k], out[1][k, :count], out[2][k] = self.dispersion.of(placed)
                except DataError:
                    out[0][k] = np.nan
            return [part[..., None].view(np.uint32) for part in out]

        # as bits: where JAX calls back, it has float64 disabled, and would round
        bits = [jax.lax.bitcast_convert_type(a, jnp.uint32) for a in (positions, cells)]
        shapes = [(len(cells), 2), bits[0].shape, bits[1].shape]
        shapes = [jax.ShapeDtypeStruct(shape, np.uint32) for shape in shapes]
        found = jax.pure_callback(on_host, shapes, *bits)
        return [jax.lax.bitcast_convert_type(part, jnp.float64) for part in found]


@functools.lru_cache(maxsize=16)
def _compile_steps(
    module: Module, room: Room, ensemble: str, has_spread: bool, added: Dispersed | None
):
    """Compile a function that takes steps, and returns `Advanced`; for any numbers of settings.

    No forces are computed with a list that is too short: before them, a new one is made if atoms,
    with the cell, have moved too far in one of the structures. A step for which the arrays are too
    small is not taken; the caller enlarges them, and takes it then. The row of a step that a limit
    refused for one of the structures comes last.
    """

    def advance(params, numbers: dict, structures: Constants, state, listing, steps, timestep):
        settings = SimpleNamespace(ensemble=ensemble, **numbers)
        take = functools.partial(_take, module, room, settings, added)

        def body(carry):
            state, listing, done, _, rows, most = carry
            state, listing, reason, row, now = take(params, structures, state, listing, timestep)
            needed, edges = jax.tree.map(jnp.maximum, most[:2], now[:2])
            most = Most(needed, edges, most.lists + now.lists)
            return state, listing, done + 1, reason, rows.at[done].set(row), most

        def goes_on(carry):
            return (carry[2] < steps) & (carry[3] == RUNNING)

        zero = jnp.int32(0)
        most = Most(_NOTHING, zero, zero)
        rows = jnp.zeros((MOST_STEPS, len(state.step), len(COLUMNS)), jnp.float64)
        start = state, listing, zero, jnp.int32(RUNNING), rows, most
        state, listing, _, reason, rows, most = jax.lax.while_loop(goes_on, body, start)
        return Advanced(state, listing, reason, rows, most)

    def like(params, numbers, structures, state, listing, *_):
        return Advanced(state, listing, 0, 0, Most(_NOTHING, 0, 0))

    made_of = f"steps {module.settings, module.cutoff, module.dtype, room, ensemble, has_spread}"
    # what calls back to this process cannot be kept
    return Kept(advance, None if added else made_of, result=like, donated=(3, 4))


def _take(module: Module, room: Room, settings, added, params, structures, before, listing, step):
    """Take one step of all structures; return state, listing, reason, row and `Most`."""

    def each(function, *arrays):
        """Map a function of an integrator and the arrays of a structure over all."""
        own = structures.masses, structures.freedoms, structures.seeds
        return jax.vmap(lambda own, *a: function(Integrator(settings, *own), *a))(own, *arrays)

    is_atom = structures.masses > 0
    state = each(lambda integrator, state: integrator.begin(state, step), before)
    rescaled = settings.ensemble == "npt"

    def made() -> tuple[Listing, Needed]:
        placed = state.positions, state.cell
        pairs, needed = room.grid.make_pairs(room.sizes.pairs, *placed, is_atom)
        return Listing(pairs, *placed), needed

    valid = jnp.all(_are_valid(listing, state, module.cutoff, settings.skin, rescaled))
    listing, needed = jax.lax.cond(valid, lambda: (listing, _NOTHING), made)
    index = jnp.repeat(jnp.arange(len(is_atom), dtype=jnp.int32), is_atom.shape[1])
    no_cell = jnp.zeros_like(state.cell)
    places = state.positions.reshape(-1, 3), state.cell if any(room.grid.pbc) else no_cell
    of_nodes = index, structures.species.reshape(-1), is_atom.reshape(-1)
    reach = room.sizes.reach
    geometry = Geometry(*places, *of_nodes, structures.charges, reach)
    near, found = evaluate_pairs(module, params, listing.pairs, geometry, size=room.sizes.edges)
    edges, potential = near.num_edges, found.node_energy.reshape(is_atom.shape).sum(axis=1)
    forces = found.forces(near.edges).reshape(state.positions.shape)
    strain = strain_derivatives(near, found, geometry)
    if added is not None:
        more = added(state.positions, state.cell)
        potential, forces, strain = potential + more[0], forces + more[1], strain + more[2]
    state = state._replace(forces=forces, strain=strain)
    state = each(lambda integrator, state: integrator.finish(state, step), state)
    spread = jnp.full(len(is_atom), jnp.nan)
    if has_spread := hasattr(settings, "max_spread"):
        of_atoms = spread_of_atoms(module, params, near, geometry).reshape(is_atom.shape)
        spread = jnp.max(jnp.where(is_atom, of_atoms, 0), axis=1)
    rows = each(_row, state, potential, spread)
    temperature, force = rows[:, COLUMNS.index("temperature")], rows[:, COLUMNS.index("force")]
    good = jnp.all((force <= settings.max_force) & (temperature <= settings.max_temperature))
    if has_spread:
        good &= jnp.all(spread <= settings.max_spread)
    good &= jnp.all(jnp.isfinite(potential))
    fits = (needed.pairs <= room.sizes.pairs) & (needed.occupancy <= room.grid.occupancy)
    fits &= ~needed.is_narrow & (edges <= room.sizes.edges)
    if any(reach.waves):
        fits &= module.potential.long_range.covers(state.cell, reach)
    reason = jnp.where(fits, jnp.where(good, RUNNING, LIMIT), OVERFLOW).astype(jnp.int32)
    state = jax.tree.map(lambda new, old: jnp.where(fits & good, new, old), state, before)
    most = Most(needed, edges, (~valid).astype(jnp.int32))
    return state, listing, reason, rows, most


def _are_valid(listing: Listing, state: State, cutoff: float, skin: float, rescaled: bool):
    """See `eqfuse.inference.lists.is_valid`, for each structure; not where it is NaN."""
    stretch = jnp.ones(len(state.cell))
    if rescaled:
        stretch = jnp.cbrt(jax.vmap(volume)(state.cell) / jax.vmap(volume)(listing.cell))
    moved = state.positions - stretch[:, None, None] * listing.positions
    most = jnp.sqrt(jnp.max(jnp.sum(moved**2, axis=2), axis=1))
    return 2 * most <= (cutoff + skin) * stretch - cutoff


def _row(integrator: Integrator, state: State, potential, spread):
    kinetic = integrator.kinetic(state.velocities)
    temperature = 2 * kinetic / (integrator.freedoms * units.kB)
    force = jnp.sqrt(jnp.max(jnp.sum(state.forces**2, axis=1)))
    row = [potential, kinetic, temperature, force, integrator.conserved(state, potential)]
    size = volume(state.cell)  # of a slab too, as in the calculator
    row += [jnp.where(size > 0, value, jnp.nan) for value in (integrator.pressure(state), size)]
    return jnp.stack([*row, spread])


def padded_to_longest(arrays, dtype=np.float64) -> np.ndarray:
    """Return arrays of different lengths as one, padded with zeros, of numpy."""
    arrays = [np.asarray(array) for array in arrays]
    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), dtype)
    for padded, array in zip(out, arrays, strict=True):
        padded[: len(array)] = array
    return out


class Stepper:
    """Steps of a simulation on the device, of all structures of a batch together.

    Species and masses are lists with an array for each structure, and charges (e) are their totals;
    the noise of structure k has the seed `settings.seed + k`. `room` is None before the first step.
    """

    def __init__(self, network: Network, species, masses, pbc, settings: Settings, charges):
        self._network, self._settings, self._pbc = network, settings, pbc
        self._numbers = tuple(tuple(network.species[k] for k in one) for one in species)
        values = {name: getattr(settings, name) for name in NUMBERS}
        self._values = {n: np.float64(value) for n, value in values.items() if value is not None}
        self._sizes = np.array([len(one) for one in species])
        # noise acts on the total momentum too; without it the momentum is conserved
        conserves = (settings.ensemble in ("nve", "nose-hoover")) & (self._sizes > 1)
        self._structures = Constants(
            species=padded_to_longest(species, np.int32),
            masses=padded_to_longest(masses),
            freedoms=3.0 * self._sizes - np.where(conserves, 3, 0),
            seeds=settings.seed + np.arange(len(species), dtype=np.int64),
            charges=np.array(charges, np.float64),
        )
        self._radius = network.cutoff + settings.skin
        self.room, self._advance, self._listing = None, None, None
        self.num_lists = self.num_programs = 0

    def begin(self, positions, cells):
        """Choose the sizes for structures, of lists with an array for each."""
        structures = list(zip(positions, cells, strict=True))
        within, most, total = (self._network.cutoff, self._settings.skin), 0, 0
        for structure in structures:
            senders, _, _, near = list_structures([structure], [self._pbc], *within)
            most, total = max(most, len(senders)), total + near
        pbc, atoms = np.tile(self._pbc, (len(cells), 1)), self._structures.masses.shape[1]
        reach = self._network.reach(cells, pbc, [atoms])
        needed = Sizes(pairs=most, edges=total, reach=reach)
        self._use(Room(self._grid(structures), Sizes().grown(needed)))

    def go_on(self, room: Room, listed):
        """Take up the sizes of a checkpoint, and the (positions, cells) of its list."""
        self._use(room)
        if np.isfinite(listed[0]).all():
            make = jax.jit(Grid.make_pairs, static_argnums=(0, 1))
            is_atom = self._structures.masses > 0
            self._listing = Listing(make(room.grid, room.sizes.pairs, *listed, is_atom)[0], *listed)

    @property
    def listed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and cells for which the list was made; infinite if there is none."""
        return np.asarray(self._listing.positions), np.asarray(self._listing.cell)

    def state(self, positions, velocities, cells) -> State:
        """Return the state before the first step, from lists with an array for each structure."""
        count = len(self._sizes)
        positions = padded_to_longest(positions)
        # padding is where an atom is, and extends no structure
        positions = np.where(self._structures.masses[..., None] > 0, positions, positions[:, :1])
        return State(
            positions=positions,
            velocities=padded_to_longest(velocities),
            forces=np.zeros_like(positions),
            cell=np.array(cells, np.float64),
            strain=np.zeros((count, 3, 3)),
            chain=np.zeros((count, 2, CHAIN)),
            heat=np.zeros(count),
            step=np.zeros(count, np.int32),
        )

    def take(self, state: State, steps: int, timestep: float) -> Advanced:
        """Take at most MOST_STEPS; fewer if arrays were too small, which then are larger.

        The timestep is in ASE's units. The device may use the memory of the state. All results but
        the listing are on the host.
        """
        arguments = self._structures, state, self._listing, np.int32(steps), np.float64(timestep)
        done = self._advance(self._network.params, self._values, *arguments)
        self._listing = done.listing
        done = jax.device_get(done._replace(listing=None))
        give_back()
        self.num_lists += int(done.most.lists)
        if done.reason == OVERFLOW:
            self._enlarge(done)
        return done

    def _enlarge(self, done: Advanced):
        room, needed = self.room, done.most.needed
        grid = room.grid
        if needed.is_narrow:
            parts = zip(done.state.positions, self._sizes, done.state.cell, strict=True)
            grid = self._grid([(at[:count], cell) for at, count, cell in parts])
        elif needed.occupancy > grid.occupancy:
            grid = grid.enlarged(int(needed.occupancy), int(self._sizes.max()))
        more = Sizes(pairs=int(needed.pairs), edges=int(done.most.edges))
        sizes = self.room.sizes
        if grid is self.room.grid and sizes.pairs >= more.pairs and sizes.edges >= more.edges:
            # the cell of the step that was not taken is not known, and always larger
            waves = tuple(math.ceil(_GROWING * n) + 1 for n in sizes.reach.waves)
            more = more._replace(reach=dataclasses.replace(sizes.reach, waves=waves))
        self._use(Room(grid, room.sizes.grown(more)))

    def _grid(self, structures):
        shrinking = _SHRINKING if self._settings.ensemble == "npt" else 1.0
        return Grid.of(structures, self._pbc, self._radius, shrinking)

    def _use(self, room: Room):
        network, settings = self._network, self._settings
        added = None
        if network.dispersion is not None:
            added = Dispersed(network.dispersion, self._numbers, room.grid.pbc)
        has_spread = settings.max_spread is not None
        self._advance = _compile_steps(network.module, room, settings.ensemble, has_spread, added)
        self.room, self._listing = room, _no_listing(room, *self._structures.species.shape)
        self.num_programs += 1
