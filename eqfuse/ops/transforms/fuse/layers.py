"""Match sums of products and Linears of products, and put a form or the fused op in their place."""

from __future__ import annotations

import dataclasses
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index, Role
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.linear import Linear, LinearForm, Parameter, Rows
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives import layer as _fused
from eqfuse.ops.primitives.choice import choose, resolve_fused
from eqfuse.ops.transforms.fuse.gate import GateMatch, gate_behind
from eqfuse.ops.transforms.fuse.match import (
    CONVERT,
    WEIGHTS,
    Joined,
    Match,
    as_rows,
    match_product,
    parts_of,
)
from eqfuse.ops.transforms.fuse.rows import (
    ARITHMETIC,
    MOVES,
    ROWS,
    ArrayFactor,
    ProductFactor,
    RowPolynomials,
    Unfit,
    behind,
)
from eqfuse.ops.transforms.fuse.trace import (
    Gathered,
    Polynomial,
    Scatter,
    Terms,
    Trace,
    merged,
    summed,
)


@dataclasses.dataclass(frozen=True)
class Mask:
    """Rows that are zero: those where `value`, [rows, ...] of one element each, is `zero`."""

    value: ArrayFactor
    zero: bool


@dataclasses.dataclass(frozen=True)
class Ends:
    """Which rows of nodes an edge reads and is added to, as the trace means its indices.

    An `extended` graph has one more node, which rows that are out of range are read from and added
    to. Without, edges that are added nowhere have operands of zeros.
    """

    senders: int  # a value of the trace, [rows]
    receivers: int
    gather: str  # the mode
    scatter: str
    fill: float | None  # what a row is made of that is gathered from out of range
    masks: tuple[Mask, ...]  # edges that add nothing
    num_sources: int  # nodes that rows are gathered from
    num_nodes: int  # nodes that rows are added to
    extended: bool

    @property
    def values(self) -> tuple[int, ...]:
        return (self.senders, self.receivers, *(m.value.value for m in self.masks))

    @property
    def count(self) -> int:
        return max(self.num_sources, self.num_nodes) + self.extended

    def edges(self, arrays: dict) -> tuple[Edges, object]:
        """Return the edges, and which of them are added to a node, [rows]; None for all."""
        n, num_sources, last = self.num_nodes, self.num_sources, self.count - 1
        senders, receivers = jnp.asarray(arrays[self.senders]), jnp.asarray(arrays[self.receivers])
        if self.gather == "FILL_OR_DROP":
            senders = jnp.where((senders >= 0) & (senders < num_sources), senders, last)
        else:
            senders = jnp.clip(senders, 0, num_sources - 1)
        valid = None
        if self.scatter == "CLIP":
            receivers = jnp.clip(receivers, 0, n - 1)
        else:
            valid = (receivers >= 0) & (receivers < n)
        for mask in self.masks:
            added = as_rows(mask.value, arrays[mask.value.value])[:, 0] != mask.zero
            valid = added if valid is None else valid & added
        if valid is not None:  # to itself, where there is no other node: nothing spreads
            receivers = jnp.where(valid, receivers, last if self.extended else senders)
        edges = Edges.from_arrays(senders, receivers, self.count)
        return edges, None if self.extended else valid


@dataclasses.dataclass(frozen=True)
class GraphProduct:
    """A product on a graph, to be computed in the place of a sum of rows."""

    name = "graph_tensor_product"
    pattern = "gather, product, sum"
    inside = frozenset()

    match: Match
    ends: Ends
    masked: tuple  # operands that are zero for edges that are added nowhere, if no node is added
    start: int | None  # the value that it is added to; None if that is zero
    shape: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        start = () if self.start is None else (self.start,)
        return tuple(dict.fromkeys((*self.match.inputs, *self.ends.values, *start)))

    def operands(self, arrays: dict, shared: dict) -> tuple[list, Edges]:
        """Return the inputs of the form, and the edges, which products of the same ends share."""
        if self.ends not in shared:
            shared[self.ends] = self.ends.edges(arrays)
        edges, valid = shared[self.ends]
        operands = self.match.operands(arrays, edges.num_edges)
        for name, gather in self.match.gathered.items():
            added = self.ends.count - operands[name].shape[0]
            if added:
                fill = 0.0 if gather.fill is None else gather.fill
                operands[name] = jnp.pad(operands[name], ((0, added), (0, 0)), constant_values=fill)
        if valid is not None:
            for name in self.masked:
                own = operands[name]
                operands[name] = jnp.where(valid[:, None], own, jnp.zeros_like(own))
        return [operands[name] for name in self.match.names], edges

    def compute(self, arrays: dict, shared: dict):
        operands, edges = self.operands(arrays, shared)
        [out] = forms.evaluate(self.match.form, operands, edges, backend=self.match.backend)
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
        names = [n for key in self.row.terms for n in key] + [m.value for m in self.masks]
        values = [n.rows if isinstance(n, Gathered) else n.value for n in names]
        return (self.scatter.start, self.scatter.index, *values)

    def compute(self, arrays: dict):
        index, start = arrays[self.scatter.index], arrays[self.scatter.start]
        kept = jnp.ones(len(index), start.dtype)
        for mask in self.masks:
            kept *= as_rows(mask.value, arrays[mask.value.value])[:, 0] != mask.zero
        out = 0
        for key, terms in self.row.terms.items():
            columns = np.full(self.size, len(terms.place))
            columns[terms.place] = np.arange(len(terms.place))
            rows = jnp.asarray(terms.scale, start.dtype)[None]
            for n, name in enumerate(key):
                if isinstance(name, Gathered):
                    name = ArrayFactor(name.rows, ROWS)
                rows = rows * as_rows(name, arrays[name.value])[:, terms.index[:, n]]
            one_for_all = rows.shape[0] == 1
            rows = kept[:, None] if one_for_all else rows * kept[:, None]
            added = jnp.zeros((start.shape[0], rows.shape[1]), rows.dtype)
            mode = jax.lax.GatherScatterMode[self.scatter.mode]
            added = added.at[index].add(rows, mode=mode, wrap_negative_indices=False)
            if one_for_all:
                added = added * jnp.asarray(terms.scale, start.dtype)
            out = out + jnp.pad(added, ((0, 0), (0, 1)))[:, columns]
        return out.reshape(start.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class SumOfProducts:
    """Several products on a graph, or others rows beside one, that are added before their sum."""

    parts: tuple[GraphProduct, ...]
    added: AddedRows | None
    name = "graph_tensor_product"
    pattern = "gather, products, sum"
    inside = frozenset()

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
        raise Unfit("dtypes change in the sum", CONVERT)
    product = match_product(trace, rows, row, Index.RECEIVER, dtype)
    gathered = list(product.gathered.values())
    # features of the receivers alone are those of senders that are the receivers
    others = [g for g in gathered if g.index != scatter.index] or gathered
    counts = {g: trace.avals[g.value].shape[0] for g in gathered}
    if len({(g.index, g.mode, g.fill, counts[g]) for g in others}) > 1:
        raise Unfit("node features are gathered by several index arrays")
    if any(counts[g] != aval.shape[0] for g in gathered if g not in others):
        raise Unfit("rows are gathered from one number of nodes and added to another")
    if not gathered:
        functions = _of_gathered(trace, rows, product)
        raise Unfit(
            f"{functions} of gathered rows is multiplied"
            if functions
            else "no operand of the product is gathered from nodes",
            f"apply {functions} to the nodes, before the gather"
            if functions
            else "gather the features of nodes inside of the function, as x[senders]",
        )
    own = [g for g in gathered if g not in others]
    if scatter.mode == "CLIP" and any(g.mode == "FILL_OR_DROP" for g in own):
        raise Unfit("an index out of range means one thing to the gather and another to the sum")
    read_there = {name for name, g in product.gathered.items() if g not in others}
    if read_there:
        changed = {n: Index.RECEIVER for n, name in enumerate(product.names) if name in read_there}
        product = dataclasses.replace(product, form=product.form.indexed(changed))
    # where indices are promised to be in range, nothing is promised of what others would hold
    promised = scatter.mode == "PROMISE_IN_BOUNDS" and not masks
    masked = _masked(product, promised)
    extended = others[0].mode == "FILL_OR_DROP"
    if masks or scatter.mode != "CLIP":
        # on a CPU a pass over the operands of all edges costs more than one over the nodes; on a
        # GPU padding and slicing are launches
        slower = product.backend == "llvm" and not promised
        extended = extended or slower or not _stopped(product, masked)
    ends = Ends(
        others[0].index,
        scatter.index,
        others[0].mode,
        scatter.mode,
        others[0].fill,
        tuple(masks),
        counts[others[0]],
        aval.shape[0],
        extended,
    )
    zero = trace.uniform(scatter.start) == 0
    return GraphProduct(product, ends, masked, None if zero else scatter.start, tuple(aval.shape))


def _of_gathered(trace: Trace, rows: RowPolynomials, product: Match) -> str:
    """Return the primitives between gathers and the left operand of a product; "" for none."""
    names: set[str] = set()
    for name, operand in zip(product.names, product.form.inputs, strict=True):
        if operand.role is Role.LEFT and name != WEIGHTS:
            for value in (part.value for part in parts_of(name)):
                if (made := trace.producer.get(value)) is None:
                    continue
                all_behind = [made[0], *behind(trace, made[0], lambda n: True)]
                if not rows.gathers.keys().isdisjoint(all_behind):
                    names |= {trace.nodes[n].name for n in all_behind if n > min(rows.gathers)}
    return ", ".join(sorted(names - MOVES - ARITHMETIC - {"eqfuse_form", "convert_element_type"}))


def _masked(product: Match, promised: bool) -> tuple:
    """Return the operands that each edge has for itself; if promised, the right one alone."""
    pairs = zip(product.names, product.form.inputs, strict=True)
    rows = ((name, o.role) for name, o in pairs if o.index is Index.ROW)
    return tuple(name for name, role in rows if not promised or role is Role.RIGHT)


def _stopped(product: Match, masked: tuple) -> bool:
    """Return whether zeros in these operands make all of the product zero."""
    names = product.names
    return all(any(names[f.operand] in masked for f in p.factors) for p in product.form.paths)


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
    """A Linear of a product, to be computed by the fused op."""

    product: Match | GraphProduct
    linear: Linear
    parameters: tuple[int, ...]  # values of the trace
    index: int | None  # which set of weights a row takes; None if there is one
    num_rows: int  # of the result
    inside: frozenset[int]  # values that it computes and keeps to itself: sum, pre-activation
    gated: GateMatch | None  # with what is added before it

    @property
    def name(self) -> str:
        return "TensorProductLinear" if self.gated is None else "TensorProductLinearGate"

    @property
    def pattern(self) -> str:
        if self.gated is None:
            return "product, Linear"
        return f"product, Linear, {'skip, ' if self.gated.skip is not None else ''}gate"

    @property
    def inputs(self) -> tuple[int, ...]:
        others = () if self.index is None else (self.index,)
        if self.gated is not None and self.gated.skip is not None:
            others += (self.gated.skip.value,)
        return tuple(dict.fromkeys((*self.product.inputs, *self.parameters, *others)))

    def compute(self, arrays: dict, shared: dict):
        if isinstance(self.product, GraphProduct):
            product, (operands, edges) = self.product.match, self.product.operands(arrays, shared)
            num_rows, num_nodes = edges.num_edges, edges.num_nodes
        else:
            product, edges, num_rows, num_nodes = self.product, None, self.num_rows, 0
            named = product.operands(arrays, num_rows)
            operands = [named[name] for name in product.names]
        shared_by_all = [n for n, o in enumerate(product.form.inputs) if o.index is Index.SHARED]
        for n in shared_by_all:  # a fused op has a row each
            operands[n] = jnp.broadcast_to(operands[n], (num_rows, operands[n].shape[1]))
        form = product.form.indexed(dict.fromkeys(shared_by_all, Index.ROW))
        integers, count = [], self.num_rows if edges is None else num_nodes
        if self.index is not None:
            index = arrays[self.index]
            integers.append(jnp.pad(index, (0, count - self.num_rows)))
        if edges is not None:
            integers += [jnp.asarray(getattr(edges, n)) for n in INDEX_ARRAYS]
        added = [] if self.gated is None else _skip(self.gated, arrays, count)
        gate = None if self.gated is None else self.gated.gate
        fused = Fused.build(form, self.linear, gate, bool(added))
        mode, dtype = resolve_fused(None), operands[0].dtype
        chosen = choose(mode, fused, num_rows, num_nodes, product.backend, dtype)
        call = _fused.Call(fused, num_rows, num_nodes, product.backend, chosen.kernels)
        floats = [*operands, *(arrays[p] for p in self.parameters), *added]
        return _fused.evaluate(call, floats, integers)[0][: self.num_rows]


def _skip(gated: GateMatch, arrays: dict, count: int) -> list:
    """Return the skip that is added before a gate, if there is one, [count, size of the Linear]."""
    if gated.skip is None:
        return []
    array, columns = as_rows(gated.skip, arrays[gated.skip.value]), gated.columns
    if not np.array_equal(columns, np.arange(array.shape[1])):
        array = jnp.where(columns < 0, jnp.zeros((), array.dtype), array[:, columns])
    return [jnp.pad(array, ((0, count - array.shape[0]), (0, 0)))]


def layers(trace: Trace, rows: RowPolynomials, number: int) -> list[tuple[int, Layer]]:
    """Return the Linear of a product that a node computes, and with the gate behind it, by value.

    Raises Unfit where the node computes something else.
    """
    node = trace.nodes[number]
    linear_form: LinearForm = node.params["form"]
    linear = _linear(linear_form)
    dtypes = {trace.avals[v].dtype for v in node.inputs[: len(linear_form.inputs)]}
    if len(dtypes) > 1:
        raise Unfit("dtypes change before the Linear", CONVERT)
    row = rows.of(node.inputs[0])
    arrays = [name for key in row.terms for name in key if isinstance(name, ArrayFactor)]
    made = {name.value: trace.producer[name.value][0] for name in arrays if trace.node(name.value)}
    sums = {value: n for value, n in made.items() if summed(trace, n) is not None}
    if sums:
        product = _summed(trace, rows, row, sums)
        form, backend = product.match.form, product.match.backend
    else:
        product = match_product(trace, rows, row, Index.ROW, dtypes.pop(), on_graph=False)
        form, backend = product.form, product.backend
        if product.groups or any(isinstance(n, Joined) and n.one for n in product.names):
            raise Unfit("weights, or other rows, are with the product")
    if backend != node.params["backend"]:
        raise Unfit("the Linear has another backend")
    _check_blocks(form, linear)
    index = node.inputs[-1] if linear_form.needs_integers else None
    parameters = node.inputs[1 : len(linear_form.inputs)]
    z, count = node.outputs[0], node.params["num_rows"]
    inside = frozenset(sums)
    alone = Layer(product, linear, tuple(parameters), index, count, inside, None)
    gated = gate_behind(trace, z, linear)
    if gated is None:
        return [(z, alone)]
    if gated.skip is not None and trace.avals[gated.skip.value].dtype != trace.avals[z].dtype:
        return [(z, alone)]
    return [(z, alone), (gated.value, dataclasses.replace(alone, gated=gated, inside=inside | {z}))]


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


def _summed(trace: Trace, rows: RowPolynomials, row: Polynomial, sums: dict) -> GraphProduct:
    """Return the product on a graph that gives this row of the nodes."""
    if len(row.terms) > 1 or any(len(key) != 1 for key in row.terms):
        raise Unfit("more than a sum over edges goes into the Linear")
    scatter = summed(trace, *sums.values())
    if trace.uniform(scatter.start) != 0:
        raise Unfit("the sum over edges does not start from zero")
    updates, masks = without_masks(trace, rows, scatter.updates)
    [outer] = row.terms.values()
    inner = rows.of(*updates).take(outer.index[:, 0])
    terms = {
        key: merged(Terms(outer.place[t.place], t.scale * outer.scale[t.place], t.index))
        for key, t in inner.terms.items()
    }
    whole = Polynomial(row.shape, terms)
    return _of_row(trace, rows, scatter, whole, masks)


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
