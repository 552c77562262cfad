"""Match Linears of products, and put the fused op in their place."""

from __future__ import annotations

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.backends import xla
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.gate import IDENTITY, Activation, Gate, Part, Tile
from eqfuse.ops.ir.linear import Linear, LinearForm, Parameter, Rows
from eqfuse.ops.primitives import layer as _fused
from eqfuse.ops.primitives.choice import choose, resolve_fused
from eqfuse.ops.primitives.layer import Call
from eqfuse.ops.transforms.fuse import graphs
from eqfuse.ops.transforms.fuse import trace as polynomials
from eqfuse.ops.transforms.fuse.graphs import GraphProduct
from eqfuse.ops.transforms.fuse.match import Joined, Match, as_rows, match_product
from eqfuse.ops.transforms.fuse.rows import ArrayFactor, RowPolynomials, SumFactor, Unfit, row_shape
from eqfuse.ops.transforms.fuse.trace import Polynomial, Terms, Trace, has_functions, merged, summed


@functools.lru_cache(maxsize=256)
def _template(name: str, shape: tuple[int, ...], dtype) -> Trace:
    """Return what JAX makes of an activation."""
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Trace(jax.make_jaxpr(xla.FUNCTIONS[name])(x), {})


def _equal(trace: Trace, value: int, template: Trace, other: int, bound: list[int]) -> bool:
    """Return whether a value is computed as in a template; `bound` gets what it is computed of."""
    if other == template.inputs[0]:
        bound.append(value)
        return bound[0] == value
    known = template.constant(other)
    if known is not None:
        own = trace.constant(value)
        return own is not None and own.dtype == known.dtype and np.array_equal(own, known)
    a, b = trace.node(value), template.node(other)
    if a is None or b is None or a.eqn.primitive is not b.eqn.primitive:
        return False
    if has_functions(a.params) or a.params != b.params or len(a.inputs) != len(b.inputs):
        return False
    if trace.producer[value][1] != template.producer[other][1]:
        return False
    pairs = zip(a.inputs, b.inputs, strict=True)
    return all(_equal(trace, v, template, w, bound) for v, w in pairs)


def activation_values(trace: Trace, z: int) -> dict[int, tuple[str, int]]:
    """Return a dict from values that are an activation of another to its name and the other."""
    names = {}
    count, behind = trace.avals[z].shape[0], {z}
    for node in trace.nodes:
        if not behind.intersection(node.inputs):
            continue
        for value in node.outputs:
            aval = trace.avals[value]
            if not hasattr(aval, "shape") or count not in aval.shape:
                continue
            behind.add(value)
            for name in xla.FUNCTIONS:
                bound: list[int] = []
                if name == "identity":
                    continue
                template = _template(name, tuple(aval.shape), aval.dtype)
                [out] = template.outputs
                if _equal(trace, value, template, out, bound) and bound:
                    names[value] = name, bound[0]
                    break
    return names


ROUNDING = 1e-6
"""By how much a factor of one may be off, for e3nn multiplies by a Clebsch-Gordan coefficient."""


@dataclasses.dataclass(frozen=True)
class Activated:
    """A function of the elements of an array, as a factor of polynomials."""

    name: str
    value: int
    axis: int


class GateRows(RowPolynomials):
    """Rows of what follows a pre-activation z, in which activations are factors.

    Attributes:
      z: a value of the trace, [rows, size].
    """

    def __init__(self, trace: Trace, z: int):
        self.z = z
        self._activations = activation_values(trace, z)
        super().__init__(trace)

    def starts(self, number: int) -> bool:
        outputs = self.trace.nodes[number].outputs
        return any(v == self.z or v in self._activations for v in outputs)

    def _follow(self, value: int, axis: int) -> Polynomial:
        if value not in self._activations:
            return super()._follow(value, axis) if value != self.z else self._leaf(value, axis)
        name, of = self._activations[value]
        row = row_shape(self.trace.avals[value].shape, axis)
        return polynomials.variable(Activated(name, of, axis), row)

    def candidates(self) -> list[int]:
        """Return what may be the result of a gate, the last first."""
        count = self.trace.avals[self.z].shape[0]
        shapes = {v: getattr(self.trace.avals[v], "shape", ()) for v in self._multiplied}
        rows = (v for v, s in shapes.items() if v != self.z and s[:1] == (count,) and len(s) == 2)
        return sorted(rows, reverse=True)


@dataclasses.dataclass(frozen=True)
class GateMatch:
    """A gate, what is added before it, and what it gives.

    Attributes:
      skip: an array of rows; None if nothing is added.
      columns: of the skip, in the order of the pre-activation; -1 for none.
      value: of the trace.
    """

    gate: Gate
    skip: ArrayFactor | None
    columns: np.ndarray | None
    value: int


def gate_behind(trace: Trace, z: int, linear: Linear) -> GateMatch | None:
    """Return the gate whose pre-activation is z, or z and a skip; None if there is none."""
    rows = GateRows(trace, z)
    for value in rows.candidates():
        try:
            return _gate(rows, value, linear)
        except (Unfit, polynomials.TooLargeError):
            continue
    return None


class _Sums:
    """What is added to each element of z, wherever it is read: always the same."""

    def __init__(self, rows: GateRows, size: int):
        self.z = ArrayFactor(rows.z, 0)
        self.size = size
        self.skip: ArrayFactor | None = None
        self.columns = np.full(size, -2)  # -2: not known yet, -1: nothing is added

    def elements(self, terms: dict, count: int, scale=None) -> np.ndarray:
        """Return of which elements of z the elements of a row are made, which may be scaled.

        Args:
          terms: by one factor, `z` or the skip.
        Raises:
          Unfit: they are made of something else.
        """
        others = [name for name in terms if name != self.z]
        if self.z not in terms or len(others) > 1:
            raise Unfit("more than a skip is added before the gate")
        indices = {}
        for name, t in terms.items():
            index = np.full(count, -1)
            expected = np.ones(len(t.place)) if scale is None else scale[t.place]
            if (np.abs(t.scale / expected - 1) > ROUNDING).any():
                raise Unfit("what is added before the gate is scaled")
            if len(np.unique(t.place)) < len(t.place):
                raise Unfit("elements are added up before the gate")
            index[t.place] = t.index
            indices[name] = index
        own = indices[self.z]
        if scale is None and (own < 0).any():
            raise Unfit("elements of the gate are not those of the Linear")
        read = own >= 0
        added = np.full(count, -1)
        for name in others:
            if (
                self.skip not in (None, name)
                or not isinstance(name, ArrayFactor)
                or name.axis is None
            ):
                raise Unfit("more than a skip is added before the gate")
            self.skip, added = name, indices[name]
        if (added[~read] >= 0).any():
            raise Unfit("rows are added to the gate")
        for element, column in zip(own[read], added[read], strict=True):
            if self.columns[element] not in (-2, column):
                raise Unfit("an element of the Linear is read with a skip and without")
            self.columns[element] = column
        return own


@dataclasses.dataclass
class _Line:
    """What an element of the result is: act(gate) * part, with numbers of elements of z."""

    act: Activation
    part: int
    gate: int | None


def _gate(rows: GateRows, value: int, linear: Linear) -> GateMatch:
    row = rows.of(value, 0)
    sums = _Sums(rows, linear.size_out)
    lines: list[_Line | None] = [None] * row.size
    for act, terms in _by_activation(row).items():
        if act is None:
            own = sums.elements(terms, row.size, np.ones(row.size))
            _put(lines, own, lambda place, element: _Line(IDENTITY, element, None))
            continue
        inner = rows.of(act.value, act.axis)
        of = sums.elements(
            {k[0]: _single(t) for k, t in inner.terms.items() if len(k) == 1}, inner.size
        )
        if any(len(k) != 1 for k in inner.terms):
            raise Unfit("an activation of products")
        _put_activated(lines, act, terms, of, sums)
    if any(line is None for line in lines) or not any(line.act is not IDENTITY for line in lines):
        raise Unfit("no gate")
    gate = Gate(*_tiles(lines, linear))
    _check_whole(gate, linear)
    columns = None if sums.skip is None else np.maximum(sums.columns, -1)
    return GateMatch(gate, sums.skip, columns, value)


def _single(terms: Terms, column: int = 0) -> Terms:
    """Return terms of one of their factors alone, whose `index` is a vector."""
    return Terms(terms.place, terms.scale, terms.index[:, column])


def _by_activation(row: Polynomial) -> dict:
    """Return terms by their activation, None for none, and by the other factor, None for none.

    With an activation and another factor, (its elements, the other's terms).
    """
    by_activation: dict = {}
    for key, terms in row.terms.items():
        acts = [n for n, name in enumerate(key) if isinstance(name, Activated)]
        others = [n for n in range(len(key)) if n not in acts]
        if len(acts) > 1 or len(others) > 1 or not key:
            raise Unfit("products of activations")
        act = key[acts[0]] if acts else None
        other = key[others[0]] if others else None
        column = others[0] if others else acts[0]
        single = _single(terms, column)
        if acts and others:
            single = (terms.index[:, acts[0]], single)
        by_activation.setdefault(act, {})[other] = single
    return by_activation


def _put(lines, elements, make) -> None:
    for place in np.flatnonzero(elements >= 0):
        if lines[place] is not None:
            raise Unfit("parts of a gate are added up")
        lines[place] = make(int(place), int(elements[place]))


def _put_activated(lines, act: Activated, terms: dict, of, sums: _Sums) -> None:
    """Set the lines of those elements that have this activation as a factor."""

    def activation(scale) -> Activation:
        return Activation(act.name, float(scale), xla.parity(act.name))

    alone = terms.pop(None, None)
    if alone is not None:
        elements, scale = np.full(len(lines), -1), np.ones(len(lines))
        elements[alone.place], scale[alone.place] = of[alone.index], alone.scale
        _put(lines, elements, lambda place, element: _Line(activation(scale[place]), element, None))
    if not terms:
        return
    gates, scale = np.full(len(lines), -1), np.ones(len(lines))
    for index, single in terms.values():
        known = gates[single.place]
        if ((known >= 0) & (known != of[index])).any():
            raise Unfit("an element is gated twice")
        gates[single.place], scale[single.place] = of[index], single.scale
    own = sums.elements({name: single for name, (_, single) in terms.items()}, len(lines), scale)
    mean = float(np.mean(scale[gates >= 0]))
    if (np.abs(scale[gates >= 0] / mean - 1) > ROUNDING).any():
        raise Unfit("gates are scaled differently")
    _put(lines, own, lambda place, element: _Line(activation(mean), element, int(gates[place])))


def _tiles(lines: list[_Line], linear: Linear) -> tuple[tuple[Tile, ...], e3nn.Irreps]:
    """Return the tiles of a gate, and the irreps of its result, whose parities are not known."""
    blocks = linear.blocks_out
    block_of = np.concatenate([np.full(b.mul * b.dim, n) for n, b in enumerate(blocks)])
    tiles: list[Tile] = []
    irreps = []
    place = 0
    while place < len(lines):
        line = lines[place]
        number = int(block_of[line.part])
        block = blocks[number]
        channel, component = divmod(line.part - block.offset, block.dim)
        same = [
            (m.act, m.part - n, m.gate) == (line.act, line.part, line.gate)
            for n, m in enumerate(lines[place : place + block.dim])
        ]
        if component or len(same) < block.dim or not all(same):
            raise Unfit("components of an irrep are gated differently")
        if line.gate is None and line.act is not IDENTITY and block.dim > 1:
            raise Unfit("an activation of a vector")
        gate = None if line.gate is None else _channel(line.gate, block_of, blocks)
        part = Part(number, channel, 1)
        last = tiles[-1] if tiles else None
        joined = last and last.act == line.act and _follows(last.part, part)
        if joined and (gate or last.gate):
            joined = gate and last.gate and _follows(last.gate, gate)
        if joined:
            gate_of = last.gate and _longer(last.gate)
            tiles[-1] = Tile(_longer(last.part), last.offset, line.act, gate_of)
            irreps[-1] = (irreps[-1][0] + 1, irreps[-1][1])
        else:
            tiles.append(Tile(part, place, line.act, gate))
            irreps.append((1, e3nn.Irrep(block.dim // 2, 1)))
        place += block.dim
    return tuple(tiles), e3nn.Irreps(irreps)


def _channel(element: int, block_of, blocks) -> Part:
    number = int(block_of[element])
    if blocks[number].dim != 1:
        raise Unfit("a gate that is no scalar")
    return Part(number, element - blocks[number].offset, 1)


def _follows(first: Part, second: Part) -> bool:
    return (first.block, first.first + first.mul) == (second.block, second.first)


def _longer(part: Part) -> Part:
    return dataclasses.replace(part, mul=part.mul + 1)


def _check_whole(gate: Gate, linear: Linear) -> None:
    """Refuse a gate that reads a channel twice, or not at all."""
    parts = [p for t in gate.tiles for p in (t.part, t.gate) if p is not None]
    channels = sorted((p.block, u) for p in parts for u in range(p.first, p.first + p.mul))
    expected = [(n, u) for n, b in enumerate(linear.blocks_out) for u in range(b.mul)]
    if channels != expected:
        raise Unfit("a gate that reads a channel twice, or not at all")


@dataclasses.dataclass(frozen=True)
class Layer:
    """A Linear of a product, to be computed by the fused op.

    Attributes:
      product: over rows, or on a graph.
      parameters: values of the trace.
      index: which set of weights a row takes; None if there is one.
      num_rows: of the result.
      inside: values of the trace that it computes and keeps to itself: sum and pre-activation.
      gated: the gate behind it, with what is added before it; None if there is none.
    """

    product: Match | GraphProduct
    linear: Linear
    parameters: tuple[int, ...]
    index: int | None
    num_rows: int
    inside: frozenset[int]
    gated: GateMatch | None

    @property
    def name(self) -> str:
        """Return the op."""
        return "TensorProductLinear" if self.gated is None else "TensorProductLinearGate"

    @property
    def pattern(self) -> str:
        """Return what the op takes the place of."""
        if self.gated is None:
            return "product, Linear"
        return f"product, Linear, {'skip, ' if self.gated.skip is not None else ''}gate"

    @property
    def inputs(self) -> tuple[int, ...]:
        product = self.product
        values = product.inputs if isinstance(product, GraphProduct) else product.values
        others = () if self.index is None else (self.index,)
        if self.gated is not None and self.gated.skip is not None:
            others += (self.gated.skip.value,)
        return tuple(dict.fromkeys((*values, *self.parameters, *others)))

    def compute(self, arrays: dict, shared: dict):
        if isinstance(self.product, GraphProduct):
            product, (operands, edges) = self.product.match, self.product.operands(arrays, shared)
            num_rows, num_nodes = edges.num_edges, edges.num_nodes
        else:
            product, edges, num_rows, num_nodes = self.product, None, self.num_rows, 0
            named = product.operands(arrays, num_rows)
            operands = [named[name] for name in product.names]
        form, operands = _unshared(product.form, operands, num_rows)
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
        call = Call(fused, num_rows, num_nodes, product.backend, chosen.kernels)
        floats = [*operands, *(arrays[p] for p in self.parameters), *added]
        return _fused.evaluate(call, floats, integers)[0][: self.num_rows]


def _skip(gated: GateMatch, arrays: dict, count: int) -> list:
    """Return what is added before a gate, if anything is, [count, size of the Linear]."""
    if gated.skip is None:
        return []
    array, columns = as_rows(gated.skip, arrays[gated.skip.value]), gated.columns
    if not np.array_equal(columns, np.arange(array.shape[1])):
        array = jnp.where(columns < 0, jnp.zeros((), array.dtype), array[:, columns])
    return [jnp.pad(array, ((0, count - array.shape[0]), (0, 0)))]


def _unshared(form: Form, operands, num_rows: int):
    """Return the form and its operands with a row each where one was shared by all."""
    shared = [n for n, o in enumerate(form.inputs) if o.index is Index.SHARED]
    operands = [
        jnp.broadcast_to(a, (num_rows, a.shape[1])) if n in shared else a
        for n, a in enumerate(operands)
    ]
    return form.indexed(dict.fromkeys(shared, Index.ROW)), operands


def layers(trace: Trace, rows: RowPolynomials, number: int) -> list[tuple[int, Layer]]:
    """Return the Linear of a product that a node of a trace computes, and the gate behind it.

    Each with the value that it is.

    Raises:
      Unfit: it computes something else; says what.
    """
    node = trace.nodes[number]
    linear_form: LinearForm = node.params["form"]
    linear = _linear(linear_form)
    dtypes = {trace.avals[v].dtype for v in node.inputs[: len(linear_form.inputs)]}
    if len(dtypes) > 1:
        raise Unfit("dtypes change before the Linear")
    row = rows.of(node.inputs[0], 0)
    sums = {name for key in row.terms for name in key if isinstance(name, SumFactor)}
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
    inside = frozenset(trace.nodes[name.node].outputs[0] for name in sums)
    alone = Layer(product, linear, tuple(parameters), index, count, inside, None)
    gated = gate_behind(trace, z, linear)
    if gated is None:
        return [(z, alone)]
    if gated.skip is not None and trace.avals[gated.skip.value].dtype != trace.avals[z].dtype:
        return [(z, alone)]
    return [(z, alone), (gated.value, dataclasses.replace(alone, gated=gated, inside=inside | {z}))]


def _linear(linear_form: LinearForm) -> Linear:
    """Return the Linear of a row that a linear form is.

    Raises:
      Unfit: it is another one, such as a sum of several.
    """
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


def _summed(trace: Trace, rows: RowPolynomials, row: Polynomial, sums) -> GraphProduct:
    """Return the product on a graph that gives this row of the nodes."""
    if len(row.terms) > 1 or any(len(key) != 1 for key in row.terms):
        raise Unfit("more than a sum over edges goes into the Linear")
    [name] = sums
    scatter = summed(trace, name.node)
    if trace.uniform(scatter.start) != 0:
        raise Unfit("the sum over edges does not start from zero")
    updates, masks = graphs.without_masks(trace, rows, scatter.updates)
    [outer] = row.terms.values()
    inner = rows.of(updates, 0).take(outer.index[:, 0])
    terms = {
        key: merged(Terms(outer.place[t.place], t.scale * outer.scale[t.place], t.index))
        for key, t in inner.terms.items()
    }
    whole = Polynomial(row.shape, terms)
    return graphs.of_row(trace, rows, scatter, whole, masks)


def _check_blocks(form: Form, linear: Linear):
    """Refuse segments that are not whole channels of one block of the Linear.

    Raises:
      Unfit: saying so.
    """
    [out] = form.outputs
    for path in form.paths:
        s = out.segments[path.output.segment]
        last = dataclasses.replace(s, offset=s.offset + (s.mul - 1) * s.channel_stride)
        held = [b.holds(s) and b.holds(last) for b in linear.blocks_in]
        touched = [b.holds(s) or b.holds(last) for b in linear.blocks_in]
        aligned = all((s.offset - b.offset) % b.dim == 0 for b in linear.blocks_in if b.holds(s))
        if held != touched or not aligned or s.component_stride != 1:
            raise Unfit("channels of the product are not those of the Linear")
