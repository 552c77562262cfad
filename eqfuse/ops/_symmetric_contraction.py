"""`symmetric_contraction`: MACE's product basis, in one kernel."""

import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops import _reference
from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import group_by_interval, nearest
from eqfuse.ops._tensor_product import operands, sharing
from eqfuse.ops.ir.form import Index
from eqfuse.ops.ir.products import basis, contraction
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.rules import BatchAxes


def symmetric_contraction(
    x, weights, index=None, *, irreps_out, correlation: int = 3, backend: str | None = None
):
    """Compute weighted symmetric products of up to `correlation` factors x, within each channel.

        out[z, u, LM] = sum over n <= correlation, paths p of (L, n), components i_1 ... i_n:
                        weights[index[z], p, u] U_p[i_1, ..., i_n, M] x[z, u, i_1] ... x[z, u, i_n]

    with U the orthonormal basis of `e3nn.reduced_symmetric_tensor_product_basis`.

    Args:
      x: IrrepsArray [..., irreps], every irrep with the same multiplicity, the channels.
      weights: [num_indices, paths, channels], or [..., paths, channels] without index, of as many
        paths, in the order, of `symmetric_contraction_paths`.
      index: [...] integers, which of the weights to use, such as the species of each node; one
        that is negative or out of range is read as by `eqfuse.ops.Linear`.
      irreps_out: each with the multiplicity of x, in any order.
      correlation: largest number of factors, at least 1.
      backend: as in `eqfuse.ops.tensor_product`.
    Returns:
      IrrepsArray [..., irreps_out] of the promoted dtype, accumulated in float32 or better.
    Raises:
      ValueError: multiplicities that differ, an irrep that x cannot become, a correlation below 1,
        weights or an index of another shape, naming both, or of another kind; a backend that cannot
        run here.
    References: Batatia et al. 2022, eqs. 10 and 11.

    Example:
      >>> x = e3nn.IrrepsArray("2x0e+2x1o", jnp.ones((5, 8)))  # five atoms, two channels
      >>> ops.symmetric_contraction_paths(x.irreps, "2x0e", correlation=2)
      ((0e, 1, 1), (0e, 2, 2))
      >>> weights = jnp.ones((2, 3, 2))  # of two species, three paths, two channels
      >>> how = {"irreps_out": "2x0e", "correlation": 2}
      >>> ops.symmetric_contraction(x, weights, [0, 0, 1, 1, 1], **how).shape
      (5, 2)
    """
    backend = resolve(backend, "symmetric_contraction", x, weights)
    [x] = operands("symmetric_contraction", x)
    irreps_out = e3nn.Irreps(irreps_out)
    paths = symmetric_contraction_paths(x.irreps, irreps_out, correlation)
    mul, num_paths = x.irreps[0].mul, sum(count for *_, count in paths)
    weights, index = _checked(weights, index, (num_paths, mul), x.shape[:-1])
    if index is not None and backend != "llvm":
        # its gradient is a sum over rows, in float32 or better
        wide = weights.astype(jnp.promote_types(weights.dtype, jnp.float32))
        weights, index = wide[index].astype(weights.dtype), None
    dtype = jnp.result_type(x.dtype, weights.dtype)
    x, weights = x.astype(dtype), weights.astype(dtype)
    if backend == "e3nn":
        return _reference.symmetric_contraction(x, weights, irreps_out, correlation)
    form = contraction(_irs(x.irreps), _irs(irreps_out), mul, correlation)
    batch_axes, edges = BatchAxes(x.shape[:-1]), None
    if index is not None:  # the kernel reads the weights where they are
        edges = group_by_interval(index.reshape(-1), len(weights))
        form = form.indexed({1: Index.RECEIVER})
    if index is not None or weights.ndim == 2:
        weights = weights.reshape(-1, num_paths * mul)
    else:
        weights = batch_axes.flatten(weights, others=2)
    arrays = [batch_axes.flatten(x.array), weights]
    form = form if edges else sharing(form, arrays, batch_axes.count)
    [out] = forms.evaluate(form, arrays, edges, backend=backend)
    return e3nn.IrrepsArray(irreps_out, batch_axes.unflatten(out))


def symmetric_contraction_paths(irreps, irreps_out, correlation: int):
    """Return the paths of `symmetric_contraction`, in the order of its weights.

    Args:
      irreps, irreps_out, correlation: as there.
    Returns:
      ((irrep of the output, number of factors, number of paths), ...): for each irrep of the
      output, in order, for each number of factors from 1 to `correlation`.
    Raises:
      ValueError: multiplicities that differ, or an irrep that no path gives.

    Example:
      >>> ops.symmetric_contraction_paths("8x0e+8x1o", "8x0e", correlation=3)
      ((0e, 1, 1), (0e, 2, 2), (0e, 3, 2))
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
        of_ir = [(ir, nu, basis(irs, ir, nu).shape[-2]) for nu in range(1, correlation + 1)]
        if not any(count for *_, count in of_ir):
            raise ValueError(
                f"irreps_out {irreps_out} holds {ir}, which no symmetric product of up to "
                f"{correlation} factors of {irreps} gives"
            )
        paths += of_ir
    return tuple(paths)


def _irs(irreps: e3nn.Irreps) -> tuple[e3nn.Irrep, ...]:
    return tuple(ir for _, ir in irreps)


def _broadcasts(shape, batch_axes) -> bool:
    pairs = zip(reversed(shape), reversed(batch_axes), strict=False)
    return len(shape) <= len(batch_axes) and all(n in (1, axis) for n, axis in pairs)


def _checked(weights, index, shape, batch_axes):
    """Return the weights, and the index of each row, or None.

    Without an index, weights are [..., paths, channels], or [paths, channels] of all rows.
    """
    weights = jnp.asarray(weights)
    if index is None:
        fits = weights.shape[-2:] == shape
        if fits and math.prod(weights.shape[:-2]) == 1:
            return weights.reshape(shape), None
        if not fits or not _broadcasts(weights.shape[:-2], batch_axes):
            raise ValueError(
                f"weights must be [..., {shape[0]} paths, {shape[1]} channels], got shape "
                f"{weights.shape}, and the axes before are {batch_axes} in x"
            )
        return jnp.broadcast_to(weights, (*batch_axes, *shape)), None
    if weights.ndim != 3 or weights.shape[1:] != shape:
        raise ValueError(
            f"weights must be [num_indices, {shape[0]} paths, {shape[1]} channels], got shape "
            f"{weights.shape}"
        )
    index = index if isinstance(index, jax.Array) else np.asarray(index)
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise ValueError(f"index must hold integers, got {index.dtype}")
    if not _broadcasts(index.shape, batch_axes):
        raise ValueError(f"index must be {batch_axes}, one for each row, got shape {index.shape}")
    if len(weights) == 1:  # such as those of one species
        return weights[0], None
    return weights, jnp.broadcast_to(nearest(index, len(weights)), batch_axes)
