"""`tensor_product` and `elementwise_tensor_product`: e3nn-jax's functions on a form."""

import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops._backend import resolve
from eqfuse.ops.ir import channelwise, products
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.batch_axes import BatchAxes

FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")


def irreps_filter(filter_ir_out) -> tuple[e3nn.Irrep, ...] | None:
    """Return `filter_ir_out` as e3nn-jax understands it: a string, an irrep or a list of irreps."""
    if filter_ir_out is None:
        return None
    if isinstance(filter_ir_out, str):
        filter_ir_out = [ir for _, ir in e3nn.Irreps(filter_ir_out)]
    if isinstance(filter_ir_out, e3nn.Irrep):
        filter_ir_out = [filter_ir_out]
    return tuple(ir.ir if isinstance(ir, e3nn.MulIrrep) else e3nn.Irrep(ir) for ir in filter_ir_out)


def normalization(irrep_normalization: str | None) -> str:
    """Return the normalisation, e3nn-jax's configured one for None."""
    return irrep_normalization or e3nn.config("irrep_normalization")


def operands(name: str, *arrays):
    """Return IrrepsArrays of one floating dtype, promoted as e3nn-jax does.

    Raises:
      ValueError: a dtype that is not a floating or complex type.
    """
    arrays = [e3nn.as_irreps_array(a) for a in arrays]
    # weak types count in full, and numpy's float64 is float32 without x64, as for e3nn-jax
    dtype = jnp.result_type(*(jax.dtypes.canonicalize_dtype(a.dtype) for a in arrays))
    if jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_:
        dtype = jnp.ones(()).dtype
    if dtype.name not in FLOATS + COMPLEX:
        known = ", ".join(FLOATS + COMPLEX)
        raise ValueError(f"{name} takes floating or complex arrays ({known}), got {dtype}")
    return [a.astype(dtype) for a in arrays]


def are_irreps(*arguments) -> bool:
    """Return whether irreps were given in the place of arrays."""
    return any(isinstance(a, str | e3nn.Irreps) for a in arguments)


def tensor_product(
    input1,
    input2,
    *,
    filter_ir_out=None,
    irrep_normalization: str | None = None,
    regroup_output: bool = True,
    backend: str | None = None,
):
    """Compute `e3nn_jax.tensor_product`, reduced into irreps, by one kernel.

        out[..., (u, v), k] = sum over i, j:  cg[i, j, k] * input1[..., u, i] * input2[..., v, j]

    A NaN or inf of an operand reaches every output that depends on it, on every backend. On
    "llvm" and "triton" it reaches no other, since the kernels compute the terms alone whose
    coefficient is not zero. On "xla" and "e3nn", which multiply by the zeros of the whole table cg
    as well, it may reach further outputs of the same irreps and row, as 0 * NaN is NaN.

    Args:
      input1: IrrepsArray [..., irreps1]; or irreps, to get the irreps of the product.
      input2: IrrepsArray [..., irreps2]; leading axes broadcast against those of input1. Where
        either is complex, backend None means "e3nn", and "e3nn" alone computes it; so in all ops.
      filter_ir_out: irreps to keep; None keeps all.
      irrep_normalization: "component" (default of e3nn-jax), "norm" or "none".
      regroup_output: sort and merge irreps of the inputs and the output.
      backend: "triton", "llvm", "xla", "e3nn", "triton-interpret", or None: by device. Of single
        ops "triton,linear=xla", as `eqfuse.ops.resolve` reads it; so in all ops.
    Returns:
      IrrepsArray [..., irreps_out] of the promoted dtype, accumulated in float32 or better; the
      Irreps of the product if irreps were given.
    Raises:
      ValueError: a backend that cannot run here or with complex operands, an unknown
        normalisation, or leading axes that do not broadcast.
    References: Thomas et al. 2018, arXiv:1802.08219, section 4.1.2; e3nn-jax 0.21.
    """
    op = "" if are_irreps(input1, input2) else "tensor_product"
    backend = resolve(backend, op, input1, input2)
    options = {
        "filter_ir_out": filter_ir_out,
        "irrep_normalization": irrep_normalization,
        "regroup_output": regroup_output,
    }
    if backend == "e3nn":
        return e3nn.tensor_product(input1, input2, **options)
    build = functools.partial(
        products.tensor_product,
        filter_ir_out=irreps_filter(filter_ir_out),
        normalization=normalization(irrep_normalization),
        regroup=regroup_output,
        unroll=backend == "llvm",
    )
    if are_irreps(input1, input2):
        return build(e3nn.Irreps(input1), e3nn.Irreps(input2)).irreps_out
    x, y = operands("tensor_product", input1, input2)
    product = build(x.irreps, y.irreps, zero_x=x.zero_flags, zero_y=y.zero_flags)
    if backend == "xla" and _repeats_more_than_it_writes(product):
        return _by_einsum(x, y, options)
    return evaluate_rows(product, x, y, backend)


def _repeats_more_than_it_writes(product: products.Product) -> bool:
    """Return whether operands with irreps repeated for every pair are larger than the product.

    Their gradients are then written for every pair and summed.
    """
    columns = product.channel_columns or ()
    return sum(c.size for operand in columns for c in operand) > product.irreps_out.dim


def _by_einsum(x, y, options: dict) -> e3nn.IrrepsArray:
    """Return e3nn-jax's product, an einsum for each path, accumulated in float32 or better."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    with jax.default_matmul_precision("highest"):
        return e3nn.tensor_product(x.astype(wide), y.astype(wide), **options).astype(x.dtype)


def elementwise_tensor_product(
    input1,
    input2,
    *,
    filter_ir_out=None,
    irrep_normalization: str | None = None,
    backend: str | None = None,
):
    """Compute `e3nn_jax.elementwise_tensor_product`, of matching channels, by one kernel.

        out[..., u, k] = sum over i, j:  cg[i, j, k] * input1[..., u, i] * input2[..., u, j]

    Args:
      input1: IrrepsArray [..., irreps1]; or irreps, to get the irreps of the product.
      input2: IrrepsArray [..., irreps2] with as many irreps as input1; leading axes broadcast.
      filter_ir_out: irreps to keep; None keeps all.
      irrep_normalization: "component" (default of e3nn-jax), "norm" or "none".
      backend: "triton", "llvm", "xla", "e3nn", "triton-interpret", or None: by device.
    Returns:
      IrrepsArray [..., irreps_out], neither sorted nor merged, of the promoted dtype; the Irreps of
      the product if irreps were given.
    Raises:
      ValueError: different numbers of irreps; else as `tensor_product`.
    References: e3nn-jax 0.21.
    """
    op = "" if are_irreps(input1, input2) else "elementwise_tensor_product"
    backend = resolve(backend, op, input1, input2)
    if backend == "e3nn":
        return e3nn.elementwise_tensor_product(
            input1, input2, filter_ir_out=filter_ir_out, irrep_normalization=irrep_normalization
        )
    build = functools.partial(
        channelwise.elementwise_tensor_product,
        filter_ir_out=irreps_filter(filter_ir_out),
        normalization=normalization(irrep_normalization),
    )
    if are_irreps(input1, input2):
        return build(e3nn.Irreps(input1), e3nn.Irreps(input2)).irreps_out
    x, y = operands("elementwise_tensor_product", input1, input2)
    product = build(x.irreps, y.irreps, zero_x=x.zero_flags, zero_y=y.zero_flags)
    return evaluate_rows(product, x, y, backend)


def evaluate_rows(product: products.Product, x, y, backend: str):
    """Return the product of two IrrepsArrays, their leading axes broadcast and taken as rows."""
    if product.channel_columns:  # irreps are repeated; their blocks known to be zero are constants
        x, y = (_with_constant_zeros(a) for a in (x, y))
    shape = jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    batch_axes = BatchAxes.of(shape, [x.array, y.array])
    arrays = [_as_rows(a, batch_axes) for a in (x, y)]
    if product.channel_columns:
        arrays = [taken(a, c) for a, c in zip(arrays, product.channel_columns, strict=True)]
    form = sharing(product.form, arrays, batch_axes.count)
    [out] = forms.evaluate(form, arrays, backend=backend)
    return e3nn.IrrepsArray(
        product.irreps_out, batch_axes.apart(out), zero_flags=product.zero_flags
    )


def _as_rows(array: e3nn.IrrepsArray, batch_axes: BatchAxes):
    """Return [rows, size], or [1, size] where it is the same for all rows."""
    if math.prod(array.shape[:-1]) == 1:
        return array.array.reshape(1, array.irreps.dim)
    return batch_axes.rows(array.array)


def taken(array, chosen: tuple[products.Columns, ...]):
    """Return these columns of an array [rows, size], side by side.

    Columns that lie side by side are a slice, and repeated ones a product with ones, which is a
    broadcast and whose gradient is a matmul: that of a gather is a scatter, ten times slower, and
    that of `jnp.broadcast_to` a sum that reads one number after the other on a CPU.
    """
    parts = [array[:, :0]]
    for c in chosen:
        mul, dim = c.columns.shape
        first = int(c.columns.flat[0]) if c.columns.size else 0
        whole = np.array_equal(c.columns.ravel(), np.arange(first, first + mul * dim))
        columns = slice(first, first + mul * dim) if whole else c.columns.ravel()
        part = array[:, columns].reshape(array.shape[0], mul, dim)
        if c.times != 1:
            ones = jnp.ones(c.times, array.dtype)
            subscripts = ("zmd,n->znmd", "zmd,n->zmnd")[c.axis]
            part = jnp.einsum(subscripts, part, ones, precision=jax.lax.Precision.HIGHEST)
        parts.append(part.reshape(array.shape[0], c.size))
    return jnp.concatenate(parts, axis=1)


def sharing(form: Form, arrays, num_rows: int) -> Form:
    """Return the form, for which an array of one row is a row that all rows share."""
    if num_rows == 1:
        return form
    operands = zip(form.inputs, arrays, strict=True)
    shared = (a.shape[0] == 1 and o.index is Index.ROW for o, a in operands)
    return _indexed(form, tuple(n for n, is_shared in enumerate(shared) if is_shared))


@functools.lru_cache(maxsize=1024)
def _indexed(form: Form, shared: tuple[int, ...]) -> Form:
    return form.indexed(dict.fromkeys(shared, Index.SHARED))


def _with_constant_zeros(array: e3nn.IrrepsArray) -> e3nn.IrrepsArray:
    """Return the same array, through whose blocks known to be zero no tangent passes."""
    if not any(array.zero_flags):
        return array
    return e3nn.from_chunks(array.irreps, array.chunks, array.shape[:-1], array.dtype)


def graph_operands(x, y, weights, edges, options):
    """Return x, y and weights (or None) of one dtype; y and weights of each edge, or one for all.

    Raises:
      ValueError: shapes that do not fit the edges or the irreps of the product.
    """
    x, y = operands("a product on a graph", x, y)
    if edges is None:
        raise ValueError(
            "a product on a graph needs edges: eqfuse.ops.Edges.from_arrays makes them"
        )
    if x.shape[:-1] != (edges.num_nodes,):
        raise ValueError(f"x must be [{edges.num_nodes} nodes, {x.irreps}], got shape {x.shape}")
    if y.shape[:-1] not in ((edges.num_edges,), (1,)):
        raise ValueError(
            f"y must be [{edges.num_edges} edges, {y.irreps}], or one row for all edges, got shape "
            f"{y.shape}"
        )
    if weights is None:
        return x, y, None
    irreps_out = tensor_product(x.irreps, y.irreps, backend="xla", **options)
    weights = weights.array if isinstance(weights, e3nn.IrrepsArray) else jnp.asarray(weights)
    shape = (edges.num_edges, irreps_out.num_irreps)
    if weights.ndim != 2 or any(n not in (1, s) for n, s in zip(weights.shape, shape, strict=True)):
        raise ValueError(
            f"weights must be [{shape[0]} edges, {shape[1]} irreps of {irreps_out}], or 1 for "
            f"either, got shape {weights.shape}"
        )
    dtype = jnp.result_type(x.dtype, weights.dtype)
    weights = jnp.broadcast_to(weights.astype(dtype), (weights.shape[0], shape[1]))
    return x.astype(dtype), y.astype(dtype), weights
