"""Match sums of products and Linears of products, and put a form or the fused op in their place."""

from __future__ import annotations

import dataclasses
import math

import e3nn_jax as e3nn
import jax.numpy as jnp
import numpy as np

from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import Form, Index
from eqfuse.ops.ir.fused import Fused, Gate
from eqfuse.ops.ir.linear import Linear, LinearForm, Parameter, Rows
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives import layer as _fused
from eqfuse.ops.primitives.choice import choose, resolve_fused
from eqfuse.ops.transforms.fuse.gate import gate_behind
from eqfuse.ops.transforms.fuse.match import (
    CONVERT,
    Group,
    Match,
    add_rows,
    as_rows,
    columns_of,
    match_product,
)
from eqfuse.ops.transforms.fuse.reads import restricted
from eqfuse.ops.transforms.fuse.rows import (
    ROWS,
    ArrayFactor,
    ProductFactor,
    RowPolynomials,
    Unfit,
)
from eqfuse.ops.transforms.fuse.trace import Gathered, Node, Polynomial, Scatter, Trace, summed


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

    An `extended` graph has one more node, which rows that are out of range are read from and rows
    that are dropped or masked are added to.
    """

    senders: int  # a value of the trace, [rows]
    receivers: int
    gather: str  # the mode
    scatter: str
    fill: float | None  # what a row is made of that is gathered from out of range
    masks: tuple[Mask, ...]  # edges that add nothing
    num_sources: int  # nodes that rows are gathered from
    num_nodes: int  # nodes that rows are added to

    @property
    def values(self) -> tuple[int, ...]:
        return (self.senders, self.receivers, *(m.value.value for m in self.masks))

    @property
    def count(self) -> int:
        extended = self.gather == "FILL_OR_DROP" or self.scatter != "CLIP" or bool(self.masks)
        return max(self.num_sources, self.num_nodes) + extended

    def edges(self, arrays: dict) -> Edges:
        def placed(index, count: int, is_clipped: bool):
            if is_clipped:
                return jnp.clip(index, 0, count - 1)
            return jnp.where((index >= 0) & (index < count), index, self.count - 1)

        senders, receivers = jnp.asarray(arrays[self.senders]), jnp.asarray(arrays[self.receivers])
        senders = placed(senders, self.num_sources, self.gather != "FILL_OR_DROP")
        receivers = placed(receivers, self.num_nodes, self.scatter == "CLIP")
        for mask in self.masks:
            receivers = jnp.where(mask.kept(arrays), receivers, self.count - 1)
        return Edges.from_arrays(senders, receivers, self.count)


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
        match = dataclasses.replace(self.match, form=restricted(self.match.form, columns))
        return dataclasses.replace(self, match=match)

    def compute(self, arrays: dict, shared: dict):
        if self.ends not in shared:  # layers of the same ends order the edges once
            shared[self.ends] = self.ends.edges(arrays)
        edges = shared[self.ends]
        operands = self.match.operands(arrays, edges.num_edges)
        for name, gather in self.match.gathered.items():
            if added := self.ends.count - operands[name].shape[0]:
                fill = 0.0 if gather.fill is None else gather.fill
                operands[name] = jnp.pad(operands[name], ((0, added), (0, 0)), constant_values=fill)
        inputs = [operands[name] for name in self.match.names]
        [out] = forms.evaluate(self.match.form, inputs, edges, backend=self.match.backend)
        out = out[: self.ends.num_nodes].reshape(self.shape)
        return out if self.start is None else arrays[self.start] + out


def graph_products(trace: Trace, rows: RowPolynomials, number: int) -> list:
    """Return the product on a graph that a node computes, with its value, or raise Unfit."""
    scatter = summed(trace, number)
    if scatter is None:
        raise Unfit("a sum of parts of rows, or along other axes")
    updates, masks = without_masks(trace, rows, scatter.updates)
    row = rows.of(*updates)
    try:
        product = _of_row(trace, rows, scatter, row, masks)
    except Unfit:
        parts, rest = _parts(row)
        if not parts or (len(parts) == 1 and not rest.terms):
            raise
        parts = [_of_row(trace, rows, scatter, part, masks) for part in parts]
        added = AddedRows(rest, scatter, tuple(masks), math.prod(parts[0].shape[1:]))
        product = SumOfProducts(tuple(parts), added if rest.terms else None)
    return [(trace.nodes[number].outputs[0], product)]


def _parts(row: Polynomial) -> tuple[list[Polynomial], Polynomial]:
    """Return what rows have of each product, and the rest, which no product is in."""
    parts: dict = {}
    for key, terms in row.terms.items():
        products = tuple(name for name in key if isinstance(name, ProductFactor))
        parts.setdefault(products, {})[key] = terms
    rest = parts.pop((), {})
    return [Polynomial(row.shape, p) for p in parts.values()], Polynomial(row.shape, rest)


@dataclasses.dataclass(frozen=True, eq=False)
class AddedRows:
    """The sum to nodes of rows that are made of no product."""

    row: Polynomial
    scatter: Scatter
    masks: tuple[Mask, ...]
    size: int

    def __post_init__(self):
        for terms in self.row.terms.values():
            if len(np.unique(terms.place)) < len(terms.place):
                raise Unfit("rows that are added to a product are a sum of others")

    @property
    def inputs(self) -> tuple[int, ...]:
        names = [_array(n) for key in self.row.terms for n in key] + [m.value for m in self.masks]
        return (self.scatter.start, self.scatter.index, *(n.value for n in names))

    def compute(self, arrays: dict):
        index, start = arrays[self.scatter.index], arrays[self.scatter.start]
        kept = jnp.ones((len(index), 1), start.dtype)
        for mask in self.masks:
            kept *= mask.kept(arrays)[:, None]
        out = 0
        for key, terms in self.row.terms.items():
            columns = np.full(self.size, len(terms.place))
            columns[terms.place] = np.arange(len(terms.place))
            group = Group(tuple(map(_array, key)), terms.index)
            rows = columns_of(group, arrays) if key else jnp.ones((1, 1), start.dtype)
            by_edge = len(rows) > 1  # or one row for all edges, which are counted
            added = jnp.zeros((len(start), rows.shape[1] if by_edge else 1), start.dtype)
            added = add_rows(added, index, rows * kept if by_edge else kept, self.scatter.mode)
            added = added * jnp.asarray(terms.scale, start.dtype) * (1 if by_edge else rows)
            out = out + jnp.pad(added, ((0, 0), (0, 1)))[:, columns]
        return out.reshape(start.shape)


def _array(name: ArrayFactor | Gathered) -> ArrayFactor:
    return ArrayFactor(name.rows, ROWS) if isinstance(name, Gathered) else name


@dataclasses.dataclass(frozen=True, eq=False)
class SumOfProducts:
    """Several products on a graph, or others rows beside one, that are added before their sum."""

    parts: tuple[GraphProduct, ...]
    added: AddedRows | None
    name = "graph_tensor_product"
    pattern = "gather, products, sum"
    inside = frozenset()

    def restricted(self, columns: set[int]) -> SumOfProducts:
        parts = tuple(p.restricted(columns) for p in self.parts)
        return dataclasses.replace(self, parts=parts)

    @property
    def inputs(self) -> tuple[int, ...]:
        added = () if self.added is None else self.added.inputs
        return tuple(dict.fromkeys([v for p in self.parts for v in p.inputs] + [*added]))

    def compute(self, arrays: dict, shared: dict):
        first, *others = self.parts
        out = first.compute(arrays, shared)
        for part in others:
            out = out + dataclasses.replace(part, start=None).compute(arrays, shared)
        return out if self.added is None else out + self.added.compute(arrays)


def _of_row(trace: Trace, rows: RowPolynomials, scatter, row: Polynomial, masks) -> GraphProduct:
    """Return the product on a graph of which each edge adds this row."""
    aval = trace.avals[scatter.start]
    dtype = trace.avals[scatter.updates].dtype
    if dtype != aval.dtype:
        raise Unfit(f"dtypes change in the sum: {CONVERT}")
    product = match_product(trace, rows, row, dtype)
    gathered = list(product.gathered.values())
    # features of the receivers alone are those of senders that are the receivers
    others = [g for g in gathered if g.index != scatter.index] or gathered
    counts = {g: trace.avals[g.value].shape[0] for g in gathered}
    if len({(g.index, g.mode, g.fill, counts[g]) for g in others}) > 1:
        raise Unfit("node features are gathered by several index arrays")
    if any(counts[g] != aval.shape[0] for g in gathered if g not in others):
        raise Unfit("rows are gathered from one number of nodes and added to another")
    if not gathered:
        raise Unfit(
            "the product reads no rows as they are gathered: gather the features of nodes inside "
            "of the function, as x[senders], and behind what is computed of them alone"
        )
    own = [g for g in gathered if g not in others]
    if scatter.mode == "CLIP" and any(g.mode == "FILL_OR_DROP" for g in own):
        raise Unfit("an index out of range means one thing to the gather and another to the sum")
    read_there = {name for name, g in product.gathered.items() if g not in others}
    if read_there:
        changed = {n: Index.RECEIVER for n, name in enumerate(product.names) if name in read_there}
        product = dataclasses.replace(product, form=product.form.indexed(changed))
    first = others[0]
    modes = first.mode, scatter.mode, first.fill, tuple(masks)
    ends = Ends(first.index, scatter.index, *modes, counts[first], aval.shape[0])
    zero = trace.uniform(scatter.start) == 0
    return GraphProduct(product, ends, None if zero else scatter.start, tuple(aval.shape))


def without_masks(trace: Trace, rows: RowPolynomials, value: int) -> tuple[tuple, list[Mask]]:
    """Return the rows that are summed where no mask makes them zero, and these masks.

    The rows are a value and which of its axes count them.
    """
    masks, axes = [], ROWS
    unmasked = value, axes
    while (node := trace.node(value)) is not None:
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
    """A Linear of a product of rows, to be computed by the fused op."""

    product: Node
    linear: Linear
    parameters: tuple[int, ...]  # values of the trace
    index: tuple[int, ...]  # which set of weights a row takes; empty if there is one
    gate: Gate | None = None
    inside: frozenset[int] = frozenset()  # the pre-activation, where a gate follows

    @property
    def name(self) -> str:
        return "TensorProductLinear" + ("Gate" if self.gate else "")

    @property
    def pattern(self) -> str:
        return "product, Linear" + (", gate" if self.gate else "")

    @property
    def inputs(self) -> tuple[int, ...]:
        return (*self.product.inputs, *self.parameters, *self.index)

    def compute(self, arrays: dict, shared: dict):
        form, num_rows = self.product.params["form"], self.product.params["num_rows"]
        operands = [arrays[v] for v in self.product.inputs]
        one_for_all = [n for n, o in enumerate(form.inputs) if o.index is Index.SHARED]
        for n in one_for_all:  # a fused op has a row each
            operands[n] = jnp.broadcast_to(operands[n], (num_rows, operands[n].shape[1]))
        form = form.indexed(dict.fromkeys(one_for_all, Index.ROW))
        backend, dtype = self.product.params["backend"], operands[0].dtype
        fused = Fused.build(form, self.linear, self.gate, False)
        chosen = choose(resolve_fused(None), fused, num_rows, 0, backend, dtype)
        call = _fused.Call(fused, num_rows, 0, backend, chosen.kernels)
        floats = [*operands, *(arrays[p] for p in self.parameters)]
        return _fused.evaluate(call, floats, [arrays[v] for v in self.index])[0]


def layers(trace: Trace, rows: RowPolynomials, number: int) -> list[tuple[int, Layer]]:
    """Return the Linear of a product that a node computes, and with the gate behind it, by value.

    Raises Unfit where the node computes something else.
    """
    node = trace.nodes[number]
    form: LinearForm = node.params["form"]
    value = node.inputs[0]
    while (product := trace.node(value)) is not None and product.name == "reshape":
        [value] = product.inputs
    if product is None or not rows.is_product(trace.producer[value][0]):
        raise Unfit("something is between the product and the Linear")
    if any(product.params[name] != node.params[name] for name in ("backend", "num_rows")):
        raise Unfit("the Linear has another backend, or other rows")
    if len({trace.avals[v].dtype for v in (*product.inputs, *node.inputs[: len(form.inputs)])}) > 1:
        raise Unfit(f"dtypes change before the Linear: {CONVERT}")
    linear = _linear(form)
    _check_blocks(product.params["form"], linear)
    [z], given = node.outputs, len(form.inputs)
    layer = Layer(product, linear, node.inputs[1:given], node.inputs[given:])
    gated = gate_behind(trace, z, linear)
    if gated is None:
        return [(z, layer)]
    value, gate = gated
    return [(z, layer), (value, dataclasses.replace(layer, gate=gate, inside=frozenset([z])))]


def _linear(linear_form: LinearForm) -> Linear:
    """Return the Linear of a row that a linear form is, or raise Unfit."""
    rows = [o for o in linear_form.operands if isinstance(o, Rows)]
    if len(rows) != 2 or len(linear_form.outputs) != 1 or rows[0] is not linear_form.inputs[0]:
        raise Unfit("a Linear of several rows")
    [out] = linear_form.outputs
    ends = np.cumsum([0, *(b.mul * b.dim for b in out.blocks)])
    if list(ends[:-1]) != [b.offset for b in out.blocks] or ends[-1] != out.size:
        raise Unfit("a Linear that leaves out a part of its result")
    irreps = e3nn.Irreps([(b.mul, (b.dim // 2, 1)) for b in out.blocks])
    parameters = tuple(
        Parameter(str(n), w.shape, 0.0) for n, w in enumerate(linear_form.inputs[1:])
    )
    return Linear(linear_form, parameters, irreps)


def _check_blocks(form: Form, linear: Linear):
    """Refuse segments that are not whole channels of one block of the Linear."""
    [out] = form.outputs
    for path in form.paths:
        s = out.segments[path.output.segment]
        last = dataclasses.replace(s, offset=s.offset + (s.mul - 1) * s.channel_stride)
        held = [b.holds(s) and b.holds(last) for b in linear.blocks_in]
        touched = [b.holds(s) or b.holds(last) for b in linear.blocks_in]
        aligned = all((s.offset - b.offset) % b.dim == 0 for b in linear.blocks_in if b.holds(s))
        if held != touched or not aligned or s.component_stride != 1:
            raise Unfit("channels of the product are not those of the Linear")
