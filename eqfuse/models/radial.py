"""Directions and lengths of edges, and smooth functions of the length."""

import functools
import math

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.models import mlp
from eqfuse.models.radial_table import COLLECTION, RadialTable, kept

TOGETHER = 3
"""Largest number of networks in a kernel, so that kernels do not grow with the layers."""


def bessel_basis(
    lengths: jax.Array, num_bessel: int, cutoff: float, frequencies: jax.Array | None = None
) -> jax.Array:
    """Return Bessel functions of the edge length, orthonormal on [0, c] for the measure d^2.

        B_n(d) = sqrt(2 / c) sin(n pi d / c) / d,    n = 1 ... num_bessel

    At bond lengths (d of 1 to 1.5 Å, c of 5 Å) this is of the order of 0.5. A basis of unit
    variance over the sphere is ten times that at bonds, and the radial networks of three layers
    multiply it: untrained forces are then of the order of 300 eV/Å instead of 1 eV/Å. Lengths
    [n_edges] Å are positive, and the result is [n_edges, num_bessel]. Frequencies that were trained
    [num_bessel], 1/Å, are in the place of n pi / c.

    References: Gasteiger et al. 2020, eq. 7.
    """
    if frequencies is None:
        frequencies = bessel_frequencies(num_bessel, cutoff, lengths.dtype)
    lengths = lengths[:, None]
    return math.sqrt(2 / cutoff) * jnp.sin(frequencies.astype(lengths.dtype) * lengths) / lengths


def bessel_frequencies(num_bessel: int, cutoff: float, dtype) -> jax.Array:
    """Return n pi / c of the Bessel functions, 1/Å."""
    return jnp.arange(1, num_bessel + 1, dtype=dtype) * (math.pi / cutoff)


def spline_basis(x: jax.Array, count: int, span: int) -> jax.Array:
    """Return bumps on a grid, which are zero at 1 and beyond, with three derivatives.

        b_k(x) = (1 - cos(2 pi (x - l_k) / w))^2 / 4    for 0 < x - l_k < w

    for distances x in units of the cutoff, with the width w = (span + 1) / count and the left ends
    l_k = (k - span) / count, where `span` is how many others a bump overlaps with on its right.

    References: Tan et al. 2025, arXiv:2504.16068; nequip-allegro 0.8.
    """
    width = (span + 1) / count
    lower = (jnp.arange(count, dtype=x.dtype) - span) / count
    within = jnp.clip(x[:, None] - lower, 0, width)
    return (1 - jnp.cos(2 * math.pi / width * within)) ** 2 / 4


def polynomial_cutoff(lengths: jax.Array, cutoff: float, power: int) -> jax.Array:
    """Return a polynomial that falls from 1 to 0 at the cutoff, with two derivatives.

        u(x) = 1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2),    x = d / cutoff

    evaluated as (1 - x)^3 times a polynomial with positive coefficients, which does not cancel near
    the cutoff as the sum above does. The power p is at least 1.

    References: Gasteiger et al. 2020, eq. 8.
    """
    x = lengths / cutoff
    series = jnp.zeros_like(x)
    for k in reversed(range(power)):
        series = series * x + (k + 1) * (k + 2) / 2
    return jnp.where(x < 1, (1 - x) ** 3 * series, 0)


def xplor_cutoff(lengths: jax.Array, onset: float, cutoff: float) -> jax.Array:
    """Return a function that is 1 up to an onset and falls to 0, with one continuous derivative.

        u(d) = (c^2 - d^2)^2 (c^2 + 2 d^2 - 3 o^2) / (c^2 - o^2)^3    for o < d < c

    References: SevenNet (Park et al. 2024, J. Chem. Theory Comput. 20, 4857); HOOMD-blue's XPLOR.
    """
    on, cut, squares = onset**2, cutoff**2, lengths**2
    tail = (cut - squares) ** 2 * (cut + 2 * squares - 3 * on) / (cut - on) ** 3
    return jnp.where(lengths < onset, 1, jnp.where(lengths < cutoff, tail, 0))


def lengths_and_directions(vectors: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the lengths [n_edges] Å and directions of vectors [n_edges, 3], and which are real.

    An edge of zero length (padding) is not: its length and direction are constants, to be masked by
    the caller, so that derivatives are finite.
    """
    real = jnp.any(vectors != 0, axis=-1)
    placeholder = jnp.array([0, 1, 0], vectors.dtype)
    vectors = jnp.where(real[:, None], vectors, placeholder)
    lengths = jnp.sqrt(jnp.sum(vectors**2, axis=-1))
    return lengths, vectors / lengths[:, None], real


def spherical_harmonics(directions: jax.Array, ls: range) -> e3nn.IrrepsArray:
    """Return spherical harmonics of unit vectors, normalised so that squares have mean 1.

    They are an IrrepsArray [n_edges, 0e + 1o + 2e + ...] of the increasing degrees `ls`, by the
    recursion of `e3nn_jax.spherical_harmonics`, which takes seconds to trace.
    """
    columns = {0: [jnp.ones_like(directions[..., 0])]}
    columns[1] = [math.sqrt(3) * directions[..., i] for i in range(3)]
    for l in range(2, ls[-1] + 1):
        l2 = 1 << (l - 1).bit_length() - 1  # a power of two, so that products are few
        l1 = l - l2
        coefficients = e3nn.clebsch_gordan(l1, l2, l)
        norm = math.sqrt((2 * l1 + 1) * (2 * l2 + 1) / (2 * l + 1))
        coefficients /= norm * np.linalg.norm(coefficients[l1, l2])
        # without matrix products, so that XLA fuses them and their derivatives into few kernels
        columns[l] = [
            sum(c[i, j] * columns[l1][i] * columns[l2][j] for i, j in np.argwhere(c).tolist())
            for c in np.moveaxis(coefficients.astype(directions.dtype), 2, 0)
        ]
    array = jnp.stack([column for l in ls for column in columns[l]], axis=-1)
    return e3nn.IrrepsArray([(1, (l, (-1) ** l)) for l in ls], array)


class RadialNetworks(nn.Module):
    """The radial network of every layer: from the basis to weights of tensor products.

    Each is an `e3nn.flax.MultiLayerPerceptron` with normalised silu, without bias, so that its
    output vanishes with the basis, at the cutoff and for padding. On a GPU, and on a CPU for few
    edges, the kernels of eqfuse compute some of them side by side; XLA, which computes the others,
    has derivatives of many edges compute the hidden layers again instead of keeping them. From a
    table, they are computed at its knots only.

    References: Batzner et al. 2022, eq. 8.
    """

    hidden: tuple[int, ...]  # widths of the hidden layers
    outputs: tuple[int, ...]  # width of the output of each network
    backend: str | None
    dtype: jnp.dtype | None = None  # of what is read from a table; None: that of the basis

    @nn.compact
    def __call__(self, basis):
        """Return each network, [n_edges, width], of a basis [n_edges, num_bessel] or a table."""
        networks = [
            mlp.Kernels((basis.shape[1], *self.hidden, width), name=f"layer_{k}")(basis.dtype)
            for k, width in enumerate(self.outputs)
        ]
        if isinstance(basis, RadialTable):
            made = functools.cache(lambda: basis.networks(networks))  # all, where any is made
            tables = [kept(self, f"table_{k}", lambda k=k: made()[k]) for k in range(len(networks))]
            backend = ops.resolve(self.backend, "interpolate")
            is_constant = self.has_variable(COLLECTION, "table_0")
            if backend == "llvm" and is_constant and self.dtype in (None, basis.dtype):
                return [basis.tabulated(table) for table in tables]
            if mlp.has_few_rows(basis):
                return basis.of_edges(tables, self.dtype)
            # apart, so that weights of one layer need no other's memory
            return [out for table in tables for out in basis.of_edges([table], self.dtype)]
        few = mlp.has_few_rows(basis)
        chosen = ops.resolve(self.backend, "grouped_dense")
        if chosen not in ("xla", "e3nn", "llvm") or (chosen == "llvm" and few):
            groups = [networks[k : k + TOGETHER] for k in range(0, len(networks), TOGETHER)]
            return [out for group in groups for out in _in_groups(basis, group, self.backend)]
        one = _hidden_layers if few else jax.checkpoint(_hidden_layers)
        hidden = [one(basis, kernels[:-1]) for kernels in networks]
        last = [kernels[-1] for kernels in networks]
        return [mlp.dense(h, w, self.backend) for h, w in zip(hidden, last, strict=True)]


def _hidden_layers(x, kernels):
    act = mlp.normalized(jax.nn.silu)
    for kernel in kernels:
        x = act(mlp.dense(x, kernel, "xla"))
    return x


def _in_groups(x, networks, backend):
    """Return the outputs of networks whose hidden layers have the same shapes."""
    act = mlp.normalized(jax.nn.silu)
    *hidden, last = zip(*networks, strict=True)
    for kernels in hidden:
        scale = mlp.scale(kernels[0])
        x = act(ops.grouped_dense(x, kernels, scale=scale, backend=backend))
    return ops.grouped_dense(x, last, scale=mlp.scale(last[0]), split=True, backend=backend)
