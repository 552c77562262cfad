"""Muon for equivariant networks: every matrix of a Linear or of an MLP moves orthogonally."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from eqfuse.training.flat import Flat

RMS = 0.5
"""Root mean square of the elements of an update of a matrix, for a learning rate of one.

A common choice is 0.2, about what Adam's updates have. Weights of this package, like those of
e3nn-jax, have a standard deviation of one (their layers divide by sqrt(fan-in) instead), and were
trained best with 0.5: see benchmarks/RESULTS.md.
"""


PADDING = 0.25
"""Operations with zeros that fewer kernels are worth, as a part of all operations."""


def muon(flat: Flat) -> optax.GradientTransformation:
    """Muon of optax for the matrices, Adam with Nesterov's momentum for all other parameters.

    A matrix maps the channels of one irrep to channels of the same irrep (one `w[i,j]` of a
    Linear, of each species if it has weights of its own), or is the kernel of a dense layer. Its
    momentum is replaced by the nearest orthogonal matrix, times `RMS` sqrt(max(rows, columns)).
    Embeddings, weights of the symmetric contraction, biases, readouts to one channel and scale
    and shift of the energies are not matrices of this kind.

    Args:
      flat: how the parameters lie in the one array that is optimized.
    Returns:
      What to add to that array, for a learning rate of one.
    References: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks";
      Liu et al. 2025, arXiv:2502.16982 (the factor); Koker and Smidt 2025, arXiv:2508.16067
      (an equivariant potential trained with it).
    """
    stacks = _Stacks.of(flat)
    inner = contrib.muon(
        learning_rate=1.0,
        consistent_rms=RMS,
        muon_weight_dimension_numbers={
            **{name: contrib.MuonDimensionNumbers(1, 2) for name in stacks.matrices},
            "others": None,
        },
    )

    def update(gradient, state, params=None):
        del params  # for weight decay, of which there is none
        parts = stacks.split(gradient)
        updates, state = inner.update(parts, state, parts)
        return stacks.join(updates), state

    return optax.GradientTransformation(lambda params: inner.init(stacks.split(params)), update)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the last two axes of a parameter are a matrix from channels to channels.

    Args:
      name: of the parameter in its module.
      shape: its shape.
    """
    linear = name == "kernel" or name.startswith("w[")
    return linear and len(shape) >= 2 and min(shape[-2:]) > 1


@dataclasses.dataclass(frozen=True)
class _Stacks:
    """Matrices of similar shapes as one array, so that few kernels make all of them orthogonal.

    The transpose of an orthogonal matrix is orthogonal, so tall matrices are transposed; rows and
    columns of zeros stay zero, so smaller ones are padded.

    Attributes:
      flat: where the parameters lie.
      matrices: name of the stack, to its rows and columns, and to the numbers of the leaves whose
        matrices are in it.
      others: numbers of all other leaves.
    """

    flat: Flat
    matrices: dict[str, tuple[tuple[int, int], list[int]]]
    others: list[int]

    @classmethod
    def of(cls, flat: Flat) -> "_Stacks":
        numbered = jax.tree.unflatten(flat.tree, range(len(flat.shapes)))
        numbers, others = {}, []
        for path, number in jax.tree_util.tree_leaves_with_path(numbered):
            shape = flat.shapes[number]
            if is_matrix(str(getattr(path[-1], "key", "")), shape):
                numbers.setdefault(tuple(sorted(shape[-2:])), []).append(number)
            else:
                others.append(number)
        counts = {
            shape: sum(math.prod(flat.shapes[n][:-2]) for n in leaves)
            for shape, leaves in numbers.items()
        }
        matrices = {
            f"{rows}x{columns}": ((rows, columns), [n for s in shapes for n in numbers[s]])
            for (rows, columns), shapes in merged(counts).items()
        }
        return cls(flat, matrices, others)

    def split(self, array) -> dict:
        """Stacks [matrices, rows, columns] by name, rows <= columns, and one vector of `others`."""
        leaves = jax.tree.leaves(self.flat.unflatten(array))
        parts = {}
        for name, (shape, numbers) in self.matrices.items():
            parts[name] = jnp.concatenate([_padded(leaves[n], shape) for n in numbers])
        others = [jnp.ravel(leaves[number]) for number in self.others]
        return {**parts, "others": jnp.concatenate([jnp.zeros(0, self.flat.dtype), *others])}

    def join(self, parts: dict):
        """The inverse of `split`."""
        leaves = [None] * len(self.flat.shapes)
        sizes = [math.prod(self.flat.shapes[n]) for n in self.others]
        pieces = zip(self.others, jax.lax.split(parts["others"], sizes), strict=True)
        for name, (_, numbers) in self.matrices.items():
            sizes = [math.prod(self.flat.shapes[n][:-2]) for n in numbers]
            stack = zip(numbers, jax.lax.split(parts[name], sizes), strict=True)
            pieces = (*pieces, *((n, _cut(piece, self.flat.shapes[n])) for n, piece in stack))
        for number, piece in pieces:
            leaves[number] = piece.reshape(self.flat.shapes[number])
        return self.flat.flatten(jax.tree.unflatten(self.flat.tree, leaves))


def merged(counts: dict[tuple[int, int], int]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Shapes that are padded to one, those first that cost the least, while all costs little.

    Args:
      counts: of matrices, by rows and columns.
    Returns:
      Rows and columns of each stack, to the shapes in it.
    """

    def operations(shape, members):
        rows, columns = shape
        return rows * rows * (2 * columns + rows) * sum(counts[m] for m in members)

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
        left -= costs[a, b]
        if left < 0:
            break
        members = stacks.pop(a) + stacks.pop(b)
        stacks.setdefault(union(a, b), []).extend(members)
    return stacks


def _padded(leaf, shape):
    """The matrices of a leaf, [matrices, rows, columns], with zeros up to a shape."""
    rows, columns = leaf.shape[-2:]
    stack = leaf.reshape(-1, rows, columns)
    stack = jnp.swapaxes(stack, 1, 2) if rows > columns else stack
    return jnp.pad(
        stack, ((0, 0), *((0, n - m) for n, m in zip(shape, stack.shape[1:], strict=True)))
    )


def _cut(stack, shape):
    """The inverse of `_padded`; updates are scaled for the columns that there are without zeros."""
    rows, columns = sorted(shape[-2:])
    stack = math.sqrt(columns / stack.shape[2]) * stack[:, :rows, :columns]
    return jnp.swapaxes(stack, 1, 2) if shape[-2] > shape[-1] else stack
