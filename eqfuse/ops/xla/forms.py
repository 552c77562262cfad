"""A form evaluated in jax.numpy, for any device: one einsum for each path."""

import string

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.algebra.form import Form, Index, Operand, Segment


def evaluate(form: Form, inputs, senders, receivers, num_nodes: int, num_rows: int, dtype):
    """Return the outputs of a form, by definition of the form.

    Args:
      form: what to compute.
      inputs: one array for each input, [num_rows, size], or [num_nodes, size] where it is indexed,
        [1, size] where all rows share it.
      senders, receivers: [num_rows] int32; None where no operand is indexed.
      dtype: of the outputs; sums are in float32 or better.
    Returns:
      A list with one array for each output, [num_rows, size] or [num_nodes, size].
    """
    wide = jnp.promote_types(dtype, jnp.float32)
    rows_of = {Index.SENDER: senders, Index.RECEIVER: receivers}
    rows = [
        a.astype(wide)[rows_of[o.index]] if o.index.is_node else a.astype(wide)
        for o, a in zip(form.inputs, inputs, strict=True)
    ]
    known, sums = {}, {}
    for path in form.paths:
        for ref in path.factors:
            if ref not in known:
                operand = form.inputs[ref.operand]
                known[ref] = _read(operand, operand.segments[ref.segment], rows[ref.operand])
        value = _contract(form, path, [known[ref] for ref in path.factors], wide)
        sums[path.output] = sums[path.output] + value if path.output in sums else value
    outputs = []
    for n, operand in enumerate(form.outputs):
        parts = {ref.segment: value for ref, value in sums.items() if ref.operand == n}
        value = _write(operand, parts, num_rows, wide)
        if operand.index.is_node:
            value = jax.ops.segment_sum(value, rows_of[operand.index], num_nodes)
        outputs.append(value.astype(dtype))
    return outputs


def _elements(operand: Operand, segment: Segment) -> np.ndarray:
    """Return where the elements of a segment lie in the row: [mul, dim], or [dim]
    without channels.
    """
    channels = segment.offset + segment.channel_stride * np.arange(segment.mul)
    elements = channels[:, None] + segment.component_stride * np.arange(segment.dim)
    return elements if operand.channels else elements[0]


def _read(operand: Operand, segment: Segment, rows):
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
    for segment, value in parts.items():
        elements = _elements(operand, operand.segments[segment])
        source[elements.ravel()] = start + np.arange(elements.size)
        start += elements.size
        columns.append(value.reshape(num_rows, elements.size))
    if (source < 0).any():
        columns.append(jnp.zeros((num_rows, 1), dtype))
        source[source < 0] = start
    value = jnp.concatenate(columns, axis=1)
    return value if np.array_equal(source, np.arange(value.shape[1])) else value[:, source]


def _contract(form: Form, path, factors, dtype):
    """Return the value of one path, [rows, mul, dim], or [rows, dim] for an output without
    channels.
    """
    letters = string.ascii_lowercase[: len(factors) + 1]
    operands = [form.inputs[ref.operand] for ref in path.factors]
    output = form.outputs[path.output.operand]
    shape = [o.segments[s.segment].dim for o, s in zip(operands, path.factors, strict=True)]
    shape.append(output.segments[path.output.segment].dim)
    coefficients = np.zeros(shape)
    for components, value in path.terms:
        coefficients[components] += value
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
        coefficients.astype(dtype),
        optimize="optimal",
        precision=jax.lax.Precision.HIGHEST,
    )
