"""The matrices among the parameters, in stacks of similar shapes."""

import collections
import dataclasses
import itertools
import math
import operator

import jax
import jax.numpy as jnp

from eqfuse.train.flat import Flat

PADDING = 0.25
"""Operations with zeros that fewer arrays are worth, as a part of all operations.

The momenta of a run are kept in these arrays, so another value reads no checkpoint of before.
"""

STEPS = 5
"""Iterations of Newton and Schulz, as in optax."""


def with_zeros(stack, shape: tuple[int, int]):
    """Return matrices with zeros around them."""
    missing = (n - m for n, m in zip(shape, stack.shape[1:], strict=True))
    return jnp.pad(stack, ((0, 0), *((0, n) for n in missing)))


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether the last two axes of a parameter are a matrix from channels to channels.

    Args:
      name: of the parameter in its module.
      shape: its shape.
    """
    linear = name == "kernel" or name.startswith("w[")
    return linear and len(shape) >= 2 and min(shape[-2:]) > 1


def place(name: str, shape: tuple[int, ...]) -> tuple:
    """Return where a parameter lies (see `Flat.of`): matrices last, equal shapes together."""
    return (1, *shape) if is_matrix(name, shape) else (0,)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Leaves of one shape, one behind the other.

    Attributes:
      start: of the first.
      count: how many.
      room: of each.
      shape: of each; the last two axes are matrices.
    """

    start: int
    count: int
    room: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + self.count * self.room

    @property
    def wide(self) -> tuple[int, int]:
        """Return rows and columns, the fewer ones first."""
        return tuple(sorted(self.shape[-2:]))

    @property
    def num_matrices(self) -> int:
        return self.count * math.prod(self.shape[:-2])

    def read(self, array, padded: tuple[int, int]):
        """Return its matrices, tall ones transposed, with zeros around them.

        The result is [num_matrices, *padded].
        """
        leaves = array[self.start : self.stop].reshape(self.count, self.room)
        stack = leaves[:, : math.prod(self.shape)].reshape(-1, *self.shape[-2:])
        return with_zeros(self._across(stack), padded)

    def write(self, stack):
        """Return what lies in the array for matrices as `read` gives them."""
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

    Attributes:
      blocks: of all matrices, as they lie in the array.
      shapes: rows and columns that the matrices of each are padded to.
      others: elements before them, of all other parameters.
    """

    blocks: list[_Block]
    shapes: list[tuple[int, int]]
    others: int

    @classmethod
    def of(cls, flat: Flat) -> "Stacks":
        """Return that of an array which `place` has laid out.

        Raises:
          ValueError: it lies otherwise.
        """
        places = [place(flat.names[n], flat.shapes[n]) for n in flat.order]
        if places != sorted(places):
            raise ValueError("Muon needs a layout with matrices last: Flat.of(params, place)")
        blocks, others = [], 0
        placed = zip(places, flat.order, strict=True)
        for where, group in itertools.groupby(placed, operator.itemgetter(0)):
            first, *_ = numbers = [n for _, n in group]
            if where[0]:
                start, room, shape = flat.starts[first], flat.room(first), flat.shapes[first]
                blocks.append(_Block(start, len(numbers), room, shape))
            else:
                others = sum(flat.room(n) for n in numbers)
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
        """Return stacks of matrices by name, and one vector of `others`.

        A stack is [matrices, rows, columns] with rows <= columns.
        """
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
    """Return the shapes that are padded to one, the cheapest first, while all cost little.

    Args:
      counts: of matrices, by rows and columns.
      spared: operations that a stack less is worth; None for `PADDING` of all, together.
    Returns:
      Rows and columns of each stack, to the shapes in it.
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
