"""Muon for equivariant networks: every matrix of a Linear or of an MLP moves orthogonally."""

import collections
import dataclasses
import itertools
import math
import operator

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from eqfuse.train.flat import Flat

RMS = 0.5
"""Root mean square of the elements of an update of a matrix, for a learning rate of one.

A common choice is 0.2, about what Adam's updates have. Weights of this package, like those of
e3nn-jax, have a standard deviation of one (their layers divide by sqrt(fan-in) instead), and were
trained better with 0.5 to 1: see benchmarks/results/accuracy.md.
"""

PADDING = 0.25
"""Operations with zeros that fewer arrays are worth, as a part of all operations.

The momenta of a run are kept in these arrays, so another value reads no checkpoint of before.
"""

SPARED = 2.1e9
"""Operations with zeros that are worth the launches of a stack on a GPU: a prediction.

25 launches, each of which costs 1.8 µs more than its work, and 47 TFLOP/s.
"""

COEFFICIENTS, BETA, EPS, STEPS = (3.4445, -4.7750, 2.0315), 0.95, 1e-8, 5
"""Coefficients of Newton-Schulz iterations, Nesterov's momentum, iterations: those of optax."""


def muon(flat: Flat, spared: float | None = None) -> optax.GradientTransformation:
    """Return Muon for the matrices, Adam with Nesterov's momentum for other parameters.

    A matrix maps the channels of one irrep to channels of the same irrep (one `w[i,j]` of a
    Linear, of each species if it has weights of its own), or is the kernel of a dense layer. Its
    momentum is replaced by the nearest orthogonal matrix, times `RMS` sqrt(max(rows, columns)).
    Embeddings, weights of the symmetric contraction, biases, readouts to one channel and scale
    and shift of the energies are not matrices of this kind.

    Updates and state are those of `optax.contrib.muon`, which multiplies matrices of each shape
    by themselves and so launches several times as many kernels on a GPU.

    The parameters lie in one array as `Flat.of(params, place)` says; its update is for a learning
    rate of one. `spared` are operations with zeros that a stack of matrices less is worth; None for
    none on a CPU and `SPARED` elsewhere.

    References: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks";
      Liu et al. 2025, arXiv:2502.16982 (the factor); Koker and Smidt 2025, arXiv:2508.16067
      (an equivariant potential trained with it).
    """
    if spared is None:
        spared = 0.0 if jax.default_backend() == "cpu" else SPARED
    stacks = Stacks.of(flat)
    as_in_optax = [optax.identity()] * 3  # its states, of which these are empty
    inner = optax.partition(
        {
            "muon": optax.chain(_scale_by_muon(spared), *as_in_optax),
            "adam": optax.nadamw(1.0, eps=EPS, weight_decay=0.0),
        },
        {"others": "adam"} | dict.fromkeys(stacks.names, "muon"),
    )

    def update(gradient, state, params=None):
        del params  # for weight decay, of which there is none
        parts = stacks.split(gradient)
        updates, state = inner.update(parts, state, parts)
        return stacks.join(updates), state

    return optax.GradientTransformation(lambda params: inner.init(stacks.split(params)), update)


def _scale_by_muon(spared: float) -> optax.GradientTransformation:
    """Return `scale_by_muon` of optax and `scale_by_shape`, with fewer, larger matmuls."""
    of_optax = contrib.scale_by_muon(ns_coeffs=COEFFICIENTS, ns_steps=STEPS, beta=BETA)

    def update(gradients, state, params=None):
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(gradients, state.mu, BETA, 1)
        ahead = jax.tree.map(
            lambda m, g: BETA * m + (1 - BETA) * g,
            optax.tree.bias_correction(mu, BETA, optax.safe_increment(count)),
            optax.tree.bias_correction(gradients, BETA, count),
        )
        leaves, structure = jax.tree.flatten(ahead)
        leaves = [-RMS * math.sqrt(a.shape[2]) * a for a in _orthogonal_together(leaves, spared)]
        updates = jax.tree.unflatten(structure, leaves)
        return updates, contrib.MuonState(count=count, mu=mu, ns_coeffs=state.ns_coeffs)

    return optax.GradientTransformation(of_optax.init, update)


def _orthogonal_together(arrays: list, spared: float) -> list:
    """Return `_orthogonal` of each array, padded with zeros and put together where that pays."""
    shapes = [array.shape[1:] for array in arrays]
    counts = {shape: array.shape[0] for shape, array in zip(shapes, arrays, strict=True)}
    orthogonal = {}
    for stack, members in merged(counts, spared=spared).items():
        numbers = [n for n, shape in enumerate(shapes) if shape in members]
        together = jnp.concatenate([_with_zeros(arrays[n], stack) for n in numbers])
        sizes = [arrays[n].shape[0] for n in numbers]
        for n, part in zip(numbers, jax.lax.split(_orthogonal(together), sizes), strict=True):
            orthogonal[n] = part[:, : shapes[n][0], : shapes[n][1]]
    return [orthogonal[n] for n in range(len(arrays))]


def _orthogonal(stack):
    """Return the nearly orthogonal matrices [matrices, rows, columns] of Newton and Schulz.

    An iteration of optax is x -> a x + (b A + c A A) x, with A = x x^T. Here y = s x, where s
    becomes s / a, so that addends have no factor: XLA makes one launch for a GPU of a matmul, its
    factor and such an addend, if nothing but a barrier reads the sum.
    """
    a, b, c = COEFFICIENTS
    norms = jnp.linalg.norm(stack, axis=(1, 2), keepdims=True)
    y, s = jax.lax.optimization_barrier(stack / (norms + EPS)), 1.0
    for _ in range(STEPS):
        square = s**-2 * (y @ jnp.swapaxes(y, 1, 2))
        y = y + b / a * ((square + c / b * (square @ square)) @ y)
        y, s = jax.lax.optimization_barrier(y), s / a
    return y / s


def _with_zeros(stack, shape: tuple[int, int]):
    missing = (n - m for n, m in zip(shape, stack.shape[1:], strict=True))
    return jnp.pad(stack, ((0, 0), *((0, n) for n in missing)))


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Test whether the last two axes of a parameter are a matrix from channels to channels."""
    linear = name == "kernel" or name.startswith("w[")
    return linear and len(shape) >= 2 and min(shape[-2:]) > 1


def place(name: str, shape: tuple[int, ...]) -> tuple:
    """Return the order of a parameter (see `Flat.of`): matrices last, equal shapes together."""
    return (1, *shape) if is_matrix(name, shape) else (0,)


@dataclasses.dataclass(frozen=True)
class _Block:
    """`count` leaves of one shape, one behind the other, from `start`, with `room` for each."""

    start: int
    count: int
    room: int
    shape: tuple[int, ...]

    @property
    def wide(self) -> tuple[int, int]:
        """Return rows and columns, the fewer ones first."""
        return tuple(sorted(self.shape[-2:]))

    @property
    def num_matrices(self) -> int:
        return self.count * math.prod(self.shape[:-2])

    def read(self, array, padded: tuple[int, int]):
        """Return its matrices [num_matrices, *padded], tall ones transposed, with zeros around."""
        stop = self.start + self.count * self.room
        leaves = array[self.start : stop].reshape(self.count, self.room)
        stack = leaves[:, : math.prod(self.shape)].reshape(-1, *self.shape[-2:])
        return _with_zeros(self._across(stack), padded)

    def write(self, stack):
        """Return the flat array of matrices that `read` gives."""
        rows, columns = self.wide
        leaves = self._across(stack[:, :rows, :columns]).reshape(self.count, -1)
        return jnp.ravel(jnp.pad(leaves, ((0, 0), (0, self.room - leaves.shape[1]))))

    def _across(self, stack):
        return jnp.swapaxes(stack, 1, 2) if self.shape[-2] > self.shape[-1] else stack


@dataclasses.dataclass(frozen=True)
class Stacks:
    """Matrices of similar shapes as one array, so that few kernels make all of them orthogonal.

    The transpose of an orthogonal matrix is orthogonal, so tall matrices are transposed; rows and
    columns of zeros stay zero, so smaller ones are padded.
    """

    blocks: list[_Block]  # of all matrices, as they lie in the array
    shapes: list[tuple[int, int]]  # rows and columns that the matrices of each are padded to
    others: int  # elements before them, of all other parameters

    @classmethod
    def of(cls, flat: Flat) -> "Stacks":
        """Return that of an array which `place` has laid out."""
        places = [place(flat.names[n], flat.shapes[n]) for n in flat.order]
        if places != sorted(places):
            raise ValueError("Muon needs a layout with matrices last: Flat.of(params, place)")
        blocks, others = [], 0
        placed = zip(places, flat.order, strict=True)
        for (matrix, *shape), group in itertools.groupby(placed, operator.itemgetter(0)):
            first, *_ = numbers = [n for _, n in group]
            room = flat.room(first)
            if matrix:
                blocks.append(_Block(flat.starts[first], len(numbers), room, tuple(shape)))
            else:
                others = sum(map(flat.room, numbers))
        counts = collections.Counter()
        for block in blocks:
            counts[block.wide] += block.num_matrices
        padded = {shape: stack for stack, shapes in merged(counts).items() for shape in shapes}
        return cls(blocks, [padded[block.wide] for block in blocks], others)

    @property
    def names(self) -> dict[str, list[int]]:
        """Return the names of the stacks, and the numbers of the blocks in each."""
        names = {}
        for number, (rows, columns) in enumerate(self.shapes):
            names.setdefault(f"{rows}x{columns}", []).append(number)
        return names

    def split(self, array) -> dict:
        """Return stacks [matrices, rows, columns], rows <= columns, and one vector of `others`."""
        parts = {"others": array[: self.others]}
        for name, numbers in self.names.items():
            blocks = [self.blocks[n].read(array, self.shapes[n]) for n in numbers]
            parts[name] = jnp.concatenate(blocks)
        return parts

    def join(self, updates: dict):
        """Return the array of updates like `split`, without padding, scaled for their columns."""
        parts = [None] * len(self.blocks)
        for name, numbers in self.names.items():
            sizes = [self.blocks[n].num_matrices for n in numbers]
            for n, stack in zip(numbers, jax.lax.split(updates[name], sizes), strict=True):
                scale = math.sqrt(self.blocks[n].wide[1] / self.shapes[n][1])
                parts[n] = self.blocks[n].write(scale * stack)
        return jnp.concatenate([updates["others"], *parts])


def merged(
    counts: dict[tuple[int, int], int], spared: float | None = None
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the shapes that are padded to one stack, by rows and columns, while all cost little.

    `counts` are of matrices by rows and columns, and `spared` operations that a stack less is
    worth; None for `PADDING` of all, together.
    """

    def operations(shape, members):
        rows, columns = shape
        return STEPS * 2 * rows * rows * (2 * columns + rows) * sum(counts[m] for m in members)

    def union(a, b):
        return tuple(map(max, a, b))

    stacks = {shape: [shape] for shape in sorted(counts)}
    left = PADDING * sum(operations(shape, members) for shape, members in stacks.items())
    while len(stacks) > 1:
        costs = {}
        for a, b in itertools.combinations(stacks, 2):
            before = operations(a, stacks[a]) + operations(b, stacks[b])
            costs[a, b] = operations(union(a, b), stacks[a] + stacks[b]) - before
        a, b = min(costs, key=costs.get)
        left = left - costs[a, b] if spared is None else spared - costs[a, b]
        if left < 0:
            break
        members = stacks.pop(a) + stacks.pop(b)
        stacks.setdefault(union(a, b), []).extend(members)
    return stacks
