"""Electrostatics of latent charges: the smooth part of an Ewald sum (LES)."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase import units
from scipy.fft import next_fast_len

CONSTANT = 1e10 * units._e / (2 * units._eps0)
"""1 / (2 epsilon_0), eV Å for charges in units of that of a proton: 90.4756."""
LEFT_OUT = 1e-7
"""Weight of the first wave that a sum leaves out, of the weight at k = 1/sigma."""
WINDOW = 0.9
"""Share of the cutoff from which on weights fall to zero, so that no wave comes or goes at once."""
ROUNDING = 1e-9
"""Of a wave at the cutoff."""
NO_SLABS = (
    "latent charges are summed over all three periodic directions, or none: give a slab or a wire "
    "a cell with vacuum and pbc=True along all three, or none at all"
)
ROWS = 512
"""Atoms that a direct sum takes at once."""
MOST_TERMS = 500_000
"""Waves times atoms of a cell, up to which its sum is written out; beyond, a mesh is faster. For
networks of other programs, whose digits count, it is `LONGER` times as many."""
LONGER = 20
ORDER, OVERSAMPLING = 8, 2.5
"""Of the splines that put charges on a mesh, and of its points for each wave up to the cutoff."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Reach:
    """What a program of the sum is compiled for; a pytree without arrays, and hashable."""

    waves: tuple[int, int, int] = (0, 0, 0)  # most multiples of each reciprocal vector; 0: none
    atoms: int = 0  # most atoms of a structure
    direct: bool = False  # whether some structures are not periodic

    def grown(self, needed: "Reach") -> "Reach":
        """Return what is enough for both."""
        waves = tuple(map(max, self.waves, needed.waves))
        return Reach(waves, max(self.atoms, needed.atoms), self.direct or needed.direct)

    def holds(self, needed: "Reach", most: float = math.inf) -> bool:
        """Check that this is enough, and that the grid is at most `most` times what is needed."""
        is_enough = self.grown(needed) == self
        return is_enough and self.size <= most * needed.size

    @property
    def size(self) -> int:
        """Return the number of waves and pairs of an atom that are summed."""
        return math.prod(2 * n + 1 for n in self.waves) - 1 + self.direct * self.atoms


class Geometry(NamedTuple):
    """Structures side by side, padded, in the precision of their sums of latent charges."""

    positions: jax.Array  # [n_nodes, 3] Å
    cells: jax.Array  # [n_graphs, 3, 3] Å; zeros for a structure that is not periodic
    index: jax.Array  # [n_nodes] int32, the structure of each node, non-decreasing
    species: jax.Array  # [n_nodes] int32
    is_atom: jax.Array  # [n_nodes] bool; other nodes, the padding, have no energy
    charges: jax.Array | None = None  # [n_graphs] e, the totals; read if there is a `charge_key`
    reach: Reach | None = None  # of the sums of latent charges


@dataclasses.dataclass(frozen=True)
class LatentEwald:
    """The energy of latent charges q that Gaussians of width sigma have smeared.

        periodic:  E = C / V sum_{0 < |k| < kc} exp(-sigma^2 k^2 / 2) / k^2 |S(k)|^2
        free:      E = C / (4 pi) sum_{ij} q_i q_j erf(r_ij / (sqrt(2) sigma)) / r_ij

    with S(k) = sum_i q_i exp(i k r_i) and C = 1 / (2 epsilon_0). Both contain what a Gaussian has
    with itself, C q^2 / (sigma (2 pi)^1.5), which `remove_self` takes off again. A cell whose
    charges do not add up to zero has a uniform background of the opposite charge (k = 0 is left
    out). Several charges of an atom are independent of one another, and their energies are added.

    A network predicts the charges of each atom as scalars, after its energy.

    Attributes:
      charges: number of charges of an atom.
      scale: of a charge, e, for a scalar of the network.
      charge_key: key of `atoms.info` with the total charge of a structure, e, to which its charges
        are shifted, all by the same number; None for charges that add up to anything.
      sigma: width, Å.
      cutoff: kc, 1/Å; None for one beyond which weights are below `LEFT_OUT`.
      hard: whether weights end at the cutoff at once, as in published networks; if not, they fall
        to zero before it, and the energy is smooth in the cell.
      remove_self: whether an isolated atom has no energy.
      constant: C, eV Å.
    References: Cheng 2025, npj Computational Materials 11, 80, eqs. 4 and 5.
    """

    charges: int = 1
    scale: float = 0.1
    charge_key: str | None = None
    sigma: float = 1.0
    cutoff: float | None = None
    hard: bool = False
    remove_self: bool = True
    constant: float = CONSTANT

    @property
    def largest(self) -> float:
        """Return kc, 1/Å."""
        return self.cutoff or math.sqrt(-2 * math.log(LEFT_OUT)) / self.sigma

    def reach(self, cells, pbc, counts, room: float = 1.0) -> Reach:
        """Return what the sums of structures need, rounded up so that programs serve others.

        Args:
          cells: [n_graphs, 3, 3] Å, on the host.
          pbc: [n_graphs, 3] bool.
          counts: [n_graphs], atoms of each.
          room: by how much cells may grow.
        Raises:
          ValueError: a structure that is periodic along one or two directions only.
        """
        pbc = np.asarray(pbc, bool).reshape(-1, 3)
        if np.any(pbc.any(axis=1) != pbc.all(axis=1)):
            raise ValueError(NO_SLABS)
        is_periodic = pbc.all(axis=1)
        waves = (0, 0, 0)
        if is_periodic.any():
            most = self._multiples(np.asarray(cells)[is_periodic]).max(axis=0)
            most = np.floor(room * most + ROUNDING).astype(int)
            steps = 1 + most // 16
            waves = tuple(int(n) for n in -(-most // steps) * steps)
        return Reach(waves, int(np.max(counts, initial=0)), bool((~is_periodic).any()))

    def _multiples(self, cells):
        """Return the multiples of reciprocal vectors at the cutoff, [n_graphs, 3]."""
        return self.largest / (2 * math.pi) * (cells**2).sum(axis=2) ** 0.5

    def covers(self, cells, reach: Reach):
        """Check that no wave is missing in cells [n_graphs, 3, 3], which may have grown.

        Those that are not finite are nobody's waves.
        """
        most = self._multiples(cells)
        return ~jnp.any((most >= jnp.asarray(reach.waves) + 1) & jnp.isfinite(most))

    def charges_of(self, scalars, geometry: Geometry):
        """Return the charges of atoms, [n, charges] e, of their scalars; zero in the padding."""
        is_atom, index, count = geometry.is_atom, geometry.index, len(geometry.cells)
        scalars = scalars.astype(geometry.positions.dtype)
        charges = jnp.where(is_atom[:, None], self.scale * scalars, 0)
        if self.charge_key is None:
            return charges
        sums = jax.ops.segment_sum(charges, index, count)
        counts = jax.ops.segment_sum(is_atom.astype(charges.dtype), index, count)
        missing = (geometry.charges[:, None] - sums) / jnp.maximum(counts, 1)[:, None]
        return jnp.where(is_atom[:, None], charges + missing[index], 0)

    def energies(self, charges, positions, cells, index, reach: Reach):
        """Return energies of atoms, [n] eV, which add up to that of each structure.

        The sum over the waves of a cell is shared equally by its atoms. Above `MOST_TERMS` it is
        computed on a mesh, whose forces differ by less than 2e-5 eV/Å for charges of 1 e.

        Args:
          charges: [n, n_charges]; zero in the padding.
          positions: [n, 3] Å, anywhere relative to the cell.
          cells: [n_graphs, 3, 3] Å; zeros for a structure that is not periodic.
          index: [n] int32, the structure of each atom, non-decreasing.
          reach: static.
        Returns:
          in the dtype of positions, in which all is computed.
        """
        charges = charges.astype(positions.dtype)
        rows, is_there = _rows(index, len(cells), reach.atoms)  # [n_graphs, atoms]
        q = jnp.where(is_there[..., None], charges[rows], 0)
        x = positions[rows]
        volumes = jnp.sum(cells[:, 0] * jnp.cross(cells[:, 1], cells[:, 2]), axis=1)
        is_periodic = volumes != 0
        out = jnp.zeros(rows.shape, positions.dtype)
        if any(reach.waves):
            safe = jnp.where(is_periodic[:, None, None], cells, jnp.eye(3, dtype=cells.dtype))
            terms = reach.atoms * math.prod(2 * n + 1 for n in reach.waves) / 2
            most = MOST_TERMS * (LONGER if self.hard else 1)
            sums = self._of_waves if terms <= most else self._of_mesh
            of_waves = jax.vmap(functools.partial(sums, waves=reach.waves))(q, x, safe)
            count = jnp.maximum(jnp.sum(is_there, axis=1), 1).astype(out.dtype)
            out += jnp.where(is_periodic, of_waves / count, 0)[:, None]
        if reach.direct:
            # far apart, where they are read for nothing
            direct = jax.vmap(self._direct)(q, x, is_there & ~is_periodic[:, None])
            out += jnp.where(is_periodic[:, None], 0, direct)
        if self.remove_self:
            out -= self.constant / (self.sigma * (2 * math.pi) ** 1.5) * jnp.sum(q**2, axis=2)
        out = jnp.where(is_there, out, 0)
        return jnp.zeros(len(index), out.dtype).at[rows].add(out)

    def _weights(self, squares):
        """Return the weights of waves of k^2, those beyond the cutoff and of k = 0 without any."""
        safe = jnp.where(squares > 0, squares, 1)
        weights = jnp.exp(-(self.sigma**2) * safe / 2) / safe
        if not self.hard:
            x = jnp.clip((jnp.sqrt(safe) / self.largest - WINDOW) / (1 - WINDOW), 0, 1)
            weights *= 1 - x**3 * (10 - 15 * x + 6 * x**2)
        most = self.largest**2 * (1 + ROUNDING)  # published programs keep the waves at the cutoff
        return jnp.where((squares > 0) & (squares <= most), weights, 0)

    def _waves(self, cell, numbers):
        """Return reciprocal vectors without 2 pi, as rows, and what |S|^2 is multiplied with.

        The last of the three `numbers` of waves are not negative: half of space is the other half.
        """
        crossed = jnp.stack([jnp.cross(cell[(k + 1) % 3], cell[(k + 2) % 3]) for k in range(3)])
        volume = jnp.sum(cell[0] * crossed[0])
        inverse = crossed / volume
        k = [2 * math.pi * m[:, None] * row for m, row in zip(numbers, inverse, strict=True)]
        k = k[0][:, None, None] + k[1][:, None] + k[2]
        weights = self._weights(jnp.sum(k**2, axis=-1)) * np.where(numbers[2] > 0, 2, 1)
        return inverse, self.constant / jnp.abs(volume) * weights

    def _of_waves(self, q, x, cell, waves):
        """Return the energy of one periodic structure.

        exp(i k r) is a product of powers along the three axes, so that sums are matmuls.
        """
        numbers = [np.arange(-waves[0], waves[0] + 1), np.arange(-waves[1], waves[1] + 1)]
        numbers.append(np.arange(waves[2] + 1))
        inverse, weights = self._waves(cell, numbers)
        angles = 2 * math.pi * x @ inverse.T  # [n, 3], no strain changes them
        a, b, c = (jnp.exp(1j * angles[:, k, None] * m) for k, m in enumerate(numbers))
        bc = (b[:, :, None] * c[:, None, :]).reshape(len(x), -1)
        weights = weights.reshape(a.shape[1], -1)
        structures = [(charge[:, None] * a).T @ bc for charge in q.T]
        return sum(jnp.sum(weights * (s.real**2 + s.imag**2)) for s in structures)

    def _of_mesh(self, q, x, cell, waves):
        """Return the energy of one periodic structure, of charges on a mesh (particle-mesh Ewald).

        References: Essmann et al. 1995, J. Chem. Phys. 103, 8577 (smooth, by B-splines).
        """
        finer = OVERSAMPLING * max(
            1, math.sqrt(-2 * math.log(LEFT_OUT)) / self.sigma / self.largest
        )
        shape = [next_fast_len(math.ceil(max(finer * n, ORDER)), real=True) for n in waves]
        numbers = [np.fft.fftfreq(n, 1 / n) for n in shape[:2]]
        numbers.append(np.fft.rfftfreq(shape[2], 1 / shape[2]))
        inverse, weights = self._waves(cell, numbers)
        of_axes = (np.sinc(m / n) ** (2 * ORDER) for m, n in zip(numbers, shape, strict=True))
        weights /= functools.reduce(np.multiply.outer, of_axes).astype(x.dtype)
        places = x @ inverse.T
        places = (places - jnp.floor(places)) * np.asarray(shape, x.dtype)
        first = jnp.minimum(jnp.floor(places), np.asarray(shape, x.dtype) - 1)
        a, b, c = jnp.unstack(_splines(places - first), axis=1)  # [n, ORDER]
        spread = a[:, :, None, None] * b[:, None, :, None] * c[:, None, None]
        windows = jax.lax.ScatterDimensionNumbers((1, 2, 3), (), (0, 1, 2))
        total = 0
        for charge in q.T:
            mesh = jnp.zeros([n + ORDER - 1 for n in shape], x.dtype)
            blocks = charge[:, None, None, None] * spread
            mesh = jax.lax.scatter_add(mesh, first.astype(jnp.int32), blocks, windows)
            for axis, n in enumerate(shape):  # what sticks out belongs to the other end
                out, mesh = jnp.split(mesh, [ORDER - 1], axis)
                pad = [(n - ORDER + 1 if k == axis else 0, 0) for k in range(3)]
                mesh += jnp.pad(out, pad)
            s = jnp.fft.rfftn(mesh)
            total += jnp.sum(weights * (s.real**2 + s.imag**2))
        return total

    def _direct(self, q, x, is_there):
        """Return the energies [n] of one structure that is not periodic, some atoms at a time."""

        def of(some):
            q_i, x_i, there = some
            d = x_i[:, None] - x
            squares = jnp.sum(d**2, axis=2)
            real = (there[:, None] & is_there) & (squares > 0)
            r = jnp.sqrt(jnp.where(real, squares, 1))
            near = math.sqrt(2 / math.pi) / self.sigma
            potential = jnp.where(real, jax.lax.erf(r / (math.sqrt(2) * self.sigma)) / r, 0)
            itself = jnp.where(there, near, 0)
            return jnp.sum(q_i * (potential @ q + itself[:, None] * q_i), axis=1)

        size = min(ROWS, len(x))
        count = -(-len(x) // size) * size

        def blocks(array):
            padded = jnp.pad(array, [(0, count - len(x)), *[(0, 0)] * (array.ndim - 1)])
            return padded.reshape(-1, size, *array.shape[1:])

        parts = jax.lax.map(jax.checkpoint(of), tuple(map(blocks, (q, x, is_there))))
        return self.constant / (4 * math.pi) * parts.reshape(-1)[: len(x)]


def _splines(t):
    """Return cardinal B-splines at distances t [..., ] from the point before, [..., ORDER]."""
    w = jnp.stack([1 - t, t], axis=-1)
    for n in range(3, ORDER + 1):
        zero, at = jnp.zeros_like(w[..., :1]), jnp.arange(n) - t[..., None]
        left, right = jnp.concatenate([w, zero], axis=-1), jnp.concatenate([zero, w], axis=-1)
        w = ((1 + at) * left + (n - 1 - at) * right) / (n - 1)
    return w


def _rows(index, num_graphs: int, most: int):
    """Return the rows of the atoms of each structure, [n_graphs, most], and which are there."""
    starts = jnp.searchsorted(index, jnp.arange(num_graphs + 1))
    rows = starts[:-1, None] + jnp.arange(most)
    is_there = rows < starts[1:, None]
    return jnp.where(is_there, rows, 0), is_there
