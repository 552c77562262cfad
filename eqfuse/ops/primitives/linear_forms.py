"""The mixing as a JAX primitive, whose derivatives of every order are mixings again.

Their rules are those of `primitives.multilinear`, as for the form.
"""

import jax
from jax.interpreters import batching

from eqfuse.ops.algebra.linear_form import Mixing, Rows
from eqfuse.ops.primitives import multilinear
from eqfuse.ops.primitives.rules import vary_alike, with_auto_axes
from eqfuse.ops.xla import linear_forms as definition

mixing_p = multilinear.define("eqfuse_mixing", "mixing", ("num_rows", "backend"))


def evaluate(mixing: Mixing, arrays, index, num_rows: int, backend: str) -> list[jax.Array]:
    """Compute a mixing.

    Args:
      mixing: what to compute.
      arrays: one for each input, all of one dtype: [num_rows, size] or the shape of the weights.
      index: [num_rows] int32, or None if the mixing has one set of weights.
      backend: "triton" and "triton-interpret" run one kernel; all others the definition.
    Returns:
      An array for each output.
    """
    assert len({a.dtype for a in arrays}) == 1, [a.dtype for a in arrays]
    integers = [] if index is None else [index]

    def bound(*arrays):
        params = {"num_rows": num_rows, "backend": backend}
        return mixing_p.bind(*vary_alike(arrays), mixing=mixing, **params)

    counted = [
        ["rows" if isinstance(o, Rows) else None for o in side]
        for side in (mixing.inputs, mixing.outputs)
    ]
    return with_auto_axes(bound, [*arrays, *integers], *counted)


def tangent(mixing: Mixing, arrays, tangents, index, num_rows: int, backend: str):
    """The tangents of the outputs of a mixing.

    Args:
      arrays: its inputs; those that the tangent does not depend on may be None.
      tangents: of each input, or None for zero.
      index, num_rows, backend: as in `evaluate`.
    Returns:
      An array for each output, or None where it is zero.
    """
    derivative = mixing.jvp(tuple(t is not None for t in tangents))
    given = [*arrays, *(t for t in tangents if t is not None)]
    index = [] if index is None else [index]
    params = {"num_rows": num_rows, "backend": backend}
    return multilinear.bind_reached(mixing_p, "mixing", derivative, given, index, params)


def split(mixing: Mixing, arrays):
    n = len(mixing.inputs)
    return list(arrays[:n]), list(arrays[n:])


@mixing_p.def_abstract_eval
def _abstract(*arrays, mixing, num_rows, backend):
    return [
        arrays[0].update(shape=mixing.shape(o, num_rows), weak_type=False) for o in mixing.outputs
    ]


def _batch(arrays, dims, *, mixing, num_rows, backend):
    """Weights of one set for all members and no gradient of them: the members' rows, in one."""
    inputs, index = split(mixing, dims)
    weights = [d for o, d in zip(mixing.inputs, inputs, strict=True) if not isinstance(o, Rows)]
    one_set = all(d is None for d in weights) and all(isinstance(o, Rows) for o in mixing.outputs)
    if not one_set:

        def member(*arrays):
            values, index = split(mixing, arrays)
            return definition.evaluate(mixing, values, index[0] if index else None, num_rows)

        outputs = jax.vmap(member, in_axes=list(dims))(*arrays)
        return outputs, [0] * len(outputs)
    [size] = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}
    is_rows = [isinstance(o, Rows) for o in mixing.inputs] + [True] * len(index)
    joined = [
        _joined(a, d, size) if rows else a for a, d, rows in zip(arrays, dims, is_rows, strict=True)
    ]
    outputs = mixing_p.bind(
        *vary_alike(joined), mixing=mixing, num_rows=size * num_rows, backend=backend
    )
    return [o.reshape(size, num_rows, o.shape[-1]) for o in outputs], [0] * len(outputs)


def _joined(array, dim, size):
    array = batching.bdim_at_front(array, dim, size)
    return array.reshape(-1, *array.shape[2:])


batching.primitive_batchers[mixing_p] = _batch
