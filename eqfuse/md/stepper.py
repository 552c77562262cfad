"""The steps of one simulation: compiled for sizes that grow when they are too small."""

import jax
import numpy as np

from eqfuse.inference.pairs import list_pairs, room_for_edges, room_for_pairs
from eqfuse.inference.predict import Network
from eqfuse.md.integrators import CHAIN, Integrator, State
from eqfuse.md.neighbors import grid_of, make_pairs, room_in_boxes
from eqfuse.md.settings import Settings
from eqfuse.md.steps import (
    OVERFLOW,
    Advanced,
    Listing,
    Room,
    compile_steps,
    energy_and_forces,
    no_listing,
)

_SHRINKING = 0.94  # of lengths of a cell under pressure, before other boxes are needed


class Stepper:
    """What takes the steps of a simulation on the device.

    Args:
      network: the network.
      species: [n_atoms] int32.
      masses: [n_atoms] atomic mass units.
      pbc: [3] bool.
      settings: of the simulation.

    Attributes:
      room: the sizes of the arrays; None before the first step.
      num_lists, num_programs: neighbour lists that were made, and programs that were compiled.
    """

    def __init__(self, network: Network, species, masses, pbc, settings: Settings):
        self._network, self._settings, self._pbc = network, settings, pbc
        self._species, self._count = species, len(species)
        # noise acts on the total momentum too; without it the momentum is conserved
        conserves = settings.ensemble in ("nve", "nose-hoover") and self._count > 1
        freedoms = 3 * self._count - 3 if conserves else 3 * self._count
        self._integrator = Integrator(settings, masses, freedoms)
        self._reach = network.cutoff + settings.skin
        self.room, self._advance, self._listing = None, None, None
        self.num_lists = self.num_programs = 0

    def begin(self, positions, cell):
        """Choose the sizes for a structure.

        Raises:
          DataError: see `eqfuse.data.neighbor_list`.
        """
        senders, receivers, images = list_pairs(positions, cell, self._pbc, self._reach)
        vectors = positions[senders] + images @ cell - positions[receivers]
        near = np.einsum("ei,ei->e", vectors, vectors) < self._network.cutoff**2
        grid = self._grid(positions, cell)
        self._use(Room(grid, room_for_pairs(len(senders)), room_for_edges(int(near.sum()))))

    def go_on(self, room: Room, listed):
        """Take up the sizes and the list of a checkpoint.

        Args:
          room: the sizes.
          listed: (positions, cell) for which the list was made.
        """
        self._use(room)
        if np.isfinite(listed[0]).all():
            make = jax.jit(make_pairs, static_argnums=(0, 1))
            self._listing = Listing(make(room.grid, room.pairs, *listed)[0], *listed)

    @property
    def listed(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and cell for which the list was made; infinite if there is none."""
        return np.asarray(self._listing.positions), np.asarray(self._listing.cell)

    def state(self, positions, velocities, cell) -> State:
        """Return the state before the first step."""
        zero = np.zeros((3, 3))
        return State(
            positions=np.array(positions, np.float64),
            velocities=np.array(velocities, np.float64),
            forces=np.zeros((self._count, 3)),
            cell=np.array(cell, np.float64),
            strain=zero,
            chain=np.zeros((2, CHAIN)),
            heat=np.float64(0),
            step=np.int32(0),
        )

    def take(self, state: State, steps: int, timestep: float) -> Advanced:
        """Take some steps; fewer if arrays were too small, which are larger for the next call.

        Args:
          state: of which the device may use the memory.
          steps: at most MOST_STEPS.
          timestep: in ASE's units.
        Returns:
          what was done, on the host, but for the listing.
        """
        done = self._advance(
            self._network._params,
            self._species,
            state,
            self._listing,
            np.int32(steps),
            np.float64(timestep),
        )
        self._listing = done.listing
        done = jax.device_get(done._replace(listing=None))
        self.num_lists += int(done.most.lists)
        if done.reason == OVERFLOW:
            self._enlarge(done)
        return done

    def _enlarge(self, done: Advanced):
        room, needed = self.room, done.most.needed
        grid = room.grid
        if not needed.is_wide:
            grid = self._grid(done.state.positions, done.state.cell)
        elif needed.occupancy > grid.occupancy:
            most = room_in_boxes(int(needed.occupancy), self._count)
            grid = grid._replace(occupancy=most)
        pairs = max(room.pairs, room_for_pairs(int(needed.pairs)))
        edges = room_for_edges(int(done.most.edges)) if done.most.edges > room.edges else room.edges
        self._use(Room(grid, pairs, edges))

    def _grid(self, positions, cell):
        shrinking = _SHRINKING if self._settings.ensemble == "npt" else 1.0
        return grid_of(positions, cell, self._pbc, self._reach, shrinking)

    def _use(self, room: Room):
        self.room, network = room, self._network
        energy = energy_and_forces(network._potential, network.cutoff, network.dtype, room.edges)
        steps = compile_steps(energy, self._integrator, room, self._settings, network.cutoff)
        self._advance, self._listing = steps, no_listing(room, self._count)
        self.num_programs += 1
