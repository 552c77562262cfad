"""Match sums of products and Linears of products, and put a form or the fused op in their place."""

from __future__ import annotations

import dataclasses
import math

import e3nn_jax as e3nn
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from eqfuse.fuse.gate import gates_behind
from eqfuse.fuse.match import CONVERT, Match, as_rows, match_product
from eqfuse.fuse.moves import Gathered, gather_rows, is_within, outside, placed, summed
from eqfuse.fuse.polynomials import Unfit
from eqfuse.fuse.reads import elements_of
from eqfuse.fuse.row_polynomials import ROWS, ArrayFactor, RowPolynomials
from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.linear import Linear, Parameter
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives import layer as _fused
from eqfuse.ops.primitives.choice import choose, resolve_fused
from eqfuse.ops.transforms.trace import Node, Trace


@dataclasses.dataclass(frozen=True)
class Mask:
    """Rows that are zero: those where `value`, [rows, ...] of one element each, is `zero`."""

    value: ArrayFactor
    zero: bool

    def kept(self, arrays: dict):
        """Return which rows are not, [rows]."""
        return as_rows(self.value, arrays[self.value.value])[:, 0] != self.zero


@dataclasses.dataclass(frozen=True)
class Ends:
    """Which rows of nodes an edge reads and is added to, as the trace means its indices.

    Behind the nodes, the graph has one for indices below the range and one for those above it,
    unless all are known to be within, and one for masked edges. Their rows are what JAX gathers by
    such indices, and go where JAX adds them to: values and derivatives are those of the trace.
    """

    senders: int  # a value of the trace, [rows]
    receivers: int
    scatter: GatherScatterMode
    masks: tuple[Mask, ...]  # edges that add nothing
    num_sources: int  # nodes that rows are gathered from
    num_nodes: int  # nodes that rows are added to
    within: bool  # whether all indices are known to be in range

    @property
    def values(self) -> tuple[int, ...]:
        return (self.senders, self.receivers, *(m.value.value for m in self.masks))

    @property
    def most(self) -> int:
        return max(self.num_sources, self.num_nodes)

    @property
    def count(self) -> int:
        return self.most + (0 if self.within else 2) + bool(self.masks)

    def edges(self, arrays: dict) -> Edges:
        senders, receivers = map(jnp.asarray, (arrays[self.senders], arrays[self.receivers]))
        if not self.within:
            senders = placed(senders, self.num_sources, self.most)
            receivers = placed(receivers, self.num_nodes, self.most)
        for mask in self.masks:
            receivers = jnp.where(mask.kept(arrays), receivers, self.count - 1)
        return Edges.from_arrays(senders, receivers, self.count)

    def extended(self, rows, gather: Gathered):
        """Return rows of nodes, with those of the nodes behind them."""
        more = [jnp.zeros((self.most - len(rows), rows.shape[1]), rows.dtype)]
        more += [] if self.within else [gather_rows(rows, outside(rows), gather.mode, gather.fill)]
        rest = self.count - sum(map(len, (rows, *more)))
        more.append(jnp.zeros((rest, rows.shape[1]), rows.dtype))
        return jnp.concatenate([rows, *(m for m in more if len(m))])

    def reduced(self, rows):
        """Return the rows of the nodes, to which those out of range are added as JAX does."""
        out = rows[: self.num_nodes]
        if self.within or self.scatter is GatherScatterMode.FILL_OR_DROP:
            return out
        options = {"mode": self.scatter, "wrap_negative_indices": False}
        return out.at[outside(out)].add(rows[self.most : self.most + 2], **options)


@dataclasses.dataclass(frozen=True)
class GraphProduct:
    """A product on a graph, to be computed in the place of a sum of rows."""

    name = "graph_tensor_product"
    pattern = "gather, product, sum"
    inside = frozenset()

    match: Match
    ends: Ends
    start: int | None  # the value that it is added to; None if that is zero
    shape: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        start = () if self.start is None else (self.start,)
        return tuple(dict.fromkeys((*self.match.inputs, *self.ends.values, *start)))

    def restricted(self, columns: set[int]) -> GraphProduct:
        """Return the same with those paths alone that add to some of these columns."""
        form, [out] = self.match.form, self.match.form.outputs
        read = [not columns.isdisjoint(elements_of(s, out.channels)) for s in out.segments]
        paths = tuple(p for p in form.paths if read[p.output.segment])
        form = dataclasses.replace(form, paths=paths)
        return dataclasses.replace(self, match=dataclasses.replace(self.match, form=form))

    def operands(self, arrays: dict, shared: dict) -> tuple[list, Edges]:
        """Return the inputs of the form, and the edges."""
        if self.ends not in shared:  # layers of the same ends order the edges once
            shared[self.ends] = self.ends.edges(arrays)
        edges = shared[self.ends]
        operands = self.match.operands(arrays, edges.num_edges)
        for n, gather in self.match.gathered.items():
            operands[n] = self.ends.extended(operands[n], gather)
        return operands, edges

    def compute(self, arrays: dict, shared: dict):
        operands, edges = self.operands(arrays, shared)
        [out] = forms.evaluate(self.match.form, operands, edges, backend=self.match.backend)
        out = self.ends.reduced(out).reshape(self.shape)
        return out if self.start is None else arrays[self.start] + out


def graph_products(trace: Trace, rows: RowPolynomials, node: Node) -> list:
    """Return the value and product of `scatter_sum(product(x[senders], y) * w)`, or raise Unfit."""
    scatter = summed(trace, node)
    if scatter is None:
        raise Unfit("a sum of parts of rows, or along other axes")
    updates, masks = without_masks(trace, rows, scatter.updates)
    row, aval = rows.of(*updates), trace.avals[scatter.start]
    dtype = trace.avals[scatter.updates].dtype
    if dtype != aval.dtype:
        raise Unfit(f"dtypes change in the sum: {CONVERT}")
    product = match_product(trace, rows, row, dtype)
    gathered = list(product.gathered.values())
    # features of the receivers alone are those of senders that are the receivers
    others = [g for g in gathered if g.index != scatter.index] or gathered
    counts = {g: trace.avals[g.value].shape[0] for g in gathered}
    if len({(g.index, counts[g]) for g in others}) > 1:
        raise Unfit("node features are gathered by several index arrays")
    if any(counts[g] != aval.shape[0] for g in gathered if g not in others):
        raise Unfit("rows are gathered from one number of nodes and added to another")
    if not gathered:
        raise Unfit(
            "the product reads no rows as they are gathered: gather the features of nodes inside "
            "of the function, as x[senders], and behind what is computed of them alone"
        )
    read_there = {n: Index.RECEIVER for n, g in product.gathered.items() if g not in others}
    if read_there:
        product = dataclasses.replace(product, form=product.form.indexed(read_there))
    first = others[0]
    sizes = counts[first], aval.shape[0]
    ends = zip((first.index, scatter.index), sizes, strict=True)
    within = all(is_within(trace, index, count) for index, count in ends)
    ends = Ends(first.index, scatter.index, scatter.mode, tuple(masks), *sizes, within)
    zero = trace.uniform(scatter.start) == 0
    start = None if zero else scatter.start
    return [(node.outputs[0], GraphProduct(product, ends, start, tuple(aval.shape)))]


def without_masks(trace: Trace, rows: RowPolynomials, value: int) -> tuple[tuple, list[Mask]]:
    """Return the rows that are summed where no mask makes them zero, and these masks.

    The rows are a value and which of its axes count them.
    """
    masks, axes = [], ROWS
    unmasked = value, axes
    while (node := trace.producer.get(value)) is not None:
        if node.name == "reshape" and (axes := rows.before_reshape(node, axes)):
            value = node.inputs[0]
            continue
        if node.name != "select_n":
            break
        which, *cases = node.inputs
        zeros = [trace.uniform(v) for v in cases]
        zeros = [z is not None and z == 0 for z in zeros]
        mask = _of_rows(trace, rows, which, axes, trace.avals[value].shape)
        if len(cases) != 2 or sum(zeros) != 1 or mask is None:
            break
        masks.append(Mask(mask, bool(zeros[1])))
        value = cases[0] if zeros[1] else cases[1]
        unmasked = value, axes
    return unmasked, masks


def _of_rows(trace, rows: RowPolynomials, which: int, axes, shape) -> ArrayFactor | None:
    """Return the array, of one element each, that chooses rows of this shape; None for others."""
    if trace.avals[which].dtype != np.bool_ or trace.avals[which].shape != shape:
        return None
    terms = rows.of(which, axes).terms
    [key, *others] = terms or [()]
    if others or len(key) != 1 or not isinstance(key[0], ArrayFactor) or key[0].axes is None:
        return None
    own = trace.avals[key[0].value]
    is_one = own.size == math.prod(own.shape[a] for a in key[0].axes) and not terms[key].index.any()
    return key[0] if is_one else None


@dataclasses.dataclass(frozen=True)
class Layer:
    """A Linear of a product of rows or on a graph, to be computed by the fused op."""

    product: Node | GraphProduct
    call: _fused.Call
    parameters: tuple[int, ...]  # values of the trace
    skip: tuple[int, ...]  # what is added before the gate; empty if nothing is
    num_rows: int  # of the result
    inside: frozenset[int]  # values that it computes and keeps to itself: sum, pre-activation

    @property
    def name(self) -> str:
        return "TensorProductLinear" + ("Gate" if self.call.fused.gate else "")

    @property
    def pattern(self) -> str:
        skip, gate = ", skip" if self.skip else "", ", gate" if self.call.fused.gate else ""
        return f"product, Linear{skip}{gate}"

    @property
    def inputs(self) -> tuple[int, ...]:
        return (*self.product.inputs, *self.parameters, *self.skip)

    def compute(self, arrays: dict, shared: dict):
        parameters, skip = ([arrays[v] for v in values] for values in (self.parameters, self.skip))
        integers = []
        if isinstance(self.product, GraphProduct):
            operands, edges = self.product.operands(arrays, shared)
            more = self.product.ends.count - self.num_rows
            skip = [jnp.pad(a, [(0, more), (0, 0)]) for a in skip]
            integers = [jnp.asarray(getattr(edges, n)) for n in INDEX_ARRAYS]
        else:
            operands = [arrays[v] for v in self.product.inputs]
        for n, described in enumerate(self.call.fused.form.inputs):
            if described.index is Index.ROW:  # or one row for all
                operands[n] = jnp.broadcast_to(operands[n], (self.call.num_rows, described.size))
        floats = [*operands, *parameters, *skip]
        return _fused.evaluate(self.call, floats, integers)[: self.num_rows]


def layers(trace: Trace, rows: RowPolynomials, node: Node) -> list[tuple[int, Layer]]:
    """Return the Linear of a product that a node computes, and with the gate behind it, by value.

    Of rows they are those of SEGNN, `gate(linear(product(x, y)))`. Of sums over edges they are
    NequIP's, of which one kernel is faster for few nodes on a GPU.
    Raises Unfit where the node computes something else, or kernels of the parts are faster.
    """
    value, scale = _read(trace, rows, node.inputs[0]) or (None, 1.0)
    num_rows = node.params["num_rows"]
    product, inside = trace.producer.get(value), frozenset()
    if product is not None and rows.is_product(product):
        form, backend, count = (product.params[n] for n in ("form", "backend", "num_rows"))
        dtypes, nodes, rows_of = {trace.avals[v].dtype for v in product.inputs}, 0, count
    elif product is not None and summed(trace, product) is not None:
        [(_, product)] = graph_products(trace, rows, product)
        form, backend, dtypes = product.match.form, product.match.backend, {product.match.dtype}
        nodes, rows_of, inside = product.ends.count, product.ends.num_nodes, frozenset([value])
        count = trace.avals[product.ends.senders].shape[0]
        if product.start is not None:
            raise Unfit("the sum over edges does not start from zero")
        if any(g.fill not in (None, 0.0) for g in product.match.gathered.values()):
            raise Unfit("rows out of range are filled with other numbers than zero")
    else:
        raise Unfit("something is between the product, or its sum, and the Linear")
    if backend != node.params["backend"] or rows_of != num_rows:
        raise Unfit("the Linear has another backend, or other rows")
    linear = _linear(node.params["form"])
    dtypes |= {trace.avals[v].dtype for v in node.inputs}
    if len(dtypes) > 1:
        raise Unfit(f"dtypes change before the Linear: {CONVERT}")
    _check_blocks(form, linear)
    form = form.indexed(
        {n: Index.ROW for n, o in enumerate(form.inputs) if o.index is Index.SHARED}
    )
    [z], [dtype], found = node.outputs, dtypes, []
    for gate, skip, end in [(None, (), z), *gates_behind(trace, z, linear)]:
        fused = Fused.build(_scaled(form, scale), linear, gate, bool(skip))
        chosen = choose(resolve_fused(None), fused, count, nodes and num_rows, backend, dtype)
        if chosen.kernels is not _fused.Kernels.APART:
            call = _fused.Call(fused, count, nodes, backend, chosen.kernels)
            given = node.inputs[1:], skip, num_rows, inside | {z} if gate else inside
            found.append((end, Layer(product, call, *given)))
    if not found:
        raise Unfit(chosen.text.removeprefix("apart: "))
    return found


def _scaled(form: Form, scale: float) -> Form:
    """Return a form times a number, as of a sum that is divided by a number of neighbours."""

    def terms(path):
        return tuple((components, scale * v) for components, v in path.terms)

    paths = tuple(dataclasses.replace(p, terms=terms(p)) for p in form.paths)
    return form if scale == 1 else dataclasses.replace(form, paths=paths)


def _read(trace: Trace, rows: RowPolynomials, value: int) -> tuple[int, float] | None:
    """Return the value that another is a number times, through moves, and it; None for others."""
    [(key, terms), *others] = rows.of(value).terms.items() or [((), None)]
    if others or len(key) != 1 or not isinstance(key[0], ArrayFactor) or key[0].axes != ROWS:
        return None  # or a matrix that is transposed
    of = key[0].value
    in_order = np.array_equal(terms.index[np.argsort(terms.place), 0], np.arange(len(terms.place)))
    own, after, scales = trace.avals[of], trace.avals[value], np.unique(terms.scale)
    same = (own.shape, own.dtype) == (after.shape, after.dtype) and len(scales) == 1
    is_whole = same and in_order and len(terms.place) == rows.of(of).size
    return (of, float(scales[0])) if is_whole else None


def _linear(linear_form: Form) -> Linear:
    """Return the Linear of a row that a linear form is, or raise Unfit."""
    rows = [o for o in linear_form.operands if not o.matrix]
    if linear_form.num_sets:
        raise Unfit("rows choose their weights by an index")
    if len(rows) != 2 or len(linear_form.outputs) != 1 or rows[0] is not linear_form.inputs[0]:
        raise Unfit("a Linear of several rows")
    if any(t.z.operand != len(linear_form.inputs) for t in linear_form.terms):
        raise Unfit("the matrices of the Linear are transposed")
    [out] = linear_form.outputs
    ends = np.cumsum([0, *(b.mul * b.dim for b in out.segments)])
    if list(ends[:-1]) != [b.offset for b in out.segments] or ends[-1] != out.size:
        raise Unfit("a Linear that leaves out a part of its result")
    irreps = e3nn.Irreps([(b.mul, (b.dim // 2, 1)) for b in out.segments])
    parameters = tuple(
        Parameter(str(n), w.matrix, 0.0) for n, w in enumerate(linear_form.inputs[1:])
    )
    return Linear(linear_form, parameters, irreps)


def _check_blocks(form: Form, linear: Linear):
    """Refuse segments that are not whole channels of one block of the Linear, or outside of all."""
    [out] = form.outputs
    for segment in {path.output.segment for path in form.paths}:
        s = out.segments[segment]
        elements = set(elements_of(s))
        for b in linear.blocks_in:
            if elements.isdisjoint(range(b.offset, b.offset + b.mul * b.dim)):
                continue
            channels = {(s.element(u, 0) - b.offset) / b.dim for u in range(s.mul)}
            if (s.dim, s.component_stride) != (b.dim, 1) or not channels <= set(range(b.mul)):
                raise Unfit("channels of the product are not those of the Linear")
