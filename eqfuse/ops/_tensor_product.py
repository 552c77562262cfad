"""`tensor_product` and its kin: e3nn-jax's products, and those over channels, on a form."""

import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse.ops import _reference
from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import Edges, check_edges
from eqfuse.ops._interpolate import Tabulated
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form, Index
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives.rules import BatchAxes

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
    """Return the normalisation, e3nn-jax's configured one for None; refuse an unknown one."""
    name = irrep_normalization or e3nn.config("irrep_normalization")
    if name not in ("component", "norm", "none"):
        raise ValueError(
            f"irrep_normalization={name!r} is not supported; choose 'component', 'norm' or 'none'"
        )
    return name


def operands(name: str, *arrays):
    """Return IrrepsArrays of one floating or complex dtype, promoted as e3nn-jax does."""
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
      backend: "triton", "llvm", "xla", "e3nn", or None: by device, see `eqfuse.ops.resolve`; so in
        all ops.
    Returns:
      IrrepsArray [..., irreps_out] of the promoted dtype, accumulated in float32 or better; the
      Irreps of the product if irreps were given.
    Raises:
      ValueError: a backend that cannot run here or with complex operands, an unknown
        normalisation, or leading axes that do not broadcast.
    References: Thomas et al. 2018, arXiv:1802.08219, section 4.1.2; e3nn-jax 0.21.

    Example:
      >>> x, y = (e3nn.IrrepsArray("1o", row) for row in jnp.eye(3)[:2])
      >>> ops.tensor_product(x, y, filter_ir_out="1e").array.round(1)
      Array([0. , 0. , 0.7], dtype=float32)
      >>> ops.tensor_product("8x0e+8x1o", "0e+1o")
      16x0e+16x1o+8x1e+8x2e
    """
    options = {"irrep_normalization": irrep_normalization, "regroup_output": regroup_output}
    return _of_e3nn("tensor_product", input1, input2, backend, filter_ir_out, **options)


def _of_e3nn(op: str, input1, input2, backend: str | None, filter_ir_out, **options):
    """Return e3nn's product of this name by a form of ours; for irreps, the product's irreps."""
    backend = resolve(backend, "" if are_irreps(input1, input2) else op, input1, input2)
    keep = irreps_filter(filter_ir_out)  # once: it may be an iterator
    if backend == "e3nn":
        return getattr(e3nn, op)(input1, input2, filter_ir_out=keep, **options)
    more = {}
    if op == "tensor_product":
        more = {"regroup": options["regroup_output"], "unroll": backend == "llvm"}
    build = functools.partial(
        getattr(products, op),
        filter_ir_out=keep,
        normalization=normalization(options["irrep_normalization"]),
        **more,
    )
    if are_irreps(input1, input2):
        return build(e3nn.Irreps(input1), e3nn.Irreps(input2)).irreps_out
    x, y = operands(op, input1, input2)
    product = build(x.irreps, y.irreps, zero_x=x.zero_flags, zero_y=y.zero_flags)
    return evaluate_rows(product, x, y, backend)


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
      filter_ir_out, irrep_normalization, backend: as in `tensor_product`.
    Returns:
      As `tensor_product`; the irreps are neither sorted nor merged.
    Raises:
      ValueError: different numbers of irreps; else as `tensor_product`.
    References: e3nn-jax 0.21.

    Example:
      >>> x = e3nn.IrrepsArray("2x0e+1o", jnp.array([1.0, 2, 3, 4, 5]))
      >>> ops.elementwise_tensor_product(x, e3nn.IrrepsArray("3x0e", jnp.array([10.0, 100, 1])))
      2x0e+1x1o [ 10. 200.   3.   4.   5.]
    """
    options = {"irrep_normalization": irrep_normalization}
    op = "elementwise_tensor_product"
    return _of_e3nn(op, input1, input2, backend, filter_ir_out, **options)


def evaluate_rows(product: products.Product, x, y, backend: str):
    """Return the product of two IrrepsArrays, their leading axes broadcast and taken as rows."""
    if product.repeated:  # no tangent passes through blocks that are known to be zero
        x, y = (
            e3nn.from_chunks(a.irreps, a.chunks, a.shape[:-1], a.dtype) if any(a.zero_flags) else a
            for a in (x, y)
        )
    shape = jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    batch_axes = BatchAxes(shape)
    rows = (  # one row, where it is the same for all
        a.array.reshape(1, a.irreps.dim)
        if math.prod(a.shape[:-1]) == 1
        else batch_axes.flatten(a.array)
        for a in (x, y)
    )
    arrays = gather_columns(product, list(rows))
    form = sharing(product.form, arrays, batch_axes.count)
    [out] = forms.evaluate(form, arrays, backend=backend)
    return e3nn.IrrepsArray(
        product.irreps_out, batch_axes.unflatten(out), zero_flags=product.zero_flags
    )


def summed_product(product: products.Product, x, y, weights, edges: Edges, messages, backend: str):
    """Return a product summed to the receivers, by one kernel.

    With `messages`, a function of the rows of senders and y, the products of edges are written to
    memory, as where x and y both have several channels.
    """
    if messages is not None:
        rows = messages(x[edges.senders], y)
        if weights is not None:
            rows = elementwise_tensor_product(rows, weights, backend=backend)
        out = e3nn.scatter_sum(rows, dst=edges.receivers, output_size=edges.num_nodes)
        return edges.of_receivers(out)
    arrays = [x.array, y.array, *([] if weights is None else [weights])]
    form = sharing(product.form, arrays, edges.num_edges)
    [out] = forms.evaluate(form, arrays, edges, backend=backend)
    return e3nn.IrrepsArray(product.irreps_out, out)  # e3nn's sum knows of no zeros


def gather_columns(product: products.Product, arrays: list) -> list:
    """Return the inputs of a product's form from x and y [rows, size], channels repeated in pairs.

    They are repeated by a product with ones, which is a broadcast and whose gradient is a matmul:
    that of a gather is a scatter, ten times slower, and that of `jnp.broadcast_to` a sum that reads
    one number after the other on a CPU.
    """
    if not product.repeated:
        return arrays
    gathered = []
    sides = zip(arrays, product.repeated, ("zmd,n->zmnd", "zmd,n->znmd"), strict=True)
    for array, chosen, subscripts in sides:
        parts = [array[:, :0]]
        for segments, times in chosen:
            blocks = [
                array[:, s.offset : s.offset + s.mul * s.dim].reshape(len(array), s.mul, s.dim)
                for s in segments
            ]
            part = jnp.concatenate(blocks, axis=1)
            if times != 1:
                ones = jnp.ones(times, array.dtype)
                part = jnp.einsum(subscripts, part, ones, precision=jax.lax.Precision.HIGHEST)
            parts.append(part.reshape(len(array), math.prod(part.shape[1:])))
        gathered.append(jnp.concatenate(parts, axis=1))
    return gathered


def sharing(form: Form, arrays, num_rows: int) -> Form:
    """Mark operands of one row as shared by all rows, and those that are halves of the first."""
    operands = zip(form.inputs, arrays, strict=True)
    shared = (num_rows != 1 and a.shape[0] == 1 and o.index is Index.ROW for o, a in operands)
    halves = frozenset(n for n, a in enumerate(arrays) if a.dtype != arrays[0].dtype)
    return _marked(form, tuple(n for n, is_shared in enumerate(shared) if is_shared), halves)


@functools.lru_cache(maxsize=1024)
def _marked(form: Form, shared: tuple[int, ...], halves: frozenset[int]) -> Form:
    return form.indexed(dict.fromkeys(shared, Index.SHARED)).halved(halves)


def graph_operands(x, y, weights, edges, options, backend: str = ""):
    """Return x, y and weights of one dtype; y and weights, or None, of each edge or one for all.

    Weights in bfloat16 stay so beside float32 for "triton", whose kernels read them as such.
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
    if isinstance(weights, Tabulated):
        if weights.table.shape[2] != irreps_out.num_irreps:
            raise ValueError(
                f"table must be [intervals, order, {irreps_out.num_irreps} irreps of {irreps_out}],"
                f" got shape {weights.table.shape}"
            )
        dtype = weights.table.dtype
        return x.astype(dtype), y.astype(dtype), weights
    weights = weights.array if isinstance(weights, e3nn.IrrepsArray) else jnp.asarray(weights)
    shape = (edges.num_edges, irreps_out.num_irreps)
    if weights.ndim != 2 or any(n not in (1, s) for n, s in zip(weights.shape, shape, strict=True)):
        raise ValueError(
            f"weights must be [{shape[0]} edges, {shape[1]} irreps of {irreps_out}], or 1 for "
            f"either, got shape {weights.shape}"
        )
    dtype = jnp.result_type(x.dtype, weights.dtype)
    if not (backend == "triton" and weights.dtype == jnp.bfloat16 and dtype == jnp.float32):
        weights = weights.astype(dtype)
    weights = jnp.broadcast_to(weights, (weights.shape[0], shape[1]))
    return x.astype(dtype), y.astype(dtype), weights


def channelwise_tensor_product(
    x,
    y,
    edges: Edges | None = None,
    *,
    weights=None,
    filter_ir_out=None,
    irrep_normalization: str | None = None,
    backend: str | None = None,
):
    """Multiply matching channels of every block of x with every block of y.

        out[..., u, k] = sum over i, j:  cg[i, j, k] * x[..., u, i] * y[..., u, j]

    `elementwise_tensor_product` joins the first block of x with the first of y, the second with the
    second; here all pairs are joined, as in `tensor_product`. On a graph, with `edges`, x is a
    feature of edges and y one of nodes, read at the receiver of the edge: nothing of the size of
    edges times irreps_y is written to memory.

    Args:
      x: IrrepsArray [..., irreps_x]; on a graph [n_edges, irreps_x]; or irreps, to get those of
        the output.
      y: IrrepsArray [..., irreps_y], whose irreps have the multiplicity of those of x; on a graph
        [num_nodes, irreps_y].
      edges: makes it a product on a graph.
      weights: on a graph, [irreps_out.num_irreps], a number for each channel of each pair of
        blocks; then the products of an irrep are multiplied with them and added: a block of each
        irrep is left. None for no weights.
      filter_ir_out, irrep_normalization, backend: as in `tensor_product`.
    Returns:
      IrrepsArray [..., irreps_out], sorted and merged, of the promoted dtype, accumulated in
      float32 or better; the Irreps of the output, without weights, if irreps were given.
    Raises:
      ValueError: multiplicities that differ, shapes that do not fit, weights without edges, a
        backend that cannot run here, edges that are not `Edges`, or an unknown normalisation.
    References: Musaelian et al. 2023 (the tensor product of Allegro); Tan et al. 2025,
      arXiv:2504.16068 (with weights); e3nn-jax 0.21.

    Example:
      >>> ops.channelwise_tensor_product("8x0e+8x1o", "8x0e+8x1o")
      16x0e+16x1o+8x1e+8x2e
    """
    check_edges(edges)
    op = "" if are_irreps(x, y) else "channelwise_tensor_product"
    backend = resolve(backend, op, x, y, weights)
    filter_ir_out = irreps_filter(filter_ir_out)
    irrep_normalization = normalization(irrep_normalization)
    options = {"filter_ir_out": filter_ir_out, "normalization": irrep_normalization}
    build = functools.partial(products.channelwise_tensor_product, **options)
    if are_irreps(x, y):
        return build(e3nn.Irreps(x), e3nn.Irreps(y)).irreps_out
    x, y = operands("channelwise_tensor_product", x, y)
    if weights is not None:
        if edges is None:
            raise ValueError("weights are for a product on a graph, with edges")
        weights, irreps = jnp.asarray(weights), build(x.irreps, y.irreps).irreps_out
        if weights.shape != (irreps.num_irreps,):
            raise ValueError(
                f"weights must be [{irreps.num_irreps} irreps of {irreps}], got shape "
                f"{weights.shape}"
            )
        dtype = jnp.result_type(x.dtype, weights.dtype)
        x, y, weights = x.astype(dtype), y.astype(dtype), weights.astype(dtype)
    product = build(
        x.irreps,
        y.irreps,
        zero_x=x.zero_flags,
        zero_y=y.zero_flags,
        on_graph=edges is not None,
        weighted=weights is not None,
    )
    if edges is not None:
        check_receivers(x, y, edges)
    if backend == "e3nn":
        options = {"filter_ir_out": filter_ir_out, "irrep_normalization": irrep_normalization}
        return _reference.channelwise_tensor_product(x, y, edges, weights, **options)
    if edges is None:
        return evaluate_rows(product, x, y, backend)
    arrays = [x.array, y.array] + ([] if weights is None else [weights[None]])
    [out] = forms.evaluate(product.form, arrays, edges, backend=backend)
    return e3nn.IrrepsArray(product.irreps_out, out, zero_flags=product.zero_flags)


def check_receivers(x, y, edges: Edges):
    """Refuse features x that are not of the edges, or y that are not of their nodes."""
    if x.shape[:-1] != (edges.num_edges,):
        raise ValueError(f"x must be [{edges.num_edges} edges, {x.irreps}], got shape {x.shape}")
    if y.shape[:-1] != (edges.num_nodes,):
        raise ValueError(f"y must be [{edges.num_nodes} nodes, {y.irreps}], got shape {y.shape}")
