"""The linear form as a JAX primitive, whose derivatives of every order are linear forms again.

Their rules are those of `primitives.multilinear`, as for the form.
"""

import jax
from jax.interpreters import batching

from eqfuse.ops.backends.xla import linear_forms as definition
from eqfuse.ops.ir.linear_form import LinearForm, Rows
from eqfuse.ops.primitives import multilinear
from eqfuse.ops.primitives.rules import split, vary_alike, with_auto_axes

linear_form_p = multilinear.multilinear_primitive(
    "eqfuse_linear_form", "linear_form", ("num_rows", "backend")
)


def evaluate(
    linear_form: LinearForm, arrays, index, num_rows: int, backend: str
) -> list[jax.Array]:
    """Compute a linear form.

    Args:
      linear form: what to compute.
      arrays: one for each input, all of one dtype: [num_rows, size] or the shape of the weights.
      index: [num_rows] int32, or None if the linear form has one set of weights.
      backend: "triton" and "triton-interpret" run one kernel; all others the definition.
    Returns:
      An array for each output.
    """
    assert len({a.dtype for a in arrays}) == 1, [a.dtype for a in arrays]
    integers = [] if index is None else [index]

    def bound(*arrays):
        params = {"num_rows": num_rows, "backend": backend}
        return linear_form_p.bind(*vary_alike(arrays), linear_form=linear_form, **params)

    counted = [
        ["rows" if isinstance(o, Rows) else None for o in side]
        for side in (linear_form.inputs, linear_form.outputs)
    ]
    return with_auto_axes(bound, [*arrays, *integers], *counted)


def tangent(linear_form: LinearForm, arrays, tangents, index, num_rows: int, backend: str):
    """Return the tangents of the outputs of a linear form.

    Args:
      arrays: its inputs; those that the tangent does not depend on may be None.
      tangents: of each input, or None for zero.
      index, num_rows, backend: as in `evaluate`.
    Returns:
      An array for each output, or None where it is zero.
    """
    derivative = linear_form.jvp(tuple(t is not None for t in tangents))
    given = [*arrays, *(t for t in tangents if t is not None)]
    index = [] if index is None else [index]
    params = {"num_rows": num_rows, "backend": backend}
    return multilinear.bind_reached(linear_form_p, "linear_form", derivative, given, index, params)


@linear_form_p.def_abstract_eval
def _abstract(*arrays, linear_form, num_rows, backend):
    return [
        arrays[0].update(shape=linear_form.shape(o, num_rows), weak_type=False)
        for o in linear_form.outputs
    ]


def _batch(arrays, dims, *, linear_form, num_rows, backend):
    """Join the rows of all members, where they share the weights and want no gradient of them."""
    inputs, index = split(dims, len(linear_form.inputs))
    weights = [
        d for o, d in zip(linear_form.inputs, inputs, strict=True) if not isinstance(o, Rows)
    ]
    one_set = all(d is None for d in weights) and all(
        isinstance(o, Rows) for o in linear_form.outputs
    )
    if not one_set:

        def member(*arrays):
            values, index = split(arrays, len(linear_form.inputs))
            return definition.evaluate(linear_form, values, index[0] if index else None, num_rows)

        outputs = jax.vmap(member, in_axes=list(dims))(*arrays)
        return outputs, [0] * len(outputs)
    [size] = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}
    is_rows = [isinstance(o, Rows) for o in linear_form.inputs] + [True] * len(index)
    joined = [
        _joined(a, d, size) if rows else a for a, d, rows in zip(arrays, dims, is_rows, strict=True)
    ]
    outputs = linear_form_p.bind(
        *vary_alike(joined), linear_form=linear_form, num_rows=size * num_rows, backend=backend
    )
    return [o.reshape(size, num_rows, o.shape[-1]) for o in outputs], [0] * len(outputs)


def _joined(array, dim, size):
    array = batching.bdim_at_front(array, dim, size)
    return array.reshape(-1, *array.shape[2:])


batching.primitive_batchers[linear_form_p] = _batch
