"""A linear form evaluated in jax.numpy, for any device: an einsum for each term."""

import dataclasses

import jax
import jax.numpy as jnp

from eqfuse.ops.ir.linear_form import BlockRef, LinearForm, Rows, Term, Weights


def evaluate(linear_form: LinearForm, arrays, index, num_rows: int):
    """Return the outputs of a linear form, by definition.

    Args:
      arrays: one for each input.
      index: [num_rows] int32, which set of weights a row takes; None where there is one set.
    Returns:
      An array for each output.
    """
    dtype = arrays[0].dtype
    values = [_Operand(o, a) for o, a in zip(linear_form.inputs, arrays, strict=True)]
    sums: list[dict] = [{} for _ in linear_form.outputs]
    for term in linear_form.terms:
        o = linear_form.output_of(term)
        operand = linear_form.outputs[o]
        n = len(linear_form.inputs) + o
        if isinstance(operand, Weights):
            key, value = 0, _gradient(term, values, index, linear_form.num_sets)
        elif term.z.operand == n:
            key, value = term.z.block, _forward(term, values, index, num_rows)
        else:
            key = term.x.block
            w = values[term.w].weights(index)
            value = _einsum("zvi,zuv->zui" if w.ndim == 3 else "zvi,uv->zui", values, term.z, w)
        value = value if term.scale == 1.0 else term.scale * value
        sums[o][key] = sums[o][key] + value if key in sums[o] else value
    return [
        _assembled(linear_form.shape(o, num_rows), o, parts, dtype)
        for o, parts in zip(linear_form.outputs, sums, strict=True)
    ]


@dataclasses.dataclass
class _Operand:
    """An input's array, and parts of it."""

    operand: Rows | Weights
    array: jax.Array

    def block(self, number: int):
        """Return [rows, mul, dim]."""
        b = self.operand.blocks[number]
        part = self.array[:, b.offset : b.offset + b.mul * b.dim]
        return part.reshape(-1, b.mul, b.dim)

    def weights(self, index):
        """Return [mul_in, mul_out] or [mul_out], behind an axis of rows if these choose a set."""
        return self.array if index is None else self.array[index]


def _einsum(text: str, values, slot: BlockRef, *others):
    block = values[slot.operand].block(slot.block)
    return jnp.einsum(text, block, *others, precision=jax.lax.Precision.HIGHEST)


def _forward(term: Term, values, index, num_rows: int):
    w = values[term.w].weights(index)
    if term.x is None:
        return jnp.broadcast_to(w, (num_rows, w.shape[-1]))[:, :, None]
    return _einsum("zui,zuv->zvi" if w.ndim == 3 else "zui,uv->zvi", values, term.x, w)


def _gradient(term: Term, values, index, num_sets: int):
    z = values[term.z.operand].block(term.z.block)
    if index is None:
        if term.x is None:
            return z.sum(axis=(0, 2))
        return _einsum("zui,zvi->uv", values, term.x, z)
    chosen = (index[:, None] == jnp.arange(num_sets)).astype(z.dtype)
    if term.x is None:
        return jnp.einsum("zs,zvi->sv", chosen, z, precision=jax.lax.Precision.HIGHEST)
    return _einsum("zui,zvi,zs->suv", values, term.x, z, chosen)


def _assembled(shape, operand: Rows | Weights, parts: dict, dtype):
    """Return an output from its blocks; what no term adds to is zero."""
    if isinstance(operand, Weights):
        return parts[0].astype(dtype) if parts else jnp.zeros(shape, dtype)
    columns, stop = [], 0
    for n, b in sorted(enumerate(operand.blocks), key=lambda item: item[1].offset):
        columns.append(jnp.zeros((shape[0], b.offset - stop), dtype))
        stop = b.offset + b.mul * b.dim
        value = parts.get(n)
        columns.append(
            jnp.zeros((shape[0], b.mul * b.dim), dtype)
            if value is None
            else value.astype(dtype).reshape(shape[0], b.mul * b.dim)
        )
    columns.append(jnp.zeros((shape[0], shape[1] - stop), dtype))
    return jnp.concatenate([c for c in columns if c.shape[1]] or columns, axis=1)
