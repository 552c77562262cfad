"""What the rows of a trace's values are made of, through moves and arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import Form, Index, Operand, Path, Role, Segment, SegmentRef
from eqfuse.ops.ir.products import filled
from eqfuse.ops.transforms.fuse.trace import (
    MOST_TERMS,
    Gathered,
    Polynomial,
    Terms,
    TooLargeError,
    Trace,
    constant,
    gathered,
    summed,
    variable,
)

MOVES = frozenset(["slice", "concatenate", "reshape", "transpose", "broadcast_in_dim"])
MOVES |= frozenset(["split", "squeeze", "copy", "rev", "gather"])
"""Primitives that place elements elsewhere and do nothing else."""


@dataclasses.dataclass(frozen=True)
class ArrayFactor:
    """An array of a trace as a factor of polynomials: a row each, [rows, ...], or one for all.

    Attributes:
      value: its number.
      axis: which of its axes counts rows; None if all rows share it.
    """

    value: int
    axis: int | None


def row_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Return the shape of one row of an array, in which the axis that counts rows is 1."""
    return tuple(1 if n == axis else size for n, size in enumerate(shape))


class MovedRows:
    """The polynomials of the rows of a trace's values, followed through moves."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._rows: dict = {}

    def of(self, value: int, axis: int | None) -> Polynomial:
        """Return what the rows of a value are, `axis` counting them; None: one row for all.

        Raises:
          TooLargeError: too many terms.
        """
        key = value, axis
        if key not in self._rows:
            self._rows[key] = self._follow(value, axis)
        return self._rows[key]

    def _shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.trace.avals[value].shape)

    def _leaf(self, value: int, axis: int | None) -> Polynomial:
        return variable(ArrayFactor(value, axis), row_shape(self._shape(value), axis))

    def _follow(self, value: int, axis: int | None) -> Polynomial:
        trace = self.trace
        known = trace.constant(value) if axis is None else None
        if known is None and (number := trace.uniform(value)) is not None:
            known = np.broadcast_to(number, row_shape(self._shape(value), axis))
        if known is not None:
            return constant(known)
        if axis is None or value not in trace.producer:
            return self._leaf(value, axis)
        number, place = trace.producer[value]
        row = self._row_of_node(number, place, axis)
        return self._leaf(value, axis) if row is None else row

    def _row_of_node(self, number: int, place: int, axis: int) -> Polynomial | None:
        """Return the rows of an output of a node; None if they are elements of their own."""
        node = self.trace.nodes[number]
        if node.name == "concatenate":
            return self._concatenated(node, axis)
        if node.name not in MOVES:
            return None
        moved = getattr(self, f"_{node.name}")(node, place, axis)
        if moved is None:
            return None
        operand, move = moved
        return operand.take(move(operand.labels))

    # moves of one array: its rows, and where the numbers of their elements go; None if unknown

    def _copy(self, node, place, axis):
        return self.of(node.inputs[0], axis), lambda labels: labels

    def _slice(self, node, place, axis):
        p = node.params
        if self._shape(node.inputs[0])[axis] != self._shape(node.outputs[0])[axis]:
            return None
        strides = p["strides"] or (1,) * len(p["start_indices"])
        bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
        parts = tuple(slice(None) if n == axis else slice(*b) for n, b in enumerate(bounds))
        return self.of(node.inputs[0], axis), lambda labels: labels[parts]

    def _rev(self, node, place, axis):
        along = node.params["dimensions"]
        if axis in along:
            return None
        return self.of(node.inputs[0], axis), lambda labels: np.flip(labels, along)

    def _gather(self, node, place, axis):
        """Follow known elements of each row, such as components in another order."""
        d, sizes = node.params["dimension_numbers"], list(node.params["slice_sizes"])
        indices = self.trace.constant(node.inputs[1])
        removed = (*d.collapsed_slice_dims, *d.operand_batching_dims)
        kept = [n for n in range(len(sizes)) if n not in removed]
        if indices is None or axis not in d.offset_dims or d.operand_batching_dims:
            return None
        own = kept[d.offset_dims.index(axis)]
        if own in d.start_index_map or sizes[own] != self._shape(node.inputs[0])[own]:
            return None
        sizes[own] = 1
        params = node.params | {"slice_sizes": tuple(sizes), "fill_value": -1}
        operand = self.of(node.inputs[0], own)
        with jax.ensure_compile_time_eval():
            labels = np.asarray(node.eqn.primitive.bind(operand.labels, indices, **params))
        return None if (labels < 0).any() else (operand, lambda _: labels)

    def _split(self, node, place, axis):
        along, sizes = node.params["axis"], node.params["sizes"]
        if along == axis:
            return None
        bounds = np.cumsum([int(s) for s in sizes])[:-1]
        return self.of(node.inputs[0], axis), lambda a: np.split(a, bounds, axis=along)[place]

    def _reshape(self, node, place, axis):
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        lead = math.prod(after[:axis])
        rows = (n for n, size in enumerate(before) if size == after[axis])
        own = next((n for n in rows if math.prod(before[:n]) == lead), None)
        if own is None or (node.name == "reshape" and node.params["dimensions"] is not None):
            return None
        return self.of(node.inputs[0], own), lambda labels: labels.reshape(row_shape(after, axis))

    _squeeze = _reshape

    def _transpose(self, node, place, axis):
        order = node.params["permutation"]
        return self.of(node.inputs[0], order[axis]), lambda labels: labels.transpose(order)

    def _broadcast_in_dim(self, node, place, axis):
        if len(node.inputs) > 1:
            return None
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        to = node.params["broadcast_dimensions"]
        own = to.index(axis) if axis in to else None
        if own is not None and before[own] != after[axis]:
            own = None
        if own is None and self.trace.uniform(node.inputs[0]) is None:
            operand = self._leaf(node.inputs[0], None)  # numbers of channels are weights too
        else:
            operand = self.of(node.inputs[0], own)
        expanded = [1] * len(after)
        for n, d in enumerate(to):
            expanded[d] = operand.shape[n]
        row = row_shape(after, axis)
        return operand, lambda labels: np.broadcast_to(labels.reshape(expanded), row)

    def _concatenated(self, node, axis) -> Polynomial | None:
        along = node.params["dimension"]
        if along == axis:
            return None
        operands = [self.of(v, axis) for v in node.inputs]
        sizes = [o.shape[along] for o in operands]
        whole, start = None, 0
        for operand, size in zip(operands, sizes, strict=True):
            pad = [(0, 0)] * len(operand.shape)
            pad[along] = (start, sum(sizes) - start - size)
            part = operand.take(np.pad(operand.labels, pad, constant_values=-1))
            whole = part if whole is None else whole + part
            start += size
        return whole


def gathers_of(trace: Trace) -> dict[int, tuple[Gathered, np.ndarray]]:
    """Return of each node that gathers rows of nodes whose, and which of their elements.

    Slices, chunks and filters of an array that are gathered by the same indices as the array itself
    are elements of its rows.
    """
    moves = MovedRows(trace)
    alike: dict[tuple, list[tuple[int, Gathered, int]]] = {}
    for number in range(len(trace.nodes)):
        if (rows := gathered(trace, number)) is not None:
            aval = trace.avals[rows.value]
            key = rows.index, rows.mode, rows.fill, aval.shape[0], aval.dtype
            size = math.prod(aval.shape[1:])
            alike.setdefault(key, []).append((number, rows, size))
    found = {}
    for group in alike.values():
        places: dict[tuple, tuple[Gathered, int]] = {}  # the largest array has the elements
        for number, rows, size in sorted(group, key=lambda item: -item[2]):
            elements = _elements_of_arrays(moves, rows.value, size) if len(group) > 1 else {}
            known = [places.get(elements.get(n)) for n in range(size)]
            bases = {place[0] for place in known if place is not None}
            if len(bases) == 1 and None not in known:
                found[number] = bases.pop(), np.array([place for _, place in known])
                continue
            found[number] = rows, np.arange(size)
            for n, element in elements.items():
                places.setdefault(element, (rows, n))
    return found


def _elements_of_arrays(moves: MovedRows, value: int, size: int) -> dict[int, tuple]:
    """Return those elements of a row that are elements of an array's row, and which."""
    try:
        row = moves.of(value, 0)
    except TooLargeError:
        return {}
    elements = {}
    for key, terms in row.terms.items():
        if key and isinstance(key[0], ArrayFactor) and key[0].axis is not None:
            pairs = zip(terms.place.tolist(), terms.index[:, 0].tolist(), strict=True)
            elements |= {place: (key[0], element) for place, element in pairs}
    return elements


ARITHMETIC = frozenset(["mul", "div", "neg", "add", "add_any", "sub", "dot_general", "reduce_sum"])
"""Primitives of whose operands polynomials can be multiplied out."""
FOLLOWED = MOVES | ARITHMETIC | {"convert_element_type"}


@dataclasses.dataclass(frozen=True)
class ProductFactor:
    """The output of a form over rows: the node of this number.

    Attributes:
      group: how many rows of the form, one after the other, are one row.
    """

    node: int
    group: int = 1


class RowPolynomials(MovedRows):
    """The polynomials of the rows of a trace's values, of gathers, products and sums."""

    def __init__(self, trace: Trace):
        super().__init__(trace)
        # products, gathers or sums go into these values, and their arithmetic is followed; of all
        # others only moves are: what is computed of them is an operand as it is
        self._multiplied: set[int] = set()
        for number, node in enumerate(trace.nodes):
            follows = node.name in FOLLOWED and not self._multiplied.isdisjoint(node.inputs)
            if follows or self.starts(number):
                self._multiplied.update(node.outputs)

    @functools.cached_property
    def gathers(self) -> dict[int, tuple[Gathered, np.ndarray]]:
        """Return the gathers of rows."""
        return gathers_of(self.trace)

    def starts(self, number: int) -> bool:
        """Return whether the rows of a node are followed through arithmetic."""
        is_factor = self.is_product(number) or number in self.gathers
        return is_factor or summed(self.trace, number) is not None

    def _row_of_node(self, number: int, place: int, axis: int) -> Polynomial | None:
        node = self.trace.nodes[number]
        shape = self._shape(node.outputs[place])
        if axis == 0 and self.is_product(number) and shape[0] == node.params["num_rows"]:
            return variable(ProductFactor(number), row_shape(shape, 0))
        if axis == 0 and number in self.gathers:
            rows, elements = self.gathers[number]
            whole = variable(rows, (1, math.prod(self._shape(rows.rows)[1:])))
            return whole.take(elements.reshape(row_shape(shape, 0)))
        if axis == 0 and (group := self._group_of_product(node)) is not None:
            return variable(group, row_shape(shape, 0))
        if node.name in MOVES:
            return super()._row_of_node(number, place, axis)
        if node.name in FOLLOWED and not self._multiplied.isdisjoint(node.outputs):
            return getattr(self, f"_{node.name}")(node, axis)
        return None

    def _group_of_product(self, node) -> ProductFactor | None:
        """Return a product whose channels are on axes of their own, and taken one by one."""
        if node.name != "reshape" or node.inputs[0] not in self.trace.producer:
            return None
        made, _ = self.trace.producer[node.inputs[0]]
        shape, before = self._shape(node.outputs[0]), self._shape(node.inputs[0])
        is_grouped = len(shape) > 2 and shape[-1] == before[-1] and shape[0] != before[0]
        return (
            ProductFactor(made, math.prod(shape[1:-1]))
            if is_grouped and self.is_product(made)
            else None
        )

    def grouped(self, value: int, group: int) -> Polynomial | None:
        """Return the rows of an operand of a product, `group` of them as one; None if unknown."""
        if group == 1:
            return self.of(value, 0)
        node, (count, size) = self.trace.node(value), self._shape(value)
        if node is None or node.name != "reshape":
            return None
        [source] = node.inputs
        shape = self._shape(source)
        if shape[:1] != (count // group,) or shape[-1] != size:
            return None
        return self.of(source, 0).reshaped((1, group * size))

    def is_product(self, number: int) -> bool:
        """Return whether a node is a product of two operands over rows."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form":
            return False
        form = node.params["form"]
        roles = [o.role for o in form.inputs]
        return not form.on_graph and len(form.outputs) == 1 and roles == [Role.LEFT, Role.RIGHT]

    def is_gradient(self, number: int) -> bool:
        """Return whether a node is the derivative of a product over rows."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form" or node.params["form"].on_graph:
            return False
        return any(o.role is Role.OUTPUT for o in node.params["form"].inputs)

    # arithmetic

    def _sides(self, node, axis):
        """Return the operands of an elementwise primitive."""
        shape = self._shape(node.outputs[0])
        sides = []
        for v in node.inputs:
            own = self._shape(v)  # () for a scalar; JAX broadcasts axes of one element
            is_row = len(own) == len(shape) and own[axis] == shape[axis]
            operand = self.of(v, axis if is_row else None)
            sides.append(operand.take(np.broadcast_to(operand.labels, row_shape(shape, axis))))
        return sides

    def _mul(self, node, axis):
        a, b = self._sides(node, axis)
        return a * b

    def _div(self, node, axis):
        number = self.trace.uniform(node.inputs[1])
        if number is None or number == 0:
            return None
        return self._sides(node, axis)[0].scaled(1.0 / float(number))

    def _convert_element_type(self, node, axis):
        """Follow to a wider dtype: all is computed in it."""
        narrow = self.trace.avals[node.inputs[0]].dtype
        wide = node.params["new_dtype"]
        if not all(jnp.issubdtype(d, jnp.floating) for d in (narrow, wide)):
            return None
        if jnp.promote_types(narrow, wide) != wide:
            return None
        return self.of(node.inputs[0], axis)

    def _neg(self, node, axis):
        return self._sides(node, axis)[0].scaled(-1.0)

    def _add(self, node, axis):
        a, b = self._sides(node, axis)
        return a + b

    _add_any = _add

    def _sub(self, node, axis):
        a, b = self._sides(node, axis)
        return a + b.scaled(-1.0)

    def _reduce_sum(self, node, axis):
        axes = tuple(node.params["axes"])
        count = len(self._shape(node.inputs[0]))
        kept = [n for n in range(count) if n not in axes]
        if kept[axis:] == []:
            return None
        operand = self.of(node.inputs[0], kept[axis])
        if operand.shape[kept[axis]] != 1:
            return None
        moved = operand.take(operand.labels.transpose(*kept, *axes))
        row = [operand.shape[n] for n in kept]
        return moved.summed(math.prod(operand.shape[n] for n in axes), row)

    def _dot_general(self, node, axis):
        (contract, batch) = node.params["dimension_numbers"]
        shapes = [self._shape(v) for v in node.inputs]
        free = [
            [n for n in range(len(s)) if n not in (*c, *b)]
            for s, c, b in zip(shapes, contract, batch, strict=True)
        ]
        num_batch, num_left = len(batch[0]), len(free[0])
        if axis < num_batch:
            axes = [batch[0][axis], batch[1][axis]]
        elif axis < num_batch + num_left:
            axes = [free[0][axis - num_batch], None]
        else:
            axes = [None, free[1][axis - num_batch - num_left]]
        pairs = list(zip(node.inputs, axes, strict=True))
        if any(a is None and self.trace.constant(v) is None for v, a in pairs):
            return None
        operands = [self.of(v, a) for v, a in pairs]
        sides = zip(operands, contract, batch, free, strict=True)
        a, b = (operand.labels.transpose(*bs, *fs, *cs) for operand, cs, bs, fs in sides)
        left = [operands[0].shape[n] for n in free[0]]
        right = [operands[1].shape[n] for n in free[1]]
        common = [operands[0].shape[n] for n in batch[0]]
        summed = [operands[0].shape[n] for n in contract[0]]
        shape = (*common, *left, *right, *summed)
        if math.prod(shape) > MOST_TERMS:
            return None
        a = a.reshape(*common, *left, *[1] * len(right), *summed)
        b = b.reshape(*common, *[1] * len(left), *right, *summed)
        a, b = (
            operands[0].take(np.broadcast_to(a, shape)),
            operands[1].take(np.broadcast_to(b, shape)),
        )
        return (a * b).summed(math.prod(summed), (*common, *left, *right))


class Unfit(ValueError):
    """What is between a product and a sum is not of the kind that a form has.

    Attributes:
      advice: what to do about it, or "".
    """

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(reason)
        self.advice = advice


ONE = "one"
"""The name of a factor that is 1 in every row."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """Elements of an operand that a path reads or writes.

    Attributes:
      elements: [channels, components].
      component: [terms], which of them each term of the path reads or writes.
    """

    name: object
    elements: np.ndarray
    component: np.ndarray


@dataclasses.dataclass(frozen=True)
class Draft:
    """A path before its channels are known: factors, and the output, which is named None.

    Attributes:
      values: [channels, terms].
    """

    slots: tuple[Slot, ...]
    values: np.ndarray


def drafts(row: Polynomial, product, form: Form, operands: list[Polynomial]) -> list[Draft]:
    """Return the paths of a row that is made of a product and, beside it, of its left operand.

    Args:
      row: the polynomial of the row that is wanted.
      product: the name of the product in it.
      form: of the product.
      operands: its inputs' rows.
    Raises:
      Unfit: a row of another kind.
    """
    inputs = [monomials(o) for o in operands]
    paths, rest = [], []
    for key, terms in row.terms.items():
        if key.count(product) == 1:
            paths += _of_product(key, terms, product, form, inputs)
        elif product in key:
            raise Unfit("the product is multiplied with itself")
        elif not key:
            raise Unfit("a constant is added to the rows")
        else:
            rest.append((key, terms))
    if not paths:
        raise Unfit("no path of the product is read")
    of_product = list(paths)
    pairs = zip(form.inputs, operands, strict=True)
    wide = {n for o, polynomial in pairs if o.channels for key in polynomial.terms for n in key}
    for key, terms in rest:
        paths += _beside(key, terms, of_product, wide)
    return paths


def monomials(operand: Polynomial) -> dict[tuple, list]:
    """Return (scale, elements) of each element of an operand, by factors; None without any.

    Raises:
      Unfit: an element that is a sum of several of the same factors.
    """
    monomials: dict[tuple, list] = {}
    for key, terms in operand.terms.items():
        of_key = monomials.setdefault(key, [None] * operand.size)
        for place, scale, index in zip(terms.place, terms.scale, terms.index, strict=True):
            if of_key[place] is not None:
                raise Unfit("an operand of the product is a sum of others")
            of_key[place] = float(scale), tuple(int(i) for i in index)
    return monomials


def _elements(operand: Operand, segment: Segment, mul: int, group: int) -> np.ndarray:
    """Return the elements of `group` rows of a segment as those of one, [mul * group, dim]."""
    channel = segment.channel_stride if operand.channels else 0
    apart = 0 if operand.index is Index.SHARED else operand.size
    rows = np.arange(mul)[:, None] * channel + np.arange(group) * apart
    return segment.offset + rows.reshape(-1, 1) + segment.component_stride * np.arange(segment.dim)


def _of_product(key, terms: Terms, product, form: Form, inputs) -> list[Draft]:
    """Return the drafts of those terms that have the product as one factor."""
    at = key.index(product)
    others = [n for n in range(len(key)) if n != at]
    order = np.argsort(terms.index[:, at], kind="stable")
    element = terms.index[order, at]
    [out] = form.outputs
    size = out.size * product.group
    first = np.searchsorted(element, np.arange(size))
    count = np.searchsorted(element, np.arange(size), side="right") - first
    drafts = []
    for path in form.paths:
        segment = out.segments[path.output.segment]
        elements = _elements(out, segment, segment.mul, product.group)  # [channels, components]
        component = np.array([c[-1] for c, _ in path.terms])
        if (count[elements] != count[elements][:, :1]).any():
            raise Unfit(
                "components of one irrep are treated differently",
                "give each irrep one weight, as in messages * weights",
            )
        factors = _factors(form, path, inputs, product.group)
        for copy in range(int(count[elements].max(initial=0))):
            read = count[elements][:, 0] > copy
            for channels, slots, values in factors:
                kept = read[channels]
                if not kept.any():
                    continue
                rows = order[first[elements[channels[kept]]] + copy]
                slots = [dataclasses.replace(s, elements=s.elements[kept]) for s in slots]
                slots += [Slot(key[n], terms.index[rows, n], component) for n in others]
                slots.append(Slot(None, terms.place[rows], component))
                scale = terms.scale[rows][:, component]
                drafts.append(_simplified(slots, values[kept] * scale))
    return drafts


def _factors(form: Form, path: Path, inputs, group: int) -> list[tuple]:
    """Return (channels, slots, values) of a path's factors, in what they are made of.

    Where an operand is a sum, each of its parts is multiplied for itself.

    Raises:
      Unfit: a block that is zero, or of other arrays, in some of its components.
    """
    [out] = form.outputs
    mul = out.segments[path.output.segment].mul
    blocks = []  # of each factor, by what it is made of: [(key, {channel: [(scale, elements)]})]
    for ref in path.factors:
        operand = form.inputs[ref.operand]
        elements = _elements(operand, operand.segments[ref.segment], mul, group).tolist()
        parts = []
        for key, monomials in inputs[ref.operand].items():
            lines = [[monomials[e] for e in line] for line in elements]
            if any(None in line and any(line) for line in lines):
                raise Unfit("a block of an operand is made of several arrays, or of zeros")
            if not key and operand.channels and any(any(line) for line in lines):
                raise Unfit("an operand of the product is constant in part")
            parts.append((key, {n: line for n, line in enumerate(lines) if any(line)}))
        if any(not any(n in part for _, part in parts) for n in range(mul * group)):
            raise Unfit("a block of an operand is made of several arrays, or of zeros")
        blocks.append(parts)
    found = []
    for parts in itertools.product(*blocks):
        channels = sorted(set.intersection(*(set(part) for _, part in parts)))
        if channels:
            found.append((np.array(channels), *_slots(path, parts, channels)))
    return found


def _slots(path: Path, parts, channels):
    """Return slots and values of one part of each factor of a path."""
    slots, values = [], np.tile([v for _, v in path.terms], (len(channels), 1))
    for number, (key, lines) in enumerate(parts):
        component = np.array([c[number] for c, _ in path.terms])
        values = values * np.array([[m[0] for m in lines[n]] for n in channels])[:, component]
        for n, name in enumerate(key):
            elements = np.array([[m[1][n] for m in lines[c]] for c in channels])
            slots.append(Slot(name, elements, component))
        if not key:
            slots.append(_one(len(channels), component))
    return slots, values


def _one(count: int, component: np.ndarray) -> Slot:
    return Slot(ONE, np.zeros((count, 1), int), np.zeros_like(component))


def _simplified(slots: list[Slot], values) -> Draft:
    """Return a draft; a slot that is the same for all components has one, others are in order."""
    ordered = []
    for slot in slots:
        elements, component = slot.elements, slot.component
        if slot.name is not None and (elements == elements[:, :1]).all():
            elements, component = elements[:, :1], np.zeros_like(component)
        order = np.argsort(elements[0], kind="stable")
        ordered.append(Slot(slot.name, elements[:, order], np.argsort(order)[component]))
    return Draft(tuple(ordered), values)


def _beside(key, terms: Terms, known: list[Draft], wide: set) -> list[Draft]:
    """Return drafts of what is added beside a product: blocks of an operand of it, as they are."""
    nodes = [n for n, name in enumerate(key) if name in wide or isinstance(name, Gathered)]
    if len(nodes) != 1:
        raise Unfit("rows without the product are added to it")
    [at] = nodes
    blocks = {}
    for draft in known:
        for slot in draft.slots:
            if slot.name == key[at]:
                blocks[slot.elements.tobytes()] = slot.elements
    element = terms.index[:, at]
    if len(np.unique(element)) < len(element):
        raise Unfit("an operand of the product is added beside it more than once")
    blocks = [*blocks.values(), *_blocks_of_equal_weights(terms, at)]
    row_of = np.full(1 + max(b.max() for b in blocks), -1)
    row_of[element] = np.arange(len(element))
    drafts = []
    for elements in blocks:
        rows = row_of[elements]
        channels = np.flatnonzero((rows >= 0).all(axis=1))
        if not len(channels):
            continue
        rows = rows[channels]
        row_of[elements[channels]] = -1
        dim = np.arange(elements.shape[1])
        slots = [Slot(key[n], terms.index[rows, n], dim) for n in range(len(key))]
        slots += [_one(len(channels), dim), Slot(None, terms.place[rows], dim)]
        drafts.append(_simplified(slots, terms.scale[rows]))
    return drafts


def _blocks_of_equal_weights(terms: Terms, at: int) -> list[np.ndarray]:
    """Return the elements of a factor, [channels, components], of blocks that no path reads.

    What lies side by side and has the same weight is a channel. Where there are no weights, each
    element is one.
    """
    order = np.argsort(terms.place)
    element, others = terms.index[order, at], np.delete(terms.index[order], at, axis=1)
    if not others.shape[1]:
        return [element[:, None]]
    alike = np.column_stack([others, element - np.arange(len(element)), terms.scale[order]])
    starts = np.flatnonzero((np.diff(alike, axis=0, prepend=np.nan) != 0).any(axis=1))
    sizes = np.diff(starts, append=len(element))
    return [element[starts[sizes == d, None] + np.arange(d)] for d in np.unique(sizes)]


def names_beside(drafts: list[Draft]) -> list:
    """Return what is gathered of nodes and added beside a product."""
    of_one = [d for d in drafts if any(s.name == ONE for s in d.slots)]
    return [s.name for d in of_one for s in d.slots if isinstance(s.name, Gathered)]


def _runs(draft: Draft) -> list[Draft]:
    """Return the draft as several, of evenly spaced channels each."""
    lines = np.column_stack([s.elements - s.elements[:, :1] for s in draft.slots] + [draft.values])
    starts = np.column_stack([s.elements[:, 0] for s in draft.slots])
    same = (lines[1:] == lines[:-1]).all(axis=1)
    steps = np.diff(starts, axis=0)
    runs, first, count = [], 0, len(lines)
    while first < count:
        last = first + 1
        if last < count and same[first]:
            step = steps[first]
            while last < count and same[last - 1] and (steps[last - 1] == step).all():
                last += 1
        slots = (dataclasses.replace(s, elements=s.elements[first:last]) for s in draft.slots)
        runs.append(Draft(tuple(slots), draft.values[first:last]))
        first = last
    return runs


def form_of(drafts: list[Draft], operands: dict, output: tuple[int, Index]) -> Form:
    """Return the form of some drafts.

    Args:
      operands: by the name of the slots (size of the row, index, role, name), in order.
      output: size and index of the output.
    Raises:
      Unfit: channels that are not evenly spaced, or blocks that overlap.
    """
    paths = [run for draft in drafts for run in _runs(draft)]
    if len(paths) > 2 * len(drafts) + 8:
        raise Unfit("channels are not evenly spaced")
    names = (*operands, None)
    channels = {name: _has_channels(paths, name) for name in names}
    if not any(channels[name] for name in operands):  # one channel: that of the left operand
        channels[names[0]] = True
    paths.sort(key=lambda path: int(path.slots[-1].elements[0, 0]))
    lines = [[_segment(slot, channels[slot.name]) for slot in path.slots] for path in paths]
    used: dict = {name: set() for name in names}
    for path, line in zip(paths, lines, strict=True):
        for slot, segment in zip(path.slots, line, strict=True):
            used[slot.name].add(segment)
    segments = {name: sorted(of_name, key=lambda s: s.offset) for name, of_name in used.items()}
    numbers = {name: n for n, name in enumerate(operands)} | {None: 0}
    refs = []
    for path, line in zip(paths, lines, strict=True):
        *factors, out = (
            SegmentRef(numbers[slot.name], segments[slot.name].index(segment))
            for slot, segment in zip(path.slots, line, strict=True)
        )
        terms: dict = {}
        components = zip(*(slot.component.tolist() for slot in path.slots), strict=True)
        for key, value in zip(components, path.values[0].tolist(), strict=True):
            terms[key] = terms.get(key, 0.0) + value
        refs.append(Path(tuple(factors), out, tuple(sorted(terms.items()))))

    def operand(name, size: int, index: Index, role: Role, label: str) -> Operand:
        of_name = filled(segments[name], size, channels[name])
        return Operand(label, size, of_name, channels[name], index, role)

    try:
        inputs = tuple(operand(name, *described) for name, described in operands.items())
        out = operand(None, *output, Role.OUTPUT, "out")
        return Form(inputs, (out,), tuple(refs)).merged()
    except ValueError as error:
        raise Unfit(f"no form has these channels: {error}") from error


def _has_channels(paths: list[Draft], name) -> bool:
    """Return whether the channels of a path are in an operand, or the same for all of them."""
    differ = set()
    for path in paths:
        for slot in path.slots:
            if slot.name == name and len(slot.elements) > 1:
                differ.add(bool((slot.elements != slot.elements[:1]).any()))
    if len(differ) > 1:
        raise Unfit("an operand has channels in one path and none in another")
    return name is None or differ == {True}


def _segment(slot: Slot, channels: bool) -> Segment:
    elements = slot.elements if channels else slot.elements[:1]
    mul, dim = elements.shape
    component = int(elements[0, 1] - elements[0, 0]) if dim > 1 else 1
    channel = int(elements[1, 0] - elements[0, 0]) if mul > 1 else dim
    segment = Segment(int(elements[0, 0]), mul, dim, channel, component)
    expected = segment.offset + channel * np.arange(mul)[:, None] + component * np.arange(dim)
    if (expected != elements).any() or min(channel, component) < 1:
        raise Unfit("components of an irrep are not evenly spaced")
    return segment
