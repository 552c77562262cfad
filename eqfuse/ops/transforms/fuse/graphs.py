"""Match sums to nodes of products of gathered rows, and put one form on a graph in their place."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import Index
from eqfuse.ops.primitives import forms
from eqfuse.ops.transforms.fuse.match import CONVERT, Match, as_rows, match_product
from eqfuse.ops.transforms.fuse.rows import ArrayFactor, RowPolynomials, Unfit
from eqfuse.ops.transforms.fuse.trace import Polynomial, Trace, summed


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
    product = of_row(trace, rows, scatter, rows.of(updates, 0), masks)
    return [(trace.nodes[number].outputs[0], product)]


def of_row(trace: Trace, rows: RowPolynomials, scatter, row: Polynomial, masks) -> GraphProduct:
    """Return the product on a graph of which each edge adds this row."""
    aval = trace.avals[scatter.start]
    dtype = trace.avals[scatter.updates].dtype
    if dtype != aval.dtype:
        raise Unfit("dtypes change in the sum", CONVERT)
    product = match_product(trace, rows, row, Index.RECEIVER, dtype)
    gathered = list(product.gathered.values())
    others = [g for g in gathered if g.index != scatter.index]
    counts = {g: trace.avals[g.value].shape[0] for g in gathered}
    if len({(g.index, g.mode, g.fill, counts[g]) for g in others}) > 1:
        raise Unfit(
            "node features are gathered by several index arrays",
            "multiply with features of one end; gather those of the other apart",
        )
    if any(counts[g] != aval.shape[0] for g in gathered if g not in others):
        raise Unfit("rows are gathered from one number of nodes and added to another")
    if not gathered:
        raise Unfit(
            "no operand of the product is gathered from nodes",
            "gather the features of nodes inside of the function, as x[senders]",
        )
    if not others:
        raise Unfit("rows are gathered from the nodes that they are added to")
    own = [g for g in gathered if g not in others]
    if scatter.mode == "CLIP" and any(g.mode == "FILL_OR_DROP" for g in own):
        raise Unfit("an index out of range means one thing to the gather and another to the sum")
    read_there = {name for name, g in product.gathered.items() if g.index == scatter.index}
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


def _masked(product: Match, promised: bool) -> tuple:
    """Return the operands that each edge has for itself; if promised, the right one alone."""
    pairs = zip(product.names, product.form.inputs, strict=True)
    names = (name for name, operand in pairs if operand.index is Index.ROW)
    return tuple(name for name in names if not promised or name == product.right)


def _stopped(product: Match, masked: tuple) -> bool:
    """Return whether zeros in these operands make all of the product zero."""
    names = product.names
    return all(any(names[f.operand] in masked for f in p.factors) for p in product.form.paths)


def without_masks(trace: Trace, rows: RowPolynomials, value: int) -> tuple[int, list[Mask]]:
    """Return the rows that are summed where no mask makes them zero, and these masks."""
    masks = []
    while (node := trace.node(value)) is not None and node.name == "select_n":
        which, *cases = node.inputs
        zeros = [trace.uniform(v) for v in cases]
        zeros = [z is not None and z == 0 for z in zeros]
        mask = _of_rows(trace, rows, which, trace.avals[value].shape)
        if len(cases) != 2 or sum(zeros) != 1 or mask is None:
            break
        masks.append(Mask(mask, bool(zeros[1])))
        value = cases[0] if zeros[1] else cases[1]
    return value, masks


def _of_rows(trace: Trace, rows: RowPolynomials, which: int, shape) -> ArrayFactor | None:
    """Return the array, of one element each, that chooses rows of this shape; None for others."""
    if trace.avals[which].dtype != np.bool_ or trace.avals[which].shape != shape:
        return None
    terms = rows.of(which, 0).terms
    [key, *others] = terms or [()]
    if others or len(key) != 1 or not isinstance(key[0], ArrayFactor) or key[0].axis is None:
        return None
    own = trace.avals[key[0].value]
    is_one = own.size == own.shape[key[0].axis] and not terms[key].index.any()
    return key[0] if is_one else None
