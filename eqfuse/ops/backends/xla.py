"""A form evaluated in jax.numpy, for any device, path by path.

A path of a few terms is written out by `ir.contraction`, as in kernels; of many, it is an einsum.
"""

import functools
import math
import string

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.contraction import Contraction, split
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Role, Segment, SegmentRef, Term
from eqfuse.ops.ir.fused import path_between

TERMS = 64
"""Products of components that are written out for a path, at most."""


def evaluate_form(form: Form, inputs, senders, receivers, num_nodes, num_rows: int, dtype):
    """Return the outputs of a form, by definition of the form; sums are in float32 or better.

    An array is [num_rows, size], [num_nodes, size] where it is indexed, or [1, size] where all rows
    share it. `senders` and `receivers` are [num_rows] int32; None where no operand is indexed.
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    rows_of = {Index.SENDER: senders, Index.RECEIVER: receivers}
    if senders is not None:  # an edge with an end out of range is dropped, as by other backends
        counts = {i: i.count(num_rows, num_nodes) for i in rows_of}
        outside = functools.reduce(
            jnp.logical_or, ((a < 0) | (a >= counts[i]) for i, a in rows_of.items())
        )
        rows_of = {i: jnp.where(outside, counts[i], a) for i, a in rows_of.items()}
    rows = [
        a.astype(wide).at[rows_of[o.index]].get(mode="fill", fill_value=0)
        if o.index.is_node
        else a.astype(wide)
        for o, a in zip(form.inputs, inputs, strict=True)
    ]
    if any(o.role in (Role.LEFT, Role.RIGHT) for o in form.inputs):
        # or XLA's loops compute again, for every path, what an operand of a product was made by
        rows = jax.lax.optimization_barrier(rows)
    known, sums = {}, {}
    for ref in dict.fromkeys(ref for path in form.paths for ref in path.factors):
        operand = form.inputs[ref.operand]
        known[ref] = _values_of(operand, operand.segments[ref.segment], rows[ref.operand])
    values = _Values(form, known, wide)
    for path in form.paths:
        value = _value(form, path, [known[ref] for ref in path.factors], values, wide)
        sums[path.output] = sums[path.output] + value if path.output in sums else value
    outputs = []
    for n, operand in enumerate(form.outputs):
        parts = {ref.segment: value for ref, value in sums.items() if ref.operand == n}
        value = _write(operand, parts, num_rows, wide)
        if operand.index.is_node:
            count = operand.index.count(num_rows, num_nodes)
            value = jax.ops.segment_sum(value, rows_of[operand.index], count)
        outputs.append(value.astype(dtype))
    return outputs


def _elements(operand: Operand, segment: Segment) -> np.ndarray:
    """Return the offsets of a segment's elements: [mul, dim], or [dim] without channels."""
    return segment.elements() if operand.channels else segment.elements()[0]


def _values_of(operand: Operand, segment: Segment, rows):
    """Return one segment, [rows, mul, dim], or [rows, dim] without channels."""
    elements = _elements(operand, segment)
    first, size = segment.offset, elements.size
    if np.array_equal(elements.ravel(), np.arange(first, first + size)):
        return rows[:, first : first + size].reshape(-1, *elements.shape)
    return rows[:, elements]


def _write(operand: Operand, parts, num_rows: int, dtype):
    """Return rows [num_rows, size] from the values of some segments, zero elsewhere."""
    if not parts:
        return jnp.zeros((num_rows, operand.size), dtype)
    source = np.full(operand.size, -1)
    columns, start = [], 0
    for segment in sorted(parts, key=lambda s: operand.segments[s].offset):
        elements, value = _elements(operand, operand.segments[segment]), parts[segment]
        if operand.channels and operand.segments[segment].channel_stride == 1:  # ir_mul
            elements, value = elements.T, jnp.swapaxes(value, 1, 2)
        source[elements.ravel()] = start + np.arange(elements.size)
        start += elements.size
        columns.append(value.reshape(num_rows, elements.size))
    if (source < 0).any():
        columns.append(jnp.zeros((num_rows, 1), dtype))
        source[source < 0] = start
    value = jnp.concatenate(columns, axis=1)
    return value if np.array_equal(source, np.arange(value.shape[1])) else value[:, source]


def _value(form: Form, path: Path, factors, values: "_Values", dtype):
    """Return the value of a path; factors too are [rows or 1, mul, dim], or without channels."""
    output = form.outputs[path.output.operand]
    dims = [f.shape[-1] for f in factors]
    have_channels = all(f.ndim == 3 for f in factors)
    if have_channels and output.channels and path == path_between(path.factors, path.output, dims):
        return math.prod(factors[1:], start=factors[0])
    is_sum = len(path.terms) == 1 and len(factors) == 2 and have_channels and not output.channels
    if len(path.terms) > TERMS or is_sum:  # over channels, of a product that is not written
        return _einsum(form, path, factors, dtype)
    factor, sums = values.values(path)
    dim = output.segments[path.output.segment].dim
    sums = [times(factor, sums[k]) if k in sums else jnp.zeros((1, 1), dtype) for k in range(dim)]
    sums = jnp.stack(jnp.broadcast_arrays(*sums), axis=-1)
    if output.channels:
        return sums
    # XLA's sum over channels reads one number after the other; its matmul, whole vectors
    ones = jnp.ones(sums.shape[1], dtype)
    return jnp.einsum("zuk,u->zk", sums, ones, precision=jax.lax.Precision.HIGHEST)


def _table(form: Form, path: Path) -> np.ndarray:
    """Return the coefficients [dim of each factor, dim of the output]."""
    slots = [(form.inputs, ref) for ref in path.factors] + [(form.outputs, path.output)]
    table = np.zeros([side[ref.operand].segments[ref.segment].dim for side, ref in slots])
    for components, value in path.terms:
        table[components] += value
    return table


class _Values(Contraction):
    """The values of paths of a few terms, [rows or 1, mul]; those without channels, [rows, 1].

    `known` are the segments of inputs.
    """

    TOGETHER = 8  # no vector is pulled out: XLA would compute the inner sums for each component

    def __init__(self, form: Form, known: dict, dtype):
        super().__init__(form)
        self.segments, self.columns = known, {}
        self.NUMBERS = form.max_mul > 1  # else a matmul would be for each of the numbers
        entries = (split(form, p, self.NUMBERS)[2] for p in form.paths if len(p.terms) <= TERMS)
        numbers = {n: None for of_path in entries for _, n in of_path if not isinstance(n, float)}
        products = {names: None for number in numbers for names, _ in number}
        if not numbers:
            return
        table = np.zeros((len(products), len(numbers)))
        for n, number in enumerate(numbers):
            for names, coefficient in number:
                table[[*products].index(names), n] += coefficient
        parts = [self.product(n) if n else jnp.ones((1, 1), dtype) for n in products]
        parts = jnp.concatenate(jnp.broadcast_arrays(*parts), axis=1)
        # a matmul: XLA would compute an expression again for each channel
        rows = jnp.matmul(parts, table.astype(dtype), precision=jax.lax.Precision.HIGHEST)
        self.columns = {number: rows[:, n : n + 1] for n, number in enumerate(numbers)}

    def load(self, operand: int, segment: int, component: int):
        value = self.segments[SegmentRef(operand, segment)][..., component]
        return value if value.ndim == 2 else value[:, None]

    def number(self, number):
        return number if isinstance(number, float) else self.columns[number]

    def multiply(self, a, b):
        return a * b

    def scaled(self, scale: float, value):
        return times(scale, value)

    def total(self, parts: list[tuple]):
        return sum(times(number, times(a, b)) for number, a, b in parts)


def times(a, b):
    """Return a product, of which None is one."""
    return b if a is None else a if b is None else a * b


def _einsum(form: Form, path: Path, factors, dtype):
    """Contract the factors with the whole table, as e3nn does."""
    letters = string.ascii_lowercase[: len(factors) + 1]
    operands = [form.inputs[ref.operand] for ref in path.factors]
    output = form.outputs[path.output.operand]
    shared = [o.index is Index.SHARED for o in operands]
    factors = [f[0] if one else f for f, one in zip(factors, shared, strict=True)]
    subscripts = [
        ("" if one else "Z") + ("U" if o.channels else "") + i
        for o, one, i in zip(operands, shared, letters, strict=False)
    ]
    subscripts = ",".join([*subscripts, letters])
    result = ("ZU" if output.channels else "Z") + letters[-1]
    return jnp.einsum(
        f"{subscripts}->{result}",
        *factors,
        _table(form, path).astype(dtype),
        optimize="optimal",
        precision=jax.lax.Precision.HIGHEST,
    )


def evaluate_linear_form(linear_form: Form, arrays, index, num_rows: int, precision="highest"):
    """Return the outputs of a linear form, by definition.

    `index` [num_rows] int32 is the set of weights that a row takes; None where there is one set.
    """
    einsum = functools.partial(jnp.einsum, precision=precision)

    def block(ref: SegmentRef):  # [rows, mul, dim]
        operand = linear_form.inputs[ref.operand]
        return _values_of(operand, operand.segments[ref.segment], arrays[ref.operand])

    def gradient(term: Term):
        z = block(term.z)
        if index is None:
            return z.sum(axis=(0, 2)) if term.x is None else einsum("zui,zvi->uv", block(term.x), z)
        chosen = (index[:, None] == jnp.arange(linear_form.num_sets)).astype(z.dtype)
        if term.x is None:
            return einsum("zs,zvi->sv", chosen, z)
        return einsum("zui,zvi,zs->suv", block(term.x), z, chosen)

    sums: list[dict] = [{} for _ in linear_form.outputs]
    for term in linear_form.terms:
        o = term.output
        if linear_form.outputs[o].matrix:
            key, value = 0, gradient(term)
        else:  # matrices of one set, or of each row
            w = arrays[term.w] if index is None else arrays[term.w][index]
            matrix = "zuv" if w.ndim == 3 else "uv"
            if term.z.operand != len(linear_form.inputs) + o:
                key, value = term.x.segment, einsum(f"zvi,{matrix}->zui", block(term.z), w)
            elif term.x is None:
                key = term.z.segment
                value = jnp.broadcast_to(w, (num_rows, w.shape[-1]))[:, :, None]
            else:
                key, value = term.z.segment, einsum(f"zui,{matrix}->zvi", block(term.x), w)
        value = value if term.scale == 1.0 else term.scale * value
        sums[o][key] = sums[o][key] + value if key in sums[o] else value
    outputs = []
    for operand, parts in zip(linear_form.outputs, sums, strict=True):
        if not operand.matrix:
            value = _write(operand, parts, num_rows, arrays[0].dtype)
        elif parts:
            value = parts[0]
        else:
            value = jnp.zeros(linear_form.shape(operand, num_rows))
        outputs.append(value.astype(arrays[0].dtype))
    return outputs
