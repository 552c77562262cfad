"""`symmetric_contraction`: MACE's product basis on a form in which A occurs several times.

Every element of e3nn's basis of symmetric maps is a path with its own weight, and its terms are
monomials of the components of A, each once: A_i A_j and A_j A_i are one term. Making pairs of A in
a first form and coupling them with A in a second would have less than half of the terms where there
are many (MACE with l <= 3 to l <= 2: 585 instead of 1301), but two launches for one, and an array
of pairs in memory.
"""

import collections
import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops import _reference
from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import as_int32
from eqfuse.ops._tensor_product import operands, sharing
from eqfuse.ops.algebra.form import Form, Operand, Path, Role, Segment, Slot
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.batch_axes import Leading
from eqfuse.ops.primitives.rules import with_auto_axes

ZERO = 1e-10
"""Coefficients of e3nn's bases below this are rounding."""


def symmetric_contraction(
    x, weights, index=None, *, irreps_out, correlation: int = 3, backend: str | None = None
):
    """Weighted symmetric products of up to `correlation` factors x, within each channel.

        out[z, u, LM] = sum over n <= correlation, paths p of (L, n), components i_1 ... i_n:
                        weights[index[z], p, u] U_p[i_1, ..., i_n, M] x[z, u, i_1] ... x[z, u, i_n]

    with U the orthonormal basis of `e3nn.reduced_symmetric_tensor_product_basis`.

    Args:
      x: IrrepsArray [..., irreps], every irrep with the same multiplicity, the channels.
      weights: [num_indices, paths, channels], or [..., paths, channels] without index, of as many
        paths, in the order, of `symmetric_contraction_paths`.
      index: [...] integers, which of the weights to use, such as the species of each node.
      irreps_out: each with the multiplicity of x, in any order.
      correlation: largest number of factors, at least 1.
      backend: "triton", "numba", "xla", "e3nn", "triton-interpret", or None to choose by device.
    Returns:
      IrrepsArray [..., irreps_out] of the promoted dtype, accumulated in float32 or better.
    Raises:
      ValueError: multiplicities that differ, an irrep that x cannot become, a correlation below 1,
        weights or an index of another shape, naming both, or of another kind; a backend that cannot
        run here.
    References: Batatia et al. 2022, eqs. 10 and 11.
    """
    backend = resolve(backend, "symmetric_contraction", x, weights)
    [x] = operands("symmetric_contraction", x)
    irreps_out = e3nn.Irreps(irreps_out)
    paths = symmetric_contraction_paths(x.irreps, irreps_out, correlation)
    mul, num_paths = x.irreps[0].mul, sum(count for *_, count in paths)
    weights = _gathered(weights, index, (num_paths, mul), x.shape[:-1])
    dtype = jnp.result_type(x.dtype, weights.dtype)
    x, weights = x.astype(dtype), weights.astype(dtype)
    if backend == "e3nn":
        return _reference.symmetric_contraction(x, weights, irreps_out, correlation)
    form = make_form(_irs(x.irreps), _irs(irreps_out), mul, correlation)
    leading = Leading.of(x.shape[:-1], [x.array])
    shared = weights.ndim == 2
    weights = weights.reshape(1, -1) if shared else leading.rows(weights, others=2)
    arrays = [leading.rows(x.array), weights]
    [out] = forms.evaluate(sharing(form, arrays, leading.count), arrays, backend=backend)
    return e3nn.IrrepsArray(irreps_out, leading.apart(out))


def symmetric_contraction_paths(irreps, irreps_out, correlation: int):
    """The paths of `symmetric_contraction`, in the order of its weights.

    Args:
      irreps, irreps_out, correlation: as there.
    Returns:
      ((irrep of the output, number of factors, number of paths), ...): for each irrep of the
      output, in order, for each number of factors from 1 to `correlation`.
    Raises:
      ValueError: multiplicities that differ, or an irrep that no path gives.
    """
    irreps, irreps_out = e3nn.Irreps(irreps), e3nn.Irreps(irreps_out)
    muls = {mul for mul, _ in irreps + irreps_out}
    if len(muls) != 1 or 0 in muls:
        raise ValueError(
            "symmetric_contraction: all irreps of x and irreps_out need one multiplicity, their "
            f"channels, got {irreps} and {irreps_out}"
        )
    if correlation < 1:
        raise ValueError(f"correlation must be at least 1, got {correlation}")
    irs, paths = _irs(irreps), []
    for ir in _irs(irreps_out):
        found = [(ir, nu, _basis(irs, ir, nu).shape[-2]) for nu in range(1, correlation + 1)]
        if not any(count for *_, count in found):
            raise ValueError(
                f"irreps_out {irreps_out} holds {ir}, which no symmetric product of up to "
                f"{correlation} factors of {irreps} gives"
            )
        paths += found
    return tuple(paths)


def _irs(irreps: e3nn.Irreps) -> tuple[e3nn.Irrep, ...]:
    return tuple(ir for _, ir in irreps)


def _gathered(weights, index, shape, leading):
    """The weights of each row, [..., paths, channels], or [paths, channels] for all rows."""
    weights = jnp.asarray(weights)
    if index is None:
        if weights.shape[-2:] != shape:
            raise ValueError(
                f"weights must be [..., {shape[0]} paths, {shape[1]} channels], got "
                f"shape {weights.shape}"
            )
        if math.prod(weights.shape[:-2]) == 1:
            return weights.reshape(shape)
        return jnp.broadcast_to(weights, (*leading, *shape))
    if weights.ndim != 3 or weights.shape[1:] != shape:
        raise ValueError(
            f"weights must be [num_indices, {shape[0]} paths, {shape[1]} channels], got shape "
            f"{weights.shape}"
        )
    index = index if isinstance(index, jax.Array) else np.asarray(index)
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise ValueError(f"index must hold integers, got {index.dtype}")
    index = jnp.asarray(as_int32(index))
    if len(weights) == 1:  # of one species, say
        return weights[0]
    # the gradient of the weights is a sum over rows, in float32 or better
    wide = weights.astype(jnp.promote_types(weights.dtype, jnp.float32))
    index = jnp.broadcast_to(index, leading)
    [found] = with_auto_axes(lambda w, i: [w[i]], [wide, index], (None, "rows"), ("rows",))
    return found.astype(weights.dtype)


@functools.cache
def _basis(irs: tuple[e3nn.Irrep, ...], ir_out: e3nn.Irrep, degree: int) -> np.ndarray:
    """e3nn's basis of symmetric maps: [d, ..., d, number of maps, ir_out.dim], float64."""
    maps = _reference.symmetric_basis(irs, ir_out, degree)
    return np.asarray(maps.array, np.float64).reshape(*maps.shape[:-1], -1, ir_out.dim)


@functools.cache
def make_form(irs, irs_out, mul: int, correlation: int) -> Form:
    """The form of a contraction: inputs x and w, output out, by rows.

    Args:
      irs, irs_out: irreps of x and of the output, each of `mul` channels.
      mul, correlation: as in `symmetric_contraction`.
    """
    paths, number = [], 0
    for out, ir in enumerate(irs_out):
        for degree in range(1, correlation + 1):
            maps = _basis(irs, ir, degree)
            for k in range(maps.shape[-2]):
                for blocks, terms in _polynomials(irs, maps[..., k, :]).items():
                    factors = (*(Slot(0, s) for s in blocks), Slot(1, number))
                    paths.append(Path(factors, Slot(0, out), terms))
                number += 1
    x = _operand("x", irs, mul, Role.LEFT)
    w = _operand("w", (e3nn.Irrep("0e"),) * number, mul, Role.OTHER)
    out = _operand("out", irs_out, mul, Role.OUTPUT)
    return Form((x, w), (out,), tuple(paths)).merged()


def _polynomials(irs, coefficients: np.ndarray):
    """Terms of a map [d, ..., d, dim], by the blocks of x in increasing order; weights have one."""
    block = [(s, i) for s, ir in enumerate(irs) for i in range(ir.dim)]
    found = collections.defaultdict(collections.Counter)
    for *places, component in np.argwhere(abs(coefficients) > ZERO).tolist():
        factors = [block[place] for place in sorted(places)]
        key = (*(i for _, i in factors), 0, component)
        found[tuple(s for s, _ in factors)][key] += float(coefficients[*places, component])
    return {blocks: tuple(terms.items()) for blocks, terms in found.items()}


def _operand(name: str, irs, mul: int, role: Role) -> Operand:
    starts = np.cumsum([0, *(mul * ir.dim for ir in irs)]).tolist()
    segments = [Segment(s, mul, ir.dim, ir.dim) for s, ir in zip(starts, irs, strict=False)]
    return Operand(name, starts[-1], tuple(segments), channels=True, role=role)
