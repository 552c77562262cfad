"""A form evaluated in jax.numpy, for any device, path by path.

What a path costs chooses how it is computed: `_written_out`, `_by_component` or `_einsum`.
"""

import functools
import math
import string

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef, Term
from eqfuse.ops.ir.fused import Activation, Gate, Part
from eqfuse.ops.ir.linear import Linear

TERMS = 64
"""Products of components that are written out for a path, at most."""
PATHS = 32
"""Paths of a form whose components are loops of their own: faster, longer to compile."""


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
    # or XLA's loops compute again, for every path, what an operand was made by
    rows = jax.lax.optimization_barrier(rows)
    known, sums = {}, {}
    for path in form.paths:
        for ref in path.factors:
            if ref not in known:
                operand = form.inputs[ref.operand]
                known[ref] = _values_of(operand, operand.segments[ref.segment], rows[ref.operand])
        value = _value(form, path, [known[ref] for ref in path.factors], wide)
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


def _value(form: Form, path: Path, factors, dtype):
    """Return the value of a path; factors too are [rows or 1, mul, dim], or without channels."""
    output = form.outputs[path.output.operand]
    few = len(path.terms) <= TERMS
    channels = output.segments[path.output.segment].mul
    alone = len(path.terms) == 1 and len(factors) == 2 and all(f.ndim == 3 for f in factors)
    if alone and not output.channels:  # the sum over channels of a product that is not written
        return _einsum(form, path, factors, dtype)
    if output.channels and any(f.ndim == 2 for f in factors) and not (few and channels == 1):
        return _by_component(form, path, factors, dtype)
    if not few:
        return _einsum(form, path, factors, dtype)
    sums = _written_out(form, path, factors)
    if output.channels:
        return jnp.stack(sums, axis=-1)
    # XLA's sum over channels reads one number after the other; its matmul, whole vectors
    sums = jnp.stack(sums, axis=1)
    ones = jnp.ones(sums.shape[-1], dtype)
    return jnp.matmul(sums, ones, precision=jax.lax.Precision.HIGHEST)


def _table(form: Form, path: Path) -> np.ndarray:
    """Return the coefficients [dim of each factor, dim of the output]."""
    slots = [(form.inputs, ref) for ref in path.factors] + [(form.outputs, path.output)]
    table = np.zeros([side[ref.operand].segments[ref.segment].dim for side, ref in slots])
    for components, value in path.terms:
        table[components] += value
    return table


def _written_out(form: Form, path: Path, factors):
    """Return the sum of the terms for each component of the output, each [rows, mul]."""
    dim = form.outputs[path.output.operand].segments[path.output.segment].dim
    factors = [f if f.ndim == 3 else f[:, None] for f in factors]
    shape = jnp.broadcast_shapes(*(f.shape[:-1] for f in factors))
    sums = [jnp.zeros(shape, factors[0].dtype)] * dim
    for (*components, k), value in path.terms:
        parts = [f[..., i] for f, i in zip(factors, components, strict=True)]
        sums[k] = sums[k] + value * math.prod(parts[1:], start=parts[0])
    return sums


def _by_component(form: Form, path: Path, factors, dtype):
    """Contract the table with what has no channels, then with the components of the others in turn.

    What is left of the table, t, has a few numbers for a row: in out_k = sum_i x_i t_ik all
    channels of a row are alike. A matmul for each row would take longer, as its sides are short.
    """
    shared = [n for n, f in enumerate(factors) if f.ndim == 2]
    vectors = [n for n, f in enumerate(factors) if f.ndim == 3 and f.shape[-1] > 1]
    vectors.sort(key=lambda n: -factors[n].shape[-1])
    scalars = [n for n, f in enumerate(factors) if f.ndim == 3 and f.shape[-1] == 1]
    row = factors[shared[0]]
    for n in shared[1:]:
        row = (row[:, :, None] * factors[n][:, None]).reshape(-1, row.shape[1] * len(factors[n][0]))
    table = _table(form, path).transpose(*shared, *scalars, *vectors, -1)
    shape = [factors[n].shape[-1] for n in vectors] + [table.shape[-1]]
    table = jnp.asarray(table.reshape(row.shape[1], -1), dtype)
    value = jnp.matmul(row, table, precision=jax.lax.Precision.HIGHEST).reshape(-1, 1, *shape)
    for n in vectors:
        x = factors[n]
        if value.ndim == 4 and len(form.paths) <= PATHS:
            columns = jnp.moveaxis(value, -1, 0)
            value = jnp.stack([_dot(x, column) for column in columns], axis=-1)
        else:
            value = _dot(x.reshape(*x.shape, *[1] * (value.ndim - 3)), value)
    return math.prod((factors[n] for n in scalars), start=value)


def _dot(x, t):
    """Return the sum of x_i t_i over the third axis, i."""
    return sum(x[:, :, i] * t[:, :, i] for i in range(x.shape[2]))


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


def apply(act: Activation, x):
    return act.call(x) * act.scale


def apply_gate(gate: Gate, linear: Linear, z):
    """Return the output row of a pre-activation z [rows, linear.size_out]."""

    def read(part: Part):  # [rows, mul, dim]
        return _values_of(linear.linear_form.outputs[0], linear.place(part), z)

    columns = [
        read(t.part) * apply(t.act, read(t.gate)) if t.gate else apply(t.act, read(t.part))
        for t in gate.tiles
    ]
    columns = [c.reshape(z.shape[0], c.shape[1] * c.shape[2]) for c in columns]
    return jnp.concatenate([*columns, jnp.zeros((z.shape[0], 0), z.dtype)], axis=1)
