"""`grouped_dense`: several dense layers, each of its own columns or all of the same, as one op."""

import functools
import itertools

import jax
import jax.numpy as jnp

from eqfuse.ops._backend import matmul_precision, resolve
from eqfuse.ops.ir.linear_form import Block, BlockRef, LinearForm, Rows, Term, Weights
from eqfuse.ops.primitives import linear_forms


def grouped_dense(
    x, kernels, *, scale: float = 1.0, split: bool = False, backend: str | None = None
) -> jax.Array | list[jax.Array]:
    """Apply dense layers without bias side by side, in one kernel: small ones cost mostly launches.

        out[:, k] = scale * x[:, k] @ kernels[k]

    Args:
      x: [rows, len(kernels) * n_in], the columns of layer k at k * n_in; or [rows, n_in], which all
        of them read.
      kernels: arrays [n_in, n_out], n_out of each its own.
      scale: of the result.
      split: return an array for each layer.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs the definition, as "xla" does.
    Returns:
      [rows, sum of n_out] of the promoted dtype, a floating one; with `split` a list of
      [rows, n_out].
    Raises:
      ValueError: no kernels, kernels of several n_in, or an x that does not fit them.
    References: the radial networks of the layers of Batzner et al. 2022 (methods).
    """
    shapes = [kernel.shape for kernel in kernels]
    if len({n_in for n_in, _ in shapes}) != 1:
        raise ValueError(f"kernels [n_in, n_out] of one n_in are needed, got {shapes}")
    n_in, widths = shapes[0][0], tuple(n_out for _, n_out in shapes)
    if x.ndim != 2 or x.shape[1] not in (n_in, len(kernels) * n_in):
        raise ValueError(
            f"x must be [rows, {n_in}] or [rows, {len(kernels) * n_in}] for {len(kernels)} kernels "
            f"of {n_in} rows, got shape {x.shape}"
        )
    sizes = x.shape[1] // n_in, n_in, widths, split
    linear_form = _linear_form(*sizes, float(scale), matmul_precision())
    backend = resolve(backend, "grouped_dense", x, *kernels)
    dtype = jnp.result_type(x, *kernels)
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.ones(()).dtype
    arrays = [jnp.asarray(a, dtype) for a in (x, *kernels)]
    outputs = linear_forms.evaluate(linear_form, arrays, None, x.shape[0], backend)
    return list(outputs) if split else outputs[0]


@functools.cache
def _linear_form(groups: int, n_in: int, widths, split: bool, scale: float, precision: str):
    count, starts = len(widths), (0, *itertools.accumulate(widths))
    rows_in = Rows(groups * n_in, tuple(Block(k * n_in, n_in, 1) for k in range(groups)))
    blocks = tuple(Block(starts[k], width, 1) for k, width in enumerate(widths))
    outputs = [Rows(starts[-1], blocks)]
    if split:
        outputs = [Rows(width, (Block(0, width, 1),)) for width in widths]
    out = [BlockRef(1 + count + k, 0) if split else BlockRef(1 + count, k) for k in range(count)]
    terms = tuple(Term(BlockRef(0, k % groups), 1 + k, out[k], scale) for k in range(count))
    inputs = rows_in, *(Weights((n_in, width)) for width in widths)
    return LinearForm(inputs, tuple(outputs), terms, 0, precision)
