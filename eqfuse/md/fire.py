"""Relaxation of several structures at once by FIRE, on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eqfuse.inference.evaluator import Geometry, evaluate, strain_derivatives
from eqfuse.inference.lists import Pairs
from eqfuse.inference.network import Module

STEP, LONGEST_STEP, MOST_MOVED = 0.1, 1.0, 0.2
_PATIENCE, _FASTER, _SLOWER, _MIXING, _LESS_MIXING = 5, 1.1, 0.5, 0.1, 0.99


class Structures(NamedTuple):
    """Structures side by side, as they are before the relaxation; the last one is padding.

    Attributes:
      positions: [n_nodes, 3] Å.
      cells: [n_graphs, 3, 3] Å.
      species, index: [n_nodes] int32; index is the structure of each atom.
      moves: [n_nodes] bool, atoms that are not fixed.
      cell_moves: [n_graphs] bool, cells that relax.
      sizes: [n_graphs] numbers of atoms.
      num_atoms: int32; nodes from there on are padding.
    """

    positions: jax.Array
    cells: jax.Array
    species: jax.Array
    index: jax.Array
    moves: jax.Array
    cell_moves: jax.Array
    sizes: jax.Array
    num_atoms: jax.Array


class Fire(NamedTuple):
    """What FIRE knows between two steps; coordinates as in ASE's UnitCellFilter.

    Attributes:
      positions: [n_nodes, 3] Å, before the deformation of the cell.
      deformation: [n_graphs, 3, 3], F, of positions and cells: r F^T.
      velocities: of `positions`, and of the deformation times the number of atoms.
      step, mixing, good: of each structure: timestep, mixing of the force, good steps in a row.
      taken: [n_graphs] int32, steps of each structure.
    """

    positions: jax.Array
    deformation: jax.Array
    velocities: tuple[jax.Array, jax.Array]
    step: jax.Array
    mixing: jax.Array
    good: jax.Array
    taken: jax.Array


class Relaxed(NamedTuple):
    """What a call did.

    Attributes:
      fire: the state, to go on from.
      energies: [n_nodes] eV, without reference energies.
      forces: [n_nodes, 3] eV/Å, also on fixed atoms.
      strain: [n_graphs, 3, 3] eV, the derivative by the strain.
      largest: [n_graphs] eV/Å, the largest of what is relaxed.
      positions, cells: as they are now, Å.
      is_listed: whether the list holds all pairs; energies and forces are of no use otherwise.
      num_edges: int32, that were needed.
    """

    fire: Fire
    energies: jax.Array
    forces: jax.Array
    strain: jax.Array
    largest: jax.Array
    positions: jax.Array
    cells: jax.Array
    is_listed: jax.Array
    num_edges: jax.Array


def begin(structures: Structures) -> Fire:
    """Return the state before the first step."""
    count = structures.cells.shape[0]
    return Fire(
        positions=structures.positions,
        deformation=jnp.broadcast_to(jnp.eye(3), (count, 3, 3)),
        velocities=(jnp.zeros_like(structures.positions), jnp.zeros((count, 3, 3))),
        step=jnp.full(count, STEP),
        mixing=jnp.full(count, _MIXING),
        good=jnp.zeros(count, jnp.int32),
        taken=jnp.zeros(count, jnp.int32),
    )


def place(structures: Structures, fire: Fire) -> tuple[jax.Array, jax.Array]:
    """Return positions and cells as they are now, Å."""
    of_node = fire.deformation[structures.index]
    positions = jnp.einsum("ai,aji->aj", fire.positions, of_node)
    return positions, jnp.einsum("gki,gji->gkj", structures.cells, fire.deformation)


def _step(structures, relaxed: Relaxed, forces, limits) -> Fire:
    """Return the state after a step of each structure that is not relaxed yet.

    Args:
      relaxed: the state and what was computed for it.
      forces: on the coordinates of `Fire`, of atoms and of cells.
      limits: the largest force (eV/Å) and number of steps.
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
    began = fire.taken > 0
    patient = downhill & (fire.good > _PATIENCE)
    faster = jnp.minimum(fire.step * _FASTER, LONGEST_STEP)
    timestep = jnp.where(patient, faster, jnp.where(downhill, fire.step, fire.step * _SLOWER))
    timestep = jnp.where(began, timestep, STEP)
    mixing = jnp.where(patient, fire.mixing * _LESS_MIXING, fire.mixing)
    mixing = jnp.where(downhill, mixing, _MIXING)
    kicked = each(lambda v, f, dt: v + dt * f, mixed, forces, timestep)
    length = timestep * jnp.sqrt(dot(kicked, kicked))
    share = timestep * jnp.minimum(1, MOST_MOVED / jnp.maximum(length, 1e-300))
    goes_on = (relaxed.largest >= limits[0]) & (fire.taken < limits[1])
    moved = each(lambda v, _, share: share * v, kicked, kicked, jnp.where(goes_on, share, 0))
    of_cells = moved[1] / jnp.maximum(structures.sizes, 1)[:, None, None]
    return Fire(
        positions=fire.positions + moved[0],
        deformation=fire.deformation + of_cells,
        velocities=kicked,
        step=timestep,
        mixing=mixing,
        good=jnp.where(downhill, fire.good + 1, 0),
        taken=fire.taken + goes_on,
    )


def compile_relax(module: Module, skin: float, pressure: float):
    """Return a compiled function: params, structures, fire, pairs, listed, limits -> `Relaxed`.

    It takes the steps of ASE's FIRE for each structure (Bitzek et al. 2006, Phys. Rev. Lett. 97,
    170201, https://doi.org/10.1103/PhysRevLett.97.170201), until all are relaxed or have taken
    their steps, or the list is too short. `listed` is the state for which the list was made;
    `limits` are the largest force (eV/Å) and number of steps; size is the number of edges, static.

    Args:
      module: of the network.
      skin: Å.
      pressure: eV/Å^3.
    """

    def forces_of(params, structures, fire, pairs, listed, size) -> tuple[Relaxed, jax.Array]:
        positions, cells = place(structures, fire)
        index, count = structures.index, len(structures.cells)
        geometry = Geometry(positions, cells, index, structures.species, structures.num_atoms)
        done = evaluate(module, params, pairs, geometry, size=size)
        strain = strain_derivatives(done, geometry)
        on_atoms, on_cells = _generalised(structures, fire, cells, done.forces, strain, pressure)
        squares = jax.ops.segment_max(jnp.sum(on_atoms**2, axis=1), index, count)
        squares = jnp.maximum(squares, jnp.max(jnp.sum(on_cells**2, axis=2), axis=1))
        largest = jnp.sqrt(jnp.where(structures.sizes > 0, squares, 0))
        is_listed = _holds_all(structures, fire, listed, positions, module.cutoff, skin)
        relaxed = Relaxed(
            fire,
            done.node_energy,
            done.forces,
            strain,
            largest,
            positions,
            cells,
            is_listed & (done.num_edges <= size),
            done.num_edges,
        )
        return relaxed, (on_atoms, on_cells)

    def relax(params, structures, fire, pairs: Pairs, listed: Fire, limits, *, size) -> Relaxed:
        def evaluated(fire):
            return forces_of(params, structures, fire, pairs, listed, size)

        def body(carry):
            return evaluated(_step(structures, *carry, limits))

        def goes_on(carry):
            relaxed = carry[0]
            open_ones = (relaxed.largest >= limits[0]) & (relaxed.fire.taken < limits[1])
            return relaxed.is_listed & jnp.any(open_ones)

        return jax.lax.while_loop(goes_on, body, evaluated(fire))[0]

    return jax.jit(relax, static_argnames="size")


def _generalised(structures: Structures, fire: Fire, cells, forces, strain, pressure: float):
    """Return the forces on the coordinates of `Fire`."""
    moves = structures.moves & (jnp.arange(len(forces)) < structures.num_atoms)
    forces = jnp.where(moves[:, None], forces, 0)
    forces = jnp.einsum("ai,aij->aj", forces, fire.deformation[structures.index])
    volume = jnp.abs(jnp.sum(cells[:, 0] * jnp.cross(cells[:, 1], cells[:, 2]), axis=1))
    virial = -strain - (pressure * volume)[:, None, None] * jnp.eye(3)
    transposed = jnp.linalg.solve(fire.deformation, jnp.swapaxes(virial, 1, 2))
    virial = jnp.swapaxes(transposed, 1, 2) / jnp.maximum(structures.sizes, 1)[:, None, None]
    return forces, jnp.where(structures.cell_moves[:, None, None], virial, 0)


def _holds_all(structures: Structures, fire: Fire, listed: Fire, positions, cutoff, skin):
    """See `eqfuse.inference.lists.is_valid`, with a bound of the singular value."""
    turned = jnp.linalg.solve(
        jnp.swapaxes(listed.deformation, 1, 2), jnp.swapaxes(fire.deformation, 1, 2)
    )
    stretch = 1 - jnp.sqrt(jnp.sum((turned - jnp.eye(3)) ** 2, axis=(1, 2)))
    before, _ = place(structures, listed)
    moved = positions - jnp.einsum("ai,aij->aj", before, turned[structures.index])
    moved = jnp.sqrt(jnp.sum(moved**2, axis=1))
    room = ((cutoff + skin) * stretch - cutoff)[structures.index]
    return jnp.all((2 * moved <= room) | (room > 0) & (moved == 0))
