"""Batches of a few fixed shapes, for which few programs are compiled."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from eqfuse.data.padding import Shape, choose_shapes, padded_edges
from eqfuse.data.samples import Sample, Samples
from eqfuse.data.structures import DataError, Weights
from eqfuse.graph import Graph

_ROWS = 2  # the stream of random rows


class HessianRows(NamedTuple):
    """A row of the Hessian of each structure of a batch: H times `direction`, a unit vector."""

    direction: jax.Array  # [n_nodes, 3]; zero where there is no Hessian
    values: jax.Array  # [n_nodes, 3] eV/Å^2
    mask: jax.Array  # [n_nodes] bool, True where there is one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a batch; zero where they are unknown and in the padding.

    Attributes:
      energy: [n_graphs] eV, relative to the reference energies (subtracted in float64).
      forces: [n_nodes, 3] eV/Å.
      stress: [n_graphs, 3, 3] eV/Å^3.
      energy_mask, forces_mask, stress_mask: [n_graphs], [n_nodes] or [n_graphs] bool, True where
        the label is known.
      num_atoms: [n_graphs] int32; 1 for padding graphs, so that it can divide.
      weights: of the squared errors, [n_graphs], [n_nodes], [n_graphs] and [n_nodes]; None where
        all are one.
      hessian: a row of each Hessian; None where they are not trained on.
    """

    energy: jax.Array
    forces: jax.Array
    stress: jax.Array
    energy_mask: jax.Array
    forces_mask: jax.Array
    stress_mask: jax.Array
    num_atoms: jax.Array
    weights: Weights | None = None
    hessian: HessianRows | None = None


def _hessian_row(sample: Sample, seeds: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return a random row of the Hessian of a sample, see `HessianRows`, by the seeds.

    Those that are known are equally probable.
    """
    direction, values = np.zeros((2, sample.num_atoms, 3))
    if sample.hessian is not None:
        known = np.flatnonzero(~np.isnan(sample.hessian[..., 0, 0]))
        atom, axis = divmod(int(known[int(_uniform(seeds, 1, _ROWS)[0] * len(known))]), 3)
        order = np.arange(sample.num_atoms) if sample.order is None else sample.order
        direction[order == atom, axis] = 1
        values = sample.hessian[atom, axis][order]
    return direction, values, np.full(sample.num_atoms, sample.hessian is not None)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """A padded graph and its labels, as numpy arrays until JAX reads them."""

    graph: Graph
    labels: Labels


def collate(
    samples: Sequence[Sample],
    shape: Shape,
    dtype=np.float32,
    *,
    weighted: bool = False,
    heads: bool = False,
    seeds: Sequence[tuple[int, ...]] | None = None,
    reach=None,
    charged: bool = False,
) -> Batch:
    """Put samples side by side and pad them to a shape.

    Padding nodes belong to the last graph; padding edges are those of `padded_edges`.

    Args:
      samples: an empty sequence makes a batch of padding.
      shape: sizes to pad to; at least one node and one graph more than the samples have.
      dtype: of positions, cells and labels; float32 or float64.
      weighted: whether the labels have weights.
      heads: whether the graph has the head of each sample.
      seeds: of the random row of each sample's Hessian; None for no rows.
      reach: what sums of latent charges need, see `eqfuse.models.ewald.Reach`; None without them.
      charged: whether the graph has the total charge of each sample.
    Returns:
      numpy arrays of that shape.
    Raises:
      DataError: samples that do not fit the shape.
    """
    atoms = np.array([s.num_atoms for s in samples], int)
    n_nodes, n_graphs = int(atoms.sum()), len(atoms)
    n_edges = sum(s.num_edges for s in samples)
    if n_nodes >= shape.n_nodes or n_edges > shape.n_edges or n_graphs >= shape.n_graphs:
        raise DataError(
            f"{n_graphs} samples with {n_nodes} nodes and {n_edges} edges do not fit {shape}, "
            "which has to hold a padding node and a padding graph besides"
        )
    first = np.cumsum(atoms) - atoms
    ends = (
        [getattr(s, end) + k for s, k in zip(samples, first, strict=True)]
        for end in ("senders", "receivers")
    )
    ends = (np.concatenate([np.zeros(0, int), *end]) for end in ends)
    edges, order = padded_edges(*ends, shape.n_nodes, shape.n_edges)
    pad = _Pad(shape, dtype)
    graph_index = np.full(shape.n_nodes, shape.n_graphs - 1, np.int32)
    graph_index[:n_nodes] = np.repeat(np.arange(n_graphs), atoms)
    graph = Graph(
        positions=pad.nodes([s.positions for s in samples], (3,)),
        species=pad.nodes([s.species for s in samples], dtype=np.int32),
        edges=edges,
        shifts=pad([s.shifts for s in samples], shape.n_edges, (3,))[order],
        graph_index=graph_index,
        cells=pad.graphs([s.cell for s in samples], (3, 3)),
        node_mask=np.arange(shape.n_nodes) < n_nodes,
        graph_mask=np.arange(shape.n_graphs) < n_graphs,
        heads=pad.graphs([s.head for s in samples], dtype=np.int32) if heads else None,
        reach=reach,
        charges=pad.graphs([s.charge for s in samples]) if charged else None,
    )
    return Batch(graph, _labels(samples, pad, weighted, seeds))


class _Pad(NamedTuple):
    """What makes arrays with the parts one after the other, then `fill`."""

    shape: Shape
    dtype: np.dtype

    def __call__(self, parts: Sequence, room: int, size=(), fill=0, dtype=None) -> np.ndarray:
        out = np.full((room, *size), fill, dtype or self.dtype)
        if len(parts):
            values = np.concatenate(parts)
            out[: len(values)] = values
        return out

    def nodes(self, parts: Sequence, size=(), dtype=None) -> np.ndarray:
        return self(parts, self.shape.n_nodes, size, dtype=dtype)

    def graphs(self, values: list, size=(), fill=0, dtype=None) -> np.ndarray:
        return self([values] if values else [], self.shape.n_graphs, size, fill, dtype)


def _labels(samples: Sequence[Sample], pad: _Pad, weighted: bool, seeds) -> Labels:
    """Return the labels of samples, see `collate`."""

    def known(name: str, shape, unknown: float) -> list[np.ndarray]:
        values = [(s, getattr(s, name)) for s in samples]
        return [np.full(shape(s.num_atoms), unknown) if v is None else v for s, v in values]

    given = known("forces", lambda n: (n, 3), np.nan)
    forces = pad.nodes(given, (3,))
    forces_mask = ~np.isnan(forces).any(axis=1)
    forces_mask[sum(map(len, given)) :] = False
    weights = rows = None
    if weighted:
        each = [s.weights for s in samples]
        own = known("atom_weights", lambda n: n, 1.0)
        weights = Weights(
            energy=pad.graphs([w.energy for w in each]),
            forces=pad.nodes([w.forces * a for w, a in zip(each, own, strict=True)]),
            stress=pad.graphs([w.stress for w in each]),
            hessian=pad.nodes([np.full(s.num_atoms, s.weights.hessian) for s in samples]),
        )
    if seeds is not None:
        made = [_hessian_row(*each) for each in zip(samples, seeds, strict=True)]
        direction, values, mask = zip(*made, strict=True) if made else ((), (), ())
        rows = [pad.nodes(direction, (3,)), pad.nodes(values, (3,)), pad.nodes(mask, dtype=bool)]
    return Labels(
        energy=pad.graphs([s.energy or 0.0 for s in samples]),
        forces=np.where(forces_mask[:, None], forces, 0),
        stress=pad.graphs(known("stress", lambda n: (3, 3), 0.0), (3, 3)),
        energy_mask=pad.graphs([s.energy is not None for s in samples], dtype=bool),
        forces_mask=forces_mask,
        stress_mask=pad.graphs([s.stress is not None for s in samples], dtype=bool),
        num_atoms=pad.graphs([s.num_atoms for s in samples], fill=1, dtype=np.int32),
        weights=weights,
        hessian=rows and HessianRows(*rows),
    )


class Batcher:
    """Batches of samples, each padded to the smallest of a few shapes that holds it.

    The shapes depend on the sizes of the samples alone: the largest holds any batch, the others
    batches that occur often. All have room for a padding graph. Every sample is in exactly one
    batch of an epoch; the last batch may have fewer samples and more padding.

    Args:
      samples: at least one.
      batch_size: samples in a batch; at most all of them are used.
      seed: of the order of the samples; non-negative.
      dtype: of the floating-point arrays; float32 or float64.
      max_shapes: the largest number of shapes.
      parts: the number of parts into which each batch is split for data parallel training; if it is
        more than one, the arrays of a batch have a leading axis, [len(own), ...].
      own: numbers of the parts to make, from 0; None for all.
      hessians: whether batches have random rows of Hessians, others in each epoch.
      long_range: of the potential, an `eqfuse.models.ewald.LatentEwald`, whose sums have one size
        for all batches; None for none.
    Raises:
      DataError: no samples, a batch size, number of shapes or of parts below 1, a negative seed.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        batch_size: int,
        *,
        seed: int = 0,
        dtype=np.float32,
        max_shapes: int = 3,
        parts: int = 1,
        own: Sequence[int] | None = None,
        hessians: bool = False,
        long_range=None,
    ):
        if not samples:
            raise DataError("there are no samples to make batches of")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("max_shapes", max_shapes, 1),
            ("parts", parts, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise DataError(f"{name} must be at least {least}, got {value}")
        self.samples = samples if hasattr(samples, "sizes") else Samples(samples)
        self.batch_size = min(batch_size, len(samples))
        self.seed = seed
        self.dtype = np.dtype(dtype)
        self._sizes = self.samples.sizes
        self._parts = parts
        self._own = range(parts) if own is None else own
        self._hessians = hessians
        # decided for all batches: one program is compiled for each shape
        self._how = {"weighted": self.samples.weighted, **of_charges(self.samples, long_range)}
        self._how["heads"] = self.samples[0].head is not None
        self.shapes = choose_shapes(self._sizes, -(-self.batch_size // parts), max_shapes, parts)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.samples) // self.batch_size)

    def batches(self, epoch: int = 0, shuffle: bool = True, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch from number `start` on.

        The order depends on the seed and the epoch only.
        """
        groups = self.groups(epoch, shuffle)
        for group, fit in zip(groups[start:], self._fits(groups)[start:], strict=True):
            parts, made = np.array_split(group, self._parts), []
            for numbers in (parts[k] for k in self._own):
                seeds = [(self.seed, epoch, int(i)) for i in numbers] if self._hessians else None
                some, shape = [self.samples[i] for i in numbers], self.shapes[fit]
                made.append(collate(some, shape, self.dtype, seeds=seeds, **self._how))
            yield made[0] if self._parts == 1 else jax.tree.map(lambda *a: np.stack(a), *made)

    def groups(self, epoch: int = 0, shuffle: bool = True) -> list[np.ndarray]:
        """Return the numbers of the samples in each batch of an epoch."""
        count, size = len(self.samples), self.batch_size
        order = shuffled(count, (self.seed, epoch)) if shuffle else np.arange(count)
        return [order[first : first + size] for first in range(0, count, size)]

    def _fits(self, groups: list[np.ndarray]) -> np.ndarray:
        """Return the number of the smallest shape that holds each batch, [num_batches]."""
        parts = (np.array_split(group, self._parts) for group in groups)
        sums = [[self._sizes[part].sum(axis=0) for part in batch] for batch in parts]
        n_nodes, n_edges = np.max(sums, axis=1).T
        limits = np.array([shape[:2] for shape in self.shapes])
        return np.maximum(
            np.searchsorted(limits[:, 0], n_nodes, "right"),  # one node is padding
            np.searchsorted(limits[:, 1], n_edges, "left"),
        )


def of_charges(samples: Sequence[Sample], long_range) -> dict:
    """Return what `collate` needs of samples for a potential with latent charges; {} without."""
    if long_range is None:
        return {}
    cells = np.stack([sample.cell for sample in samples])
    counts = [sample.num_atoms for sample in samples]
    reach = long_range.reach(cells, cells.any(axis=2), counts)
    return {"reach": reach, "charged": long_range.charge_key is not None}


def shuffled(count: int, entropy: tuple[int, ...], stream: int = 0) -> np.ndarray:
    """Return a permutation [count] that is the same on every platform.

    `entropy` are non-negative integers, such as (seed, epoch); `stream` keeps uses of the same ones
    independent.
    """
    # NumPy fixes the bits of PCG64 and of uniform doubles for longer than those of `permutation`.
    return np.argsort(_uniform(entropy, count, stream), kind="stable")


def _uniform(entropy: tuple[int, ...], count: int, stream: int) -> np.ndarray:
    """Return `count` random numbers from 0 to 1."""
    seeds = np.random.SeedSequence(entropy, spawn_key=(stream,))
    return np.random.Generator(np.random.PCG64(seeds)).random(count)
