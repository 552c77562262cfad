"""Muon for equivariant networks: every matrix of a Linear or of an MLP moves orthogonally."""

import dataclasses
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
    """Matrices of one shape as one array, so that few kernels make all of them orthogonal.

    The transpose of an orthogonal matrix is orthogonal: tall matrices are transposed.

    Attributes:
      flat: where the parameters lie.
      matrices: name of the stack, to numbers of the leaves whose matrices are in it.
      others: numbers of all other leaves.
    """

    flat: Flat
    matrices: dict[str, list[int]]
    others: list[int]

    @classmethod
    def of(cls, flat: Flat) -> "_Stacks":
        numbered = jax.tree.unflatten(flat.tree, range(len(flat.shapes)))
        matrices, others = {}, []
        for path, number in jax.tree_util.tree_leaves_with_path(numbered):
            shape = flat.shapes[number]
            if is_matrix(str(getattr(path[-1], "key", "")), shape):
                rows, columns = sorted(shape[-2:])
                matrices.setdefault(f"{rows}x{columns}", []).append(number)
            else:
                others.append(number)
        return cls(flat, matrices, others)

    def split(self, array) -> dict:
        """Stacks [matrices, rows, columns] by name, and one vector of all `others`."""
        leaves = jax.tree.leaves(self.flat.unflatten(array))
        parts = {
            name: jnp.concatenate([_wide(leaves[number]) for number in numbers])
            for name, numbers in self.matrices.items()
        }
        others = [jnp.ravel(leaves[number]) for number in self.others]
        return {**parts, "others": jnp.concatenate([jnp.zeros(0, self.flat.dtype), *others])}

    def join(self, parts: dict):
        """The inverse of `split`."""
        leaves = [None] * len(self.flat.shapes)
        for name, numbers in (*self.matrices.items(), ("others", self.others)):
            shapes = [self.flat.shapes[number] for number in numbers]
            part = parts[name]
            sizes = [math.prod(s) // math.prod(part.shape[1:]) for s in shapes]
            pieces = jax.lax.split(part, sizes)
            for number, shape, piece in zip(numbers, shapes, pieces, strict=True):
                if name != "others" and shape[-2] > shape[-1]:
                    piece = jnp.swapaxes(piece, 1, 2)
                leaves[number] = piece.reshape(shape)
        return self.flat.flatten(jax.tree.unflatten(self.flat.tree, leaves))


def _wide(leaf):
    """The matrices of a leaf, [matrices, rows, columns], not more rows than columns."""
    rows, columns = leaf.shape[-2:]
    stack = leaf.reshape(-1, rows, columns)
    return jnp.swapaxes(stack, 1, 2) if rows > columns else stack
