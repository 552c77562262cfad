"""`grouped_dense`: several dense layers, each of its own columns or all of the same, as one op."""

import functools

import jax
import jax.numpy as jnp

from eqfuse.ops._backend import matmul_precision, resolve
from eqfuse.ops.algebra.linear_form import Block, BlockRef, LinearForm, Rows, Term, Weights
from eqfuse.ops.primitives import linear_forms


def grouped_dense(x, kernels, *, scale: float = 1.0, backend: str | None = None) -> jax.Array:
    """Dense layers without bias side by side, in one kernel: small ones cost little but launches.

        out[:, k] = scale * x[:, k] @ kernels[k]

    Args:
      x: [rows, len(kernels) * n_in], the columns of layer k at k * n_in; or [rows, n_in], which all
        of them read.
      kernels: arrays [n_in, n_out], all of one shape.
      scale: of the result.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs the definition, as "xla" does.
    Returns:
      [rows, len(kernels) * n_out] of the promoted dtype, a floating one.
    Raises:
      ValueError: no kernels, kernels of several shapes, or an x that does not fit them.
    References: the radial networks of the layers of Batzner et al. 2022 (methods).
    """
    shapes = {kernel.shape for kernel in kernels}
    if len(shapes) != 1:
        raise ValueError(f"kernels of one shape are needed, got {sorted(shapes)}")
    [(n_in, n_out)] = shapes
    if x.ndim != 2 or x.shape[1] not in (n_in, len(kernels) * n_in):
        raise ValueError(
            f"x must be [rows, {n_in}] or [rows, {len(kernels) * n_in}] for {len(kernels)} kernels "
            f"[{n_in}, {n_out}], got shape {x.shape}"
        )
    sizes = len(kernels), x.shape[1] // n_in, n_in, n_out
    linear_form = _linear_form(*sizes, float(scale), matmul_precision())
    backend = resolve(backend, "grouped_dense", x, *kernels)
    dtype = jnp.result_type(x, *kernels)
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.ones(()).dtype
    arrays = [jnp.asarray(a, dtype) for a in (x, *kernels)]
    [out] = linear_forms.evaluate(linear_form, arrays, None, x.shape[0], backend)
    return out


@functools.cache
def _linear_form(count: int, groups: int, n_in: int, n_out: int, scale: float, precision: str):
    rows_in = Rows(groups * n_in, tuple(Block(k * n_in, n_in, 1) for k in range(groups)))
    rows_out = Rows(count * n_out, tuple(Block(k * n_out, n_out, 1) for k in range(count)))
    terms = tuple(
        Term(BlockRef(0, k % groups), 1 + k, BlockRef(1 + count, k), scale) for k in range(count)
    )
    return LinearForm(
        (rows_in, *[Weights((n_in, n_out))] * count), (rows_out,), terms, 0, precision
    )
