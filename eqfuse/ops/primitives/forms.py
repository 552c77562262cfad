"""The form as a JAX primitive; its derivatives are forms again, by the rules of `multilinear`."""

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from eqfuse import _jax_compat
from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index
from eqfuse.ops.primitives import rules
from eqfuse.ops.primitives.rules import split, vary_alike, with_auto_axes

form_p = rules.multilinear_primitive("eqfuse_form")
_jax_compat.require_devices_when_lowered(form_p)  # forms over rows are partitioned there


def evaluate(form: Form, inputs, edges: Edges | None = None, *, backend: str) -> list[jax.Array]:
    """Compute a form of arrays of one dtype; sums are in float32 or better.

    They are [rows, size], [num_nodes, size] where indexed by node, [1, size] where all rows share
    them. A form on a graph needs `edges`.
    """
    inputs = [jnp.asarray(a) for a in inputs]
    num_rows, num_nodes = _check(form, inputs, edges)
    indices = () if edges is None else tuple(jnp.asarray(getattr(edges, n)) for n in INDEX_ARRAYS)
    params = {"num_rows": num_rows, "num_nodes": num_nodes, "backend": backend}

    def bound(*arrays):
        return form_p.bind(*vary_alike(arrays), form=form, **params)

    counted = [[o.index.counted for o in side] for side in (form.inputs, form.outputs)]
    return with_auto_axes(bound, [*inputs, *indices], *counted)


def _check(form: Form, inputs, edges) -> tuple[int, int]:
    if form.on_graph != (edges is not None):
        raise ValueError("edges are for forms on a graph, and needed by them")
    if len({a.dtype for a in inputs}) != 1:
        raise ValueError(f"a form takes arrays of one dtype, got {[str(a.dtype) for a in inputs]}")
    rows = {a.shape[0] for o, a in zip(form.inputs, inputs, strict=True) if o.index is Index.ROW}
    num_rows = edges.num_edges if edges is not None else next(iter(rows))
    num_nodes = edges.num_nodes if edges is not None else 0
    for operand, array in zip(form.inputs, inputs, strict=True):
        expected = operand.shape(num_rows, num_nodes)
        if array.shape != expected:
            raise ValueError(f"operand {operand.name} must be {expected}, got {array.shape}")
    return num_rows, num_nodes


@form_p.def_abstract_eval
def _abstract(*args, form, num_rows, num_nodes, backend):
    return [
        args[0].update(shape=o.shape(num_rows, num_nodes), weak_type=False) for o in form.outputs
    ]


def _batch(args, dims, *, form, num_rows, num_nodes, backend):
    [size] = {a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None}
    inputs, indices = split(list(zip(args, dims, strict=True)), len(form.inputs))
    shared = _shared_by_members(form, inputs)
    changed, arrays = {}, []
    for i, ((array, dim), operand) in enumerate(zip(inputs, form.inputs, strict=True)):
        if i in shared:
            changed[i] = Index.SHARED
            arrays.append(array)
            continue
        array = batching.bdim_at_front(array, dim, size)
        if operand.index is Index.SHARED:  # one for each member
            changed[i] = Index.ROW
            array = jnp.broadcast_to(array, (size, num_rows, operand.size))
        arrays.append(array.reshape(size * array.shape[1], operand.size))
    indices = [batching.bdim_at_front(a, d, size) for a, d in indices]
    if indices:
        indices = _batched_indices(indices, size, num_rows, num_nodes)

    def bound(form, *arrays):
        outputs = form_p.bind(
            *vary_alike([*arrays, *indices]),
            form=form,
            num_rows=size * num_rows,
            num_nodes=size * num_nodes,
            backend=backend,
        )
        shapes = [o.shape(num_rows, num_nodes) for o in form.outputs]
        return [o.reshape(size, *shape) for o, shape in zip(outputs, shapes, strict=True)]

    outputs = summed(bound, form.indexed(changed), arrays)
    return outputs, [0] * len(outputs)


def _shared_by_members(form: Form, inputs) -> set[int]:
    """Return which inputs, pairs of an array and its batch axis, are one row for all members.

    Of inputs that need not be one row, none is that would leave a path nothing that differs.
    """
    whole = {i for i, (array, dim) in enumerate(inputs) if dim is None and array.shape[0] == 1}
    shared = {i for i in whole if not form.inputs[i].index.is_node}
    for path in form.paths:
        operands = {ref.operand for ref in path.factors}
        if operands <= shared:
            shared -= {i for i in operands if form.inputs[i].index is Index.ROW}
    return shared


def summed(compute, form: Form, inputs) -> list[jax.Array]:
    """Return the outputs of a form by `compute`, which gives what each row adds to those of one."""
    shared = [o for o, operand in enumerate(form.outputs) if operand.index is Index.SHARED]
    if not shared:
        return compute(form, *inputs)
    dtype = inputs[0].dtype
    wide = jnp.promote_types(dtype, jnp.float32)
    form = form.indexed({}, dict.fromkeys(shared, Index.ROW))
    outputs = compute(form, *(a.astype(wide) for a in inputs))
    for o in shared:
        outputs[o] = outputs[o].sum(axis=-2, keepdims=True)
    return [out.astype(dtype) for out in outputs]


def _batched_indices(indices, size, num_rows, num_nodes):
    """Return the index arrays of `size` graphs side by side."""
    copies = jnp.arange(size, dtype=jnp.int32)[:, None]
    by_name = dict(zip(INDEX_ARRAYS, indices, strict=True))
    for name, array in by_name.items():
        if name.endswith("_ptr"):
            array = (array[:, :-1] + copies * num_rows).reshape(-1)
            array = jnp.append(array, jnp.int32(size * num_rows))
        else:
            step = num_rows if name.endswith("_order") else num_nodes
            array = (array + copies * step).reshape(-1)
        by_name[name] = array
    return list(by_name.values())


batching.primitive_batchers[form_p] = _batch
