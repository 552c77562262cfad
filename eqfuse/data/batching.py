"""Batches of a few fixed shapes, for which few programs are compiled."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from eqfuse.data.columns import Columns, columns, columns_of
from eqfuse.data.errors import DataError
from eqfuse.data.labels import Labels, labels_of, padded
from eqfuse.data.lazy import Lazy, Mapped
from eqfuse.data.shapes import Shape, Waste, choose_shapes
from eqfuse.data.structures import UNWEIGHTED, Weights
from eqfuse.graph import Graph
from eqfuse.ops import Edges


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One structure with its neighbour list, species and relative energy, ready for batches.

    Attributes:
      positions: [n_atoms, 3] float64, Å, of images near their neighbours and the origin (float32
        resolves small numbers); see `eqfuse.data.neighbors.gathering_offsets`.
      species: [n_atoms] int32, index into the table of species.
      senders, receivers: [n_edges] int32, sorted by receiver, then sender.
      shifts: [n_edges, 3] float64, Å, between these images; see `neighbor_list`.
      cell: [3, 3] float64, Å, zero for a molecule.
      energy: eV, relative to the reference energies, float64, or None.
      forces: [n_atoms, 3] float64, eV/Å, or None.
      stress: [3, 3] float64, eV/Å^3, or None.
      name: for messages.
      order: [n_atoms], the number of each atom in the structure; None if the order is the same.
        Large structures are sorted, see `eqfuse.data.ordering`.
      weights: of the labels in the loss.
      config_type: name of the group of structures it belongs to, or None.
    """

    positions: np.ndarray
    species: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    shifts: np.ndarray
    cell: np.ndarray
    energy: float | None
    forces: np.ndarray | None
    stress: np.ndarray | None = None
    name: str = ""
    order: np.ndarray | None = None
    weights: Weights = UNWEIGHTED
    config_type: str | None = None

    def in_structure(self, of_atoms: np.ndarray) -> np.ndarray:
        """Return a property of each atom, [n_atoms, ...], in the order of the structure's atoms."""
        if self.order is None:
            return of_atoms
        out = np.empty_like(of_atoms)
        out[self.order] = of_atoms
        return out

    @property
    def num_atoms(self) -> int:
        return len(self.species)

    @property
    def num_edges(self) -> int:
        return len(self.senders)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """A padded graph and its labels, as numpy arrays until JAX reads them."""

    graph: Graph
    labels: Labels


def collate(
    samples: Sequence[Sample], shape: Shape, dtype=np.float32, weighted: bool = False
) -> Batch:
    """Put samples side by side and pad them to a shape.

    Padding nodes belong to the last graph. Padding edges join nodes to themselves and are spread
    over all nodes, since the edges of one node are summed one after the other.

    Args:
      samples: an empty sequence makes a batch of padding.
      shape: sizes to pad to; at least one node and one graph more than the samples have.
      dtype: of positions, cells and labels; float32 or float64.
      weighted: whether the labels have weights.
    Returns:
      numpy arrays of that shape: graph, and labels in eV, eV/Å and eV/Å^3, zero in the padding.
    Raises:
      DataError: samples that do not fit the shape.
    """
    return collate_columns(columns(samples), shape, dtype, weighted)


def collate_columns(given: Columns, shape: Shape, dtype, weighted: bool) -> Batch:
    """Return what `collate` does of the samples with these columns."""
    atoms = given.num_atoms
    n_nodes, n_edges, n_graphs = int(atoms.sum()), len(given.senders), len(atoms)
    if n_nodes >= shape.n_nodes or n_edges > shape.n_edges or n_graphs >= shape.n_graphs:
        raise DataError(
            f"{n_graphs} samples with {n_nodes} nodes and {n_edges} edges do not fit {shape}, "
            "which has to hold a padding node and a padding graph besides"
        )

    offsets = np.repeat(np.cumsum(atoms) - atoms, given.num_edges)
    padding = shape.n_edges - n_edges
    loops = np.arange(padding) * shape.n_nodes // max(padding, 1)
    senders, receivers = (
        np.concatenate([index + offsets, loops]) for index in (given.senders, given.receivers)
    )
    order = np.argsort(receivers * shape.n_nodes + senders, kind="stable")
    shifts = padded(given.shifts, (shape.n_edges, 3), 0, dtype)
    graph_index = np.full(shape.n_nodes, shape.n_graphs - 1, np.int32)
    graph_index[:n_nodes] = np.repeat(np.arange(n_graphs), atoms)
    graph = Graph(
        positions=padded(given.positions, (shape.n_nodes, 3), 0, dtype),
        species=padded(given.species, (shape.n_nodes,), 0, np.int32),
        edges=Edges.from_arrays(senders[order], receivers[order], shape.n_nodes),
        shifts=shifts[order],
        graph_index=graph_index,
        cells=padded(given.cells, (shape.n_graphs, 3, 3), 0, dtype),
        node_mask=np.arange(shape.n_nodes) < n_nodes,
        graph_mask=np.arange(shape.n_graphs) < n_graphs,
    )
    return Batch(graph, labels_of(given, shape, dtype, weighted))


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
        self.samples = samples if isinstance(samples, Lazy) else tuple(samples)
        self.batch_size = min(batch_size, len(samples))
        self.seed = seed
        self.dtype = np.dtype(dtype)
        self._sizes = sizes_of(samples)
        self._parts = parts
        self._own = range(parts) if own is None else own
        # decided for all batches: one program is compiled for each shape
        self._weighted = (
            samples.weighted
            if hasattr(samples, "weighted")
            else any(sample.weights != UNWEIGHTED for sample in samples)
        )
        self.shapes = choose_shapes(self._sizes, -(-self.batch_size // parts), max_shapes, parts)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.samples) // self.batch_size)

    @property
    def num_shapes(self) -> int:
        return len(self.shapes)

    @property
    def padding_waste(self) -> Waste:
        """Return the fraction of epoch 0, shuffled, that is padding."""
        room = np.array([self.shapes[k][:2] for k in self._fits(0, shuffle=True)]).sum(axis=0)
        return Waste(*(1 - self._sizes.sum(axis=0) / (self._parts * room)).tolist())

    def used_shapes(self, epochs: Iterable[int] = (0,), shuffle: bool = True) -> set[Shape]:
        """Return the shapes that occur in some epochs; one program is compiled for each."""
        used = set()
        for epoch in epochs:
            used |= set(self._fits(epoch, shuffle).tolist())
            if len(used) == len(self.shapes):
                break
        return {self.shapes[k] for k in used}

    def batches(self, epoch: int = 0, shuffle: bool = True, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch from number `start` on.

        The order depends on the seed and the epoch only.
        """
        groups, fits = self.groups(epoch, shuffle), self._fits(epoch, shuffle)
        for group, fit in zip(groups[start:], fits[start:], strict=True):
            parts = np.array_split(group, self._parts)
            made = [
                collate_columns(
                    columns_of(self.samples, parts[k]),
                    self.shapes[fit],
                    self.dtype,
                    self._weighted,
                )
                for k in self._own
            ]
            yield made[0] if self._parts == 1 else jax.tree.map(lambda *a: np.stack(a), *made)

    def groups(self, epoch: int = 0, shuffle: bool = True) -> Sequence[np.ndarray]:
        """Return the numbers of the samples in each batch of an epoch."""
        order, size = self._order(epoch, shuffle), self.batch_size
        return Mapped(lambda first, _: order[first : first + size], range(0, len(order), size))

    def _order(self, epoch: int, shuffle: bool) -> np.ndarray:
        count = len(self.samples)
        return shuffled(count, (self.seed, epoch)) if shuffle else np.arange(count)

    def _fits(self, epoch: int, shuffle: bool) -> np.ndarray:
        """Return the number of the smallest shape that holds each batch, [num_batches]."""
        order = self._order(epoch, shuffle)
        until = np.zeros((len(order) + 1, 2), np.int64)
        np.cumsum(self._sizes[order], axis=0, out=until[1:])
        starts = np.arange(0, len(order), self.batch_size)
        bounds = starts[:, None] + self._split(self.batch_size)
        bounds[-1] = starts[-1] + self._split(len(order) - starts[-1])
        n_nodes, n_edges = (until[bounds[:, 1:]] - until[bounds[:, :-1]]).max(axis=1).T
        limits = np.array([shape[:2] for shape in self.shapes])
        return np.maximum(
            np.searchsorted(limits[:, 0], n_nodes, "right"),  # one node is padding
            np.searchsorted(limits[:, 1], n_edges, "left"),
        )

    def _split(self, count: int) -> np.ndarray:
        """Return where the parts of `count` samples begin and end, [parts + 1]."""
        lengths = [len(part) for part in np.array_split(np.arange(count), self._parts)]
        return np.cumsum([0, *lengths])


def sizes_of(samples: Sequence[Sample]) -> np.ndarray:
    """Return numbers of atoms and edges, [n_samples, 2] int32."""
    stored = getattr(samples, "sizes", None)
    if stored is not None:
        return stored
    return np.array([(s.num_atoms, s.num_edges) for s in samples], np.int32)


def shuffled(count: int, entropy: tuple[int, ...], stream: int = 0) -> np.ndarray:
    """Return a permutation [count] that is the same on every platform.

    Args:
      count: how many.
      entropy: non-negative integers, such as (seed, epoch).
      stream: keeps uses of the same entropy independent.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy, spawn_key=(stream,))))
    # NumPy fixes the bits of PCG64 and of uniform doubles for longer than those of `permutation`.
    return np.argsort(rng.random(count), kind="stable")
