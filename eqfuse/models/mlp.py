"""Dense layers without bias, as in `e3nn.flax.MultiLayerPerceptron`, on the backend of the ops."""

import itertools
import math
from collections.abc import Callable

import e3nn_jax as e3nn
import flax.linen as nn
import jax

from eqfuse import ops
from eqfuse.ops.backends.activations import normalization

FEW_ROWS = 16384
"""Number of rows up to which launches and threads cost more than arithmetic."""


class MLP(nn.Module):
    """`e3nn.flax.MultiLayerPerceptron` without bias: the same parameters, the same results."""

    widths: tuple[int, ...]  # of the layers
    act: Callable | None  # between layers, normalised
    backend: str | None

    @nn.compact
    def __call__(self, x):
        """Return the network of x [rows, columns], [rows, widths[-1]]."""
        *hidden, last = kernels((x.shape[1], *self.widths), x.dtype)
        act = normalized(self.act)
        for kernel in hidden:
            x = act(dense(x, kernel, self.backend))
        return dense(x, last, self.backend)


class Kernels(nn.Module):
    """The parameters of an `MLP` without its computation."""

    sizes: tuple[int, ...]  # of its input and of the output of each layer

    @nn.compact
    def __call__(self, dtype):
        return kernels(self.sizes, dtype)


def kernels(sizes, dtype) -> list[jax.Array]:
    """Return the matrices of the layers of a module between these sizes, its parameters."""
    pairs = enumerate(itertools.pairwise(sizes))
    return [_Kernel(shape, name=f"Dense_{i}")(dtype) for i, shape in pairs]


def normalized(act: Callable | None) -> Callable:
    """Return an activation scaled to keep the variance of normal numbers, as e3nn-jax does.

    Its constant is that of float64 in any precision: the one that e3nn-jax finds in float32 is off
    by 2e-6, which the layers of a network make 1e-5.
    """
    if act is None:
        return lambda x: x
    c = normalization(act, x64=True)
    return lambda x: act(x) / c


def gate(x: e3nn.IrrepsArray, acts: dict[str, Callable], normalize: bool = True):
    """Return `e3nn.gate` with the given activations, normalised by constants of float64."""
    acts = {name: normalized(act) for name, act in acts.items()} if normalize else acts
    return e3nn.gate(x, normalize_act=False, **acts)


def dense(x, kernel, backend: str | None):
    """Return x times a matrix, normalised.

    On a CPU, few rows are multiplied by a native kernel: XLA's threads take longer to start.
    """
    if has_few_rows(x) and ops.resolve(backend, "grouped_dense") == "llvm":
        return ops.grouped_dense(x, [kernel], scale=scale(kernel), backend=backend)
    # not jnp.dot, whose transpose asks for its dtype by name: float64 where x64 is off
    return scale(kernel) * jax.lax.dot_general(x, kernel, (((1,), (0,)), ((), ())))


def has_few_rows(x) -> bool:
    """Check that an array has at most `FEW_ROWS` rows; False for a symbolic number of rows."""
    rows = x.shape[0]
    return isinstance(rows, int) and rows <= FEW_ROWS


def scale(kernel) -> float:
    """Return the factor by which e3nn-jax normalises a dense layer."""
    return math.sqrt(1 / kernel.shape[0]) ** _gradient_normalization()


class _Kernel(nn.Module):
    shape: tuple[int, int]

    @nn.compact
    def __call__(self, dtype):
        exponent = 1 - _gradient_normalization()
        init = nn.initializers.normal(stddev=math.sqrt(1 / self.shape[0]) ** exponent)
        return self.param("kernel", init, self.shape, dtype)


def _gradient_normalization() -> float:
    value = e3nn.config("gradient_normalization")
    return {"element": 0.0, "path": 1.0}[value] if isinstance(value, str) else value
