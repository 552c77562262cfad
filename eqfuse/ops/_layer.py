"""`TensorProductLinear` and `TensorProductLinearGate`: e3nn's product, Linear and gate, fused."""

import functools
from collections.abc import Callable

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.ops import _reference
from eqfuse.ops._backend import matmul_precision, record_fused, resolve
from eqfuse.ops._edges import Edges, check_edges
from eqfuse.ops._interpolate import Tabulated
from eqfuse.ops._linear import (
    OF_FUSED,
    E3nnLinear,
    Linear,
    declare,
    promoted,
    rechunked,
)
from eqfuse.ops._tensor_product import (
    check_receivers,
    evaluate_rows,
    gather_columns,
    graph_operands,
    irreps_filter,
    normalization,
    operands,
    summed_product,
)
from eqfuse.ops.backends import activations
from eqfuse.ops.backends.activations import UnknownActivationError
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import INDEX_ARRAYS
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.primitives import layer, tabulated
from eqfuse.ops.primitives.choice import choose, refuse, resolve_fused
from eqfuse.ops.primitives.rules import BatchAxes


class TensorProductLinear(nn.Module):
    """`e3nn.flax.Linear` of a tensor product.

    `fused` decides whether product and Linear are one kernel forward and one backward, or a kernel
    each, which keep the product for the backward: [rows, size], or [num_nodes, size] on a graph. On
    a graph where x and y both have several channels, the products of edges are in memory.

    Over rows: Linear(x (x) y). On a graph, with `edges`: Linear(sum over the edges of a node of
    weights * (x[senders] (x) y)). The parameters are those of `e3nn.flax.Linear` in its place.
    With `channelwise`, the product is `eqfuse.ops.channelwise_tensor_product`, over rows or, with
    `edges`, of features of edges and of their receivers: Linear(x (x) y[receivers]), per edge.

    Attributes:
      irreps_out: as in `e3nn.flax.Linear`, and so are `biases`, `path_normalization`,
        `gradient_normalization` and `force_irreps_out`.
      filter_ir_out: irreps of the product, as in `e3nn.tensor_product`; None for all. Those that
        `irreps_out` does not have are counted in the names of the parameters, never computed.
      irrep_normalization: as in `eqfuse.ops.tensor_product`.
      scalar_first: y begins with its only 0e, and what it gives comes first among the channels
        that are mixed, as in `e3nn.concatenate([x, e3nn.tensor_product(x, y)]).regroup()`.
      channelwise: see above.
      input_precision: of the channel matmul on a GPU: "ieee" is float32, "tf32x3" close to it,
        "tf32" fast; None as in `Linear`.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs the definition literally.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
    References: Batzner et al. 2022, figure 1; e3nn-jax 0.21.

    Example:
      >>> edges = ops.Edges.from_arrays([0, 1], [1, 0], num_nodes=2)
      >>> x = e3nn.IrrepsArray("4x0e", jnp.ones((2, 4)))
      >>> y = e3nn.spherical_harmonics("0e+1o", jnp.eye(3)[:2], normalize=True)
      >>> module = ops.TensorProductLinear("8x0e+2x1o")
      >>> out, params = module.init_with_output(jax.random.key(0), x, y, edges=edges)
      >>> out.irreps, out.shape
      (8x0e+2x1o, (2, 14))
    """

    irreps_out: e3nn.Irreps | str
    biases: bool = False
    path_normalization: str | float | None = None
    gradient_normalization: str | float | None = None
    force_irreps_out: bool = False
    filter_ir_out: object = None
    irrep_normalization: str | None = None
    scalar_first: bool = False
    channelwise: bool = False
    input_precision: str | None = None
    backend: str | None = None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, y, weights=None, edges: Edges | None = None, skip=None):
        """Apply the op.

        Args:
          x: IrrepsArray [..., irreps_x]; on a graph [num_nodes, irreps_x].
          y: IrrepsArray [..., irreps_y], leading axes broadcast; on a graph [n_edges, irreps_y] or
            [1, irreps_y]. Channelwise on a graph, x is [n_edges, irreps_x] and y [num_nodes,
            irreps_y].
          weights: on a graph, [n_edges, product.num_irreps] as in `graph_tensor_product`, or None;
            without `filter_ir_out`, of the irreps that `irreps_out` has. Or an `ops.Tabulated`.
            In bfloat16, they are read as such on a GPU, see there.
          edges: makes it an op on a graph.
          skip: IrrepsArray [..., irreps of the Linear's output], added to it.
        Returns:
          IrrepsArray [..., irreps_out]. The dtype is that of `eqfuse.ops.Linear` for the promoted
          dtype of x, y, weights and skip.
        Raises:
          ValueError: shapes or irreps that do not fit, naming both; a backend that cannot run.
        """
        check_edges(edges, weights)
        mode = resolve_fused(self.fused)
        make_gate, gate = self._gate()
        op = "tensor_product_linear" + ("_gate" if make_gate else "")
        arrays = jax.tree.leaves((x, y, weights, skip, self.variables))
        backend = resolve(self.backend, op, *arrays)
        if backend != "llvm" or self.channelwise or mode == "always":
            weights = weights.rows(backend) if isinstance(weights, Tabulated) else weights
        own = sorted({ir for _, ir in e3nn.Irreps(self.irreps_out)})
        keep = own if self.filter_ir_out is None else self.filter_ir_out
        normal = normalization(self.irrep_normalization)
        options = {"filter_ir_out": irreps_filter(keep), "irrep_normalization": normal}
        if backend == "e3nn":
            refuse(mode, "backend 'e3nn' computes op by op")
            return self._reference(x, y, weights, edges, skip, gate, options)
        x, y, weights = self._operands(x, y, weights, edges, options, backend)
        product = self._product(x, y, weights, edges, options)
        linear, parameters, zero_flags = self._linear(product, x, y, edges)
        apart = product.repeated or isinstance(weights, Tabulated)
        if edges is not None and (apart or edges.num_receivers is not None):
            if any(t.x is not None for t in linear.linear_form.terms):
                several = "x and y both have several channels, and their products are summed"
                refuse(mode, several if product.repeated else "some nodes only send")
            x, y = self._summed(product, x, y, weights, edges, options, backend)
            weights = edges = None
            product = self._product(x, y, weights, edges, options)
        fused_gate = make_gate and _fused_gate(make_gate, linear, zero_flags, mode)
        batch_axes, arrays = _rows(product, x, y, weights, edges)
        if skip is not None:
            skip = e3nn.as_irreps_array(skip)
            shape, irreps = batch_axes.shape, linear.irreps_out
            if skip.irreps.simplify() != irreps.simplify() or skip.shape[:-1] != shape:
                raise ValueError(
                    f"skip must be [{', '.join(map(str, shape))}, {irreps}], the output of the "
                    f"Linear, got {skip.irreps} of shape {skip.shape}"
                )
        added = [] if skip is None else [batch_axes.flatten(skip.array)]
        dtype = promoted([*arrays, *added], parameters)
        floats = [a.astype(dtype) for a in (*arrays, *parameters, *added)]
        integers, num_rows, num_nodes = [], batch_axes.count, 0
        if edges is not None:
            integers = [jnp.asarray(getattr(edges, n)) for n in INDEX_ARRAYS]
            num_rows, num_nodes = edges.num_edges, edges.num_nodes
        form = product.form
        if weights is not None and weights.dtype != x.dtype and dtype == jnp.float32:
            floats[2], form = weights, form.halved(frozenset({2}))
        fused = Fused.build(form, linear, fused_gate, bool(added))
        chosen = choose(mode, fused, num_rows, num_nodes, backend, dtype)
        record_fused(chosen.text)
        call = layer.Call(fused, num_rows, num_nodes, backend, chosen.kernels)
        out = batch_axes.unflatten(layer.evaluate(call, floats, integers))
        if fused_gate is not None:
            irreps = fused_gate.irreps_out
            if self.force_irreps_out:  # the same channels in the blocks that were asked for
                irreps = make_gate(e3nn.Irreps(self.irreps_out)).irreps_out
            return e3nn.IrrepsArray(irreps, out)
        return gate(self._preactivation(linear.irreps_out, out, zero_flags, skip))

    def _gate(self) -> tuple[Callable | None, Callable]:
        """Return what makes the gate of a Linear, if one follows, and e3nn's function."""
        return None, lambda z: z

    def _linear(self, product, x, y, edges):
        """Return the Linear of a product, its parameters, and the zero flags of e3nn's."""
        flags = x.zero_flags, y.zero_flags
        if edges is not None and not self.channelwise:  # e3nn does not know zeros after a sum
            flags = ((False,) * len(f) for f in flags)
        keep = irreps_filter(self.filter_ir_out)
        linear, whole = linears.for_product(
            product.irreps_out,
            product.zero_flags,
            products.product_irreps(x.irreps, y.irreps, keep, *flags, self.channelwise),
            self.irreps_out,
            force_irreps_out=self.force_irreps_out,
            biases=self.biases,
            **linears.normalizations(self.path_normalization, self.gradient_normalization),
            input_precision=matmul_precision(self.input_precision),
        )
        parameters = declare(self, whole.parameters, None, x.dtype)
        return linear, [parameters[p.name] for p in linear.parameters], whole.zero_flags

    def _preactivation(self, irreps, array, zero_flags, skip) -> e3nn.IrrepsArray:
        """Return the output of a Linear and a skip, with the zero flags that their sum has."""
        out = e3nn.IrrepsArray(irreps, array, zero_flags=zero_flags)
        out = rechunked(out, self.irreps_out) if self.force_irreps_out else out
        if skip is None:
            return out
        of_skip = rechunked(skip, out.irreps).zero_flags
        zero_flags = tuple(a and b for a, b in zip(out.zero_flags, of_skip, strict=True))
        return e3nn.IrrepsArray(out.irreps, out.array, zero_flags=zero_flags)

    def _operands(self, x, y, weights, edges, options, backend: str = ""):
        if edges is not None and not self.channelwise:
            x, y, weights = graph_operands(x, y, weights, edges, options, backend)
            rows = jnp.broadcast_to(y.array, (edges.num_edges, y.irreps.dim))
            y = e3nn.IrrepsArray(y.irreps, rows, zero_flags=y.zero_flags)
            if not (weights is None or isinstance(weights, Tabulated)):
                weights = jnp.broadcast_to(weights, (edges.num_edges, weights.shape[1]))
            return x, y, weights
        if weights is not None:
            raise ValueError(
                "weights are for products that are summed on a graph: give edges as well, and not "
                "channelwise"
            )
        x, y = operands("TensorProductLinear", x, y)
        if edges is not None:
            check_receivers(x, y, edges)
        return x, y, None

    def _product(self, x, y, weights, edges, options) -> products.Product:
        build, more = products.channelwise_tensor_product, {}
        if not self.channelwise:
            build = products.tensor_product
            more = {"weighted": weights is not None, "scalar_first": self.scalar_first}
        return build(
            x.irreps,
            y.irreps,
            filter_ir_out=options["filter_ir_out"],
            normalization=options["irrep_normalization"],
            zero_x=x.zero_flags,
            zero_y=y.zero_flags,
            on_graph=edges is not None,
            **more,
        )

    def _summed(self, product, x, y, weights, edges, options, backend):
        """Return the products summed over a node's edges, and a scalar one to multiply by."""

        def messages(x, y):
            return evaluate_rows(self._product(x, y, None, None, options), x, y, backend)

        if isinstance(weights, Tabulated) and not product.repeated:
            factored = y.array * weights.factor
            [out] = tabulated.evaluate(product.form, x.array, factored, weights, edges, backend)
            out = e3nn.IrrepsArray(product.irreps_out, out)
        else:
            weights = weights.rows(backend) if isinstance(weights, Tabulated) else weights
            apart = messages if product.repeated else None
            out = summed_product(product, x, y, weights, edges, apart, backend)
        return out, e3nn.IrrepsArray("0e", jnp.ones((1, 1), out.dtype))

    def _reference(self, x, y, weights, edges, skip, gate, options):
        computed = options["filter_ir_out"]
        options = options | {"filter_ir_out": irreps_filter(self.filter_ir_out)}
        if self.channelwise:
            x, y, _ = self._operands(x, y, weights, edges, options)
            product = _reference.channelwise_tensor_product(x, y, edges, **options)
        elif edges is None:
            options["scalar_first"] = self.scalar_first
            product = _reference.tensor_product(x, y, **options)
        else:
            if weights is not None and self.filter_ir_out is None:
                x, y, weights = graph_operands(x, y, weights, edges, {"filter_ir_out": computed})
                whole = e3nn.tensor_product(x.irreps, y.irreps)
                weights = _reference.spread(weights, whole, computed)
            options["scalar_first"] = self.scalar_first
            product = _reference.graph_tensor_product(x, y, weights, edges, **options)
        linear = E3nnLinear(self.irreps_out, **{n: getattr(self, n) for n in OF_FUSED})
        nn.share_scope(self, linear)
        z = linear(product)
        return gate(z if skip is None else z + skip)


class TensorProductLinearGate(TensorProductLinear):
    """`e3nn.gate` of `TensorProductLinear`, with a skip added before the gate.

        out = gate(Linear(product) + skip)

    It has the attributes of `TensorProductLinear` and those below, and is called alike; the result
    is an IrrepsArray [..., irreps of `e3nn.gate` of the Linear's output].

    Attributes:
      even_act, odd_act, even_gate_act, odd_gate_act, normalize_act: as in `e3nn.gate`; the kernels
        compute any function of arithmetic, comparisons, exponentials, logarithms, roots and
        trigonometric functions. With another one, such as `jax.scipy.special.erf`, product and
        Linear are fused, and `e3nn.gate` follows them.
      gated: False activates the scalars only, as `e3nn.scalar_activation`.
    References: Weiler et al. 2018 (the gate); Batzner et al. 2022; e3nn-jax 0.21.

    Example:
      >>> x = e3nn.IrrepsArray("4x0e+4x1o", jnp.ones((2, 16)))
      >>> module = ops.TensorProductLinearGate("8x0e+2x0e+2x1o")  # the last scalars are gates
      >>> y = e3nn.IrrepsArray("0e", jnp.ones((2, 1)))
      >>> out, params = module.init_with_output(jax.random.key(0), x, y)
      >>> out.irreps
      8x0e+2x1o
    """

    even_act: Callable = jax.nn.gelu
    odd_act: Callable = e3nn.soft_odd
    even_gate_act: Callable = jax.nn.sigmoid
    odd_gate_act: Callable = jax.nn.tanh
    normalize_act: bool = True
    gated: bool = True

    def _gate(self):
        names, reference = ["even_act", "odd_act"], e3nn.scalar_activation
        if self.gated:
            names, reference = [*names, "even_gate_act", "odd_gate_act"], e3nn.gate
        acts = {name: getattr(self, name) for name in (*names, "normalize_act")}
        make = functools.partial(activations.gate, gated=self.gated, **acts)
        return make, functools.partial(reference, **acts)


def _fused_gate(make_gate, linear, zero_flags, mode: str):
    """Return the gate of a Linear that kernels compute; None where e3nn's function follows."""
    if any(zero_flags):  # e3nn's gate treats what is known to be zero on its own
        if not all(zero_flags):
            refuse(mode, "no path leads to some of the irreps that the gate reads")
        return None
    try:
        return make_gate(linear.irreps_out)
    except UnknownActivationError:
        refuse(mode, "kernels cannot compute an activation; see the argument even_act")
    return None


def _rows(product, x, y, weights, edges):
    """Return the leading axes of the result, and the operands of the product's form."""
    if edges is not None:
        batch_axes = BatchAxes(x.shape[:-1])
        return batch_axes, [x.array, y.array] + ([] if weights is None else [weights])
    shape = jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    batch_axes = BatchAxes(shape)
    return batch_axes, gather_columns(product, [batch_axes.flatten(a.array) for a in (x, y)])


def linear(x, parameters, irreps_out, *, index=None, weights=None, **options):
    """Apply `e3nn.flax.Linear` with these parameters, as a function.

    Args:
      x: IrrepsArray [..., irreps].
      parameters: dict of arrays, by the names of `e3nn.flax.Linear`.
      irreps_out: of the result.
      index: [...] integers, which set of weights a row takes.
      weights: [..., d], which are contracted with the parameters, see `Linear`.
      options: attributes of `Linear`.
    Returns:
      IrrepsArray [..., irreps_out].
    Raises:
      ValueError: as `Linear`, and an index as well as weights. flax.errors.ScopeParamShapeError,
        ScopeParamNotFoundError: parameters that do not fit.
    References: those of `Linear`.

    Example:
      >>> x = e3nn.IrrepsArray("4x0e", jnp.ones((3, 4)))
      >>> ops.linear(x, {"w[0,0] 4x0e,2x0e": jnp.ones((4, 2))}, "2x0e").array[0]
      Array([2., 2.], dtype=float32)
    """
    if index is not None and weights is not None:
        raise ValueError("index and weights exclude each other")
    arguments = [a for a in (index, weights, x) if a is not None]
    return Linear(irreps_out, **options).apply({"params": parameters}, *arguments)


def linear_of(module, index, x, parameters):
    """Apply a Linear of another framework, with its attributes."""
    options = {n: getattr(module, n) for n in (*OF_FUSED, "num_indexed_weights", "irreps_in")}
    return linear(x, parameters, module.irreps_out, index=index, **options)
