"""The steps of a simulation: compiled for sizes that grow when they are too small."""

import jax
import numpy as np

from eqfuse.inference.pairs import list_side_by_side, room_for_edges, room_for_pairs
from eqfuse.inference.predict import Network
from eqfuse.md.integrators import CHAIN, State
from eqfuse.md.neighbors import grid_of, make_pairs, room_in_boxes
from eqfuse.md.settings import Settings
from eqfuse.md.steps import (
    OVERFLOW,
    Advanced,
    Listing,
    Room,
    Structures,
    compile_steps,
    energy_and_forces,
    no_listing,
)

_SHRINKING = 0.94  # of lengths of a cell under pressure, before other boxes are needed


def side_by_side(arrays, dtype=np.float64) -> np.ndarray:
    """Return arrays of different lengths as one, padded with zeros, of numpy."""
    arrays = [np.asarray(array) for array in arrays]
    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), dtype)
    for padded, array in zip(out, arrays, strict=True):
        padded[: len(array)] = array
    return out


class Stepper:
    """What takes the steps of a simulation on the device, of all structures of a batch together.

    Args:
      network: the network.
      species: list of [n_atoms] int32, one for each structure.
      masses: list of [n_atoms] atomic mass units.
      pbc: [3] bool, of all structures.
      settings: of the simulation; the noise of structure k has the seed `settings.seed + k`.

    Attributes:
      room: the sizes of the arrays; None before the first step.
      num_lists, num_programs: neighbour lists that were made, and programs that were compiled.
    """

    def __init__(self, network: Network, species, masses, pbc, settings: Settings):
        self._network, self._settings, self._pbc = network, settings, pbc
        self._sizes = np.array([len(one) for one in species])
        # noise acts on the total momentum too; without it the momentum is conserved
        conserves = (settings.ensemble in ("nve", "nose-hoover")) & (self._sizes > 1)
        self._structures = Structures(
            species=side_by_side(species, np.int32),
            masses=side_by_side(masses),
            freedoms=3.0 * self._sizes - np.where(conserves, 3, 0),
            seeds=settings.seed + np.arange(len(species), dtype=np.int64),
        )
        self._reach = network.cutoff + settings.skin
        self.room, self._advance, self._listing = None, None, None
        self.num_lists = self.num_programs = 0

    def begin(self, positions, cells):
        """Choose the sizes for structures.

        Args:
          positions: list of [n_atoms, 3] Å.
          cells: list of [3, 3] Å.
        Raises:
          DataError: see `eqfuse.data.neighbor_list` and `eqfuse.md.neighbors.grid_of`.
        """
        structures = list(zip(positions, cells, strict=True))
        reach, most, total = (self._network.cutoff, self._settings.skin), 0, 0
        for structure in structures:
            senders, _, _, near = list_side_by_side([structure], [self._pbc], *reach)
            most, total = max(most, len(senders)), total + near
        self._use(Room(self._grid(structures), room_for_pairs(most), room_for_edges(total)))

    def go_on(self, room: Room, listed):
        """Take up the sizes and the list of a checkpoint.

        Args:
          room: the sizes.
          listed: (positions, cells) for which the list was made.
        """
        self._use(room)
        if np.isfinite(listed[0]).all():
            make = jax.jit(make_pairs, static_argnums=(0, 1))
            is_atom = self._structures.masses > 0
            self._listing = Listing(make(room.grid, room.pairs, *listed, is_atom)[0], *listed)

    @property
    def listed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and cells for which the list was made; infinite if there is none."""
        return np.asarray(self._listing.positions), np.asarray(self._listing.cell)

    def state(self, positions, velocities, cells) -> State:
        """Return the state before the first step, from lists with an array for each structure."""
        count = len(self._sizes)
        positions = side_by_side(positions)
        # padding is where an atom is, and extends no structure
        positions = np.where(self._structures.masses[..., None] > 0, positions, positions[:, :1])
        return State(
            positions=positions,
            velocities=side_by_side(velocities),
            forces=np.zeros_like(positions),
            cell=np.array(cells, np.float64),
            strain=np.zeros((count, 3, 3)),
            chain=np.zeros((count, 2, CHAIN)),
            heat=np.zeros(count),
            step=np.zeros(count, np.int32),
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
            self._structures,
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
            state = done.state
            ends = zip(state.positions, self._sizes, strict=True)
            positions = [at[:count] for at, count in ends]
            grid = self._grid(list(zip(positions, state.cell, strict=True)))
        elif needed.occupancy > grid.occupancy:
            most = room_in_boxes(int(needed.occupancy), int(self._sizes.max()))
            grid = grid._replace(occupancy=most)
        pairs = max(room.pairs, room_for_pairs(int(needed.pairs)))
        edges = room_for_edges(int(done.most.edges)) if done.most.edges > room.edges else room.edges
        self._use(Room(grid, pairs, edges))

    def _grid(self, structures):
        shrinking = _SHRINKING if self._settings.ensemble == "npt" else 1.0
        return grid_of(structures, self._pbc, self._reach, shrinking)

    def _use(self, room: Room):
        self.room, network = room, self._network
        energy = energy_and_forces(network._potential, network.cutoff, network.dtype, room.edges)
        self._advance = compile_steps(energy, room, self._settings, network.cutoff)
        self._listing = no_listing(room, *self._structures.species.shape)
        self.num_programs += 1
