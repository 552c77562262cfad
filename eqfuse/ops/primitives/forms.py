"""Forms, Linears and activations as JAX primitives, with their batching and lowering.

The derivatives of forms and of linear forms are such again, by the rules of `multilinear`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from eqfuse.ops._backend import TF32X3
from eqfuse.ops._edges import Edges
from eqfuse.ops.backends import xla
from eqfuse.ops.backends.triton import primitive as triton
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index
from eqfuse.ops.ir.fused import Activated, Activation, GateForms, chain_rule
from eqfuse.ops.primitives import measured, native, rules
from eqfuse.ops.primitives.rules import split, vary_alike

form_p = rules.multilinear_primitive("eqfuse_form")


def evaluate(form: Form, inputs, edges: Edges | None = None, *, backend: str) -> list[jax.Array]:
    """Compute a form of arrays of one dtype; sums are in float32 or better.

    They are [rows, size], [num_nodes, size] where indexed by node, [1, size] where all rows share
    them. A form on a graph needs `edges`. Where some nodes only send, `num_nodes` of the primitive
    is the pair of those that receive and of those that send.
    """
    inputs = [jnp.asarray(a) for a in inputs]
    num_rows, num_nodes = _check(form, inputs, edges)
    indices = [] if edges is None else indices_of(edges)
    if isinstance(num_nodes, tuple) and backend == "triton":
        raise NotImplementedError("nodes that only send (num_receivers) are not for GPUs yet")
    params = {"num_rows": num_rows, "num_nodes": num_nodes, "backend": backend}
    return form_p.bind(*vary_alike([*inputs, *indices]), form=form, **params)


def indices_of(edges: Edges) -> list[jax.Array]:
    """Return the index arrays of edges, with the offsets of nodes that receive alone."""
    indices = {name: jnp.asarray(getattr(edges, name)) for name in INDEX_ARRAYS}
    if edges.num_receivers is not None:
        indices["receiver_ptr"] = indices["receiver_ptr"][: edges.num_receivers + 1]
    return list(indices.values())


def _check(form: Form, inputs, edges) -> tuple[int, int | tuple[int, int]]:
    if form.on_graph != (edges is not None):
        raise ValueError("edges are for forms on a graph, and needed by them")
    dtypes = [form.dtype(o, form.dtypes(inputs)[0]) for o in form.inputs]
    if dtypes != [a.dtype for a in inputs]:
        raise ValueError(f"a form takes arrays of one dtype, got {[str(a.dtype) for a in inputs]}")
    rows = {a.shape[0] for o, a in zip(form.inputs, inputs, strict=True) if o.index is Index.ROW}
    num_rows = edges.num_edges if edges is not None else next(iter(rows))
    num_nodes = edges.num_nodes if edges is not None else 0
    if edges is not None and edges.num_receivers is not None:
        num_nodes = edges.num_receivers, num_nodes
    for operand, array in zip(form.inputs, inputs, strict=True):
        expected = form.shape(operand, num_rows, num_nodes)
        if array.shape != expected:
            raise ValueError(f"operand {operand.name} must be {expected}, got {array.shape}")
    return num_rows, num_nodes


@form_p.def_abstract_eval
def _abstract(*args, form, num_rows, backend, num_nodes=0):
    outputs = zip(form.output_shapes(num_rows, num_nodes), form.dtypes(args)[1], strict=True)
    return [args[0].update(shape=s, dtype=jnp.dtype(t), weak_type=False) for s, t in outputs]


def _batch(args, dims, *, form, num_rows, num_nodes, backend):
    [size] = {a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None}
    if not size:
        outputs = zip(form.output_shapes(num_rows, num_nodes), form.dtypes(args)[1], strict=True)
        return [jnp.zeros((0, *s), t) for s, t in outputs], [0] * len(form.outputs)
    if isinstance(num_nodes, tuple):
        raise NotImplementedError("a graph with nodes that only send has no batch axis")
    inputs, indices = split(list(zip(args, dims, strict=True)), len(form.inputs))
    changed, arrays = {}, []
    for i, ((array, dim), operand) in enumerate(zip(inputs, form.inputs, strict=True)):
        if dim is None and operand.index is Index.SHARED:  # by all members too
            arrays.append(array)
            continue
        array = batching.bdim_at_front(array, dim, size)
        if operand.index is Index.SHARED:  # one for each member
            changed[i] = Index.ROW
            array = jnp.broadcast_to(array, (size, num_rows, operand.size))
        arrays.append(array.reshape(size * array.shape[1], operand.size))
    indices = [batching.bdim_at_front(a, d, size) for a, d in indices]
    if indices:
        indices = _batched_indices(indices, size, num_rows, num_nodes, backend)

    def bound(form, *arrays):
        outputs = form_p.bind(
            *vary_alike([*arrays, *indices]),
            form=form,
            num_rows=size * num_rows,
            num_nodes=size * num_nodes,
            backend=backend,
        )
        shapes = form.output_shapes(num_rows, num_nodes)
        return [o.reshape(size, *shape) for o, shape in zip(outputs, shapes, strict=True)]

    outputs = summed(bound, form.indexed(changed), arrays)
    return outputs, [0] * len(outputs)


def summed(compute, form: Form, inputs) -> list[jax.Array]:
    """Compute a form; outputs of one row are computed for each row, in float32, and summed."""
    shared = [o for o, operand in enumerate(form.outputs) if operand.index is Index.SHARED]
    if not shared:
        return compute(form, *inputs)
    dtype, dtypes = form.dtypes(inputs)
    wide = jnp.promote_types(dtype, jnp.float32)
    form = form.indexed({}, dict.fromkeys(shared, Index.ROW)).halved(frozenset())
    outputs = compute(form, *(a.astype(wide) for a in inputs))
    for o in shared:
        outputs[o] = outputs[o].sum(axis=-2, keepdims=True)
    return [out.astype(t) for out, t in zip(outputs, dtypes, strict=True)]


def _batched_indices(indices, size, num_rows, num_nodes, backend):
    """Return the index arrays of `size` graphs side by side.

    Edges with an end out of range, which each graph has behind all others, stay out of range and
    behind all. Native kernels refuse them, and need no order.
    """
    copies = jnp.arange(size, dtype=jnp.int32)[:, None]
    of = dict(zip(INDEX_ARRAYS, indices, strict=True))
    for end in ("sender", "receiver"):
        nodes, order, ptr = (of[f"{end}{what}"] for what in ("s", "_order", "_ptr"))
        inside = (nodes >= 0) & (nodes < num_nodes)
        of[f"{end}s"] = jnp.where(inside, nodes + copies * num_nodes, -1).reshape(-1)
        order = (order + copies * num_rows).reshape(-1)
        kept = ptr[:, -1:]
        if backend == "triton":
            counts = jnp.concatenate([kept, num_rows - kept])[:, 0]
            starts = jnp.cumsum(counts, dtype=jnp.int32) - counts
            firsts = jnp.concatenate([copies * num_rows, copies * num_rows + kept])[:, 0] - starts
            places = jnp.arange(size * num_rows, dtype=jnp.int32)
            part = jnp.searchsorted(starts, places, side="right", method="scan_unrolled") - 1
            order = order[places + firsts[part]]
        of[f"{end}_order"] = order
        ends = jnp.cumsum(kept, axis=0, dtype=jnp.int32)
        ptr = (ptr[:, :-1] + ends - kept).reshape(-1)
        of[f"{end}_ptr"] = jnp.append(ptr, ends[-1])
    return list(of.values())


batching.primitive_batchers[form_p] = _batch


def _lower_form(*args, form, num_rows, num_nodes, backend):
    inputs, integers = split(args, len(form.inputs))
    indices = dict(zip(INDEX_ARRAYS, integers, strict=False))
    if num_rows == 0 or not form.paths:
        outputs = zip(form.output_shapes(num_rows, num_nodes), form.dtypes(inputs)[1], strict=True)
        return [jnp.zeros(shape, dtype) for shape, dtype in outputs]

    def computed(form, *inputs):
        if backend == "xla":
            ends = indices.get("senders"), indices.get("receivers")
            dtype = inputs[0].dtype
            return xla.evaluate_form(form, inputs, *ends, num_nodes, num_rows, dtype)
        if backend == "llvm":
            return native.run_form(form, inputs, indices, num_rows, num_nodes)
        plan = measured_plan(form, num_rows, num_nodes, jnp.dtype(form.dtypes(inputs)[0]))
        return by_plan(form, num_rows, num_nodes, plan, inputs, integers)

    return summed(computed, form, inputs)


BY_XLA = (0,)
PRECISIONS = {"ieee": "highest", "tf32x3": TF32X3, "tf32": "TF32_TF32_F32"}
"""Of `Form.input_precision`, what JAX calls them."""


def measured_plan(form: Form, num_rows: int, num_nodes: int, dtype) -> tuple[int, ...] | None:
    """Return which of `plans` was fastest on this GPU, or None where that was not measured."""
    found = measured.lookup(measured.Problem.of(form, num_rows, num_nodes, "triton", dtype))
    return tuple(map(int, found.chosen.split())) if found else None


def plans(problem: measured.Problem) -> list[tuple[int, ...]]:
    """Return the plans of the kernel of a form or linear form on a GPU, that of the rule first.

    That of no kernel, `BY_XLA`, is a linear form by XLA's matmuls.
    """
    form, dtype, rows = problem.op, problem.dtype, problem.num_rows
    if form.has_matrices:
        return [*triton.linear_plans(form, dtype, rows), BY_XLA]
    return triton.form_plans(form, dtype, rows, problem.num_nodes, problem.deterministic)


def by_plan(form: Form, num_rows: int, num_nodes: int, plan, arrays, integers) -> list[jax.Array]:
    """Return the outputs of a form or linear form on a GPU, by one of its plans, or the rule's."""
    if not form.has_matrices:
        indices = dict(zip(INDEX_ARRAYS, integers, strict=False))
        return triton.run_form(form, arrays, indices, num_rows, num_nodes, plan)
    if plan != BY_XLA:
        return triton.run_linear_form(form, arrays, integers, num_rows, plan)
    index = integers[0] if integers else None
    precision = PRECISIONS[form.input_precision]
    return xla.evaluate_linear_form(form, arrays, index, num_rows, precision)


linear_form_p = rules.multilinear_primitive("eqfuse_linear_form")


def evaluate_linear(
    linear_form: Form, arrays, index, num_rows: int, backend: str
) -> list[jax.Array]:
    """Compute a linear form of arrays of one dtype, [num_rows, size] or the shape of the weights.

    `index` is [num_rows] int32, or None if there is one set of weights.
    """
    assert len({a.dtype for a in arrays}) == 1, [a.dtype for a in arrays]
    arrays = vary_alike([*arrays, *([] if index is None else [index])])
    return linear_form_p.bind(*arrays, form=linear_form, num_rows=num_rows, backend=backend)


linear_form_p.def_abstract_eval(_abstract)


def _linear_batch(arrays, dims, *, form, num_rows, backend):
    """Join the rows of all members, where they share the weights and want no gradient of them."""
    is_rows = [not o.matrix for o in form.inputs]
    weights = [d for d, rows in zip(dims, is_rows, strict=False) if not rows]
    if any(d is not None for d in weights) or any(o.matrix for o in form.outputs):

        def member(*arrays):
            values, index = split(arrays, len(form.inputs))
            return xla.evaluate_linear_form(form, values, index[0] if index else None, num_rows)

        outputs = jax.vmap(member, in_axes=list(dims))(*arrays)
        return outputs, [0] * len(outputs)
    [size] = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}
    is_rows += [True] * form.needs_integers
    joined = [
        jax.lax.collapse(batching.bdim_at_front(a, d, size), 0, 2) if rows else a
        for a, d, rows in zip(arrays, dims, is_rows, strict=True)
    ]
    outputs = linear_form_p.bind(
        *vary_alike(joined), form=form, num_rows=size * num_rows, backend=backend
    )
    return [o.reshape(size, num_rows, o.shape[-1]) for o in outputs], [0] * len(outputs)


batching.primitive_batchers[linear_form_p] = _linear_batch


def activate(activated: Activated, z, backend: str) -> list[jax.Array]:
    """Return the derivatives of the activations of rows z, [rows, scalars] for each order."""
    return activation_p.bind(z, form=activated, backend=backend)


def gated(gate: GateForms, z, backend: str):
    """Return the gate of a pre-activation [rows, size]."""
    [a] = activate(gate.activated, z, backend)
    [out] = rules.bind_reached(form_p, gate.value, [a, z], [], _by_row(z, backend))
    return z[:, :0] if out is None else out


def gated_tangent(gate: GateForms, z, t_z, backend: str):
    """Return the tangent of a gate, linear in that of the pre-activation."""
    a, d = activate(gate.activated.of_orders((0, 1)), z, backend)
    arrays = [d, a, z, t_z]
    [out] = rules.bind_reached(form_p, gate.tangent, arrays, [], _by_row(z, backend))
    return z[:, :0] if out is None else out


def _by_row(z, backend: str) -> dict:
    return {"num_rows": z.shape[0], "num_nodes": 0, "backend": backend}


def _activation(z, *, form: Activated, backend):
    none = jnp.zeros((z.shape[0], 0), z.dtype)
    columns = [(z[:, s.offset : s.offset + s.mul], act) for s, act in form.parts]
    parts = [[none, *(_derivative(act, k)(x) for x, act in columns)] for k in form.orders]
    return [jnp.concatenate(part, axis=1) for part in parts]


def _derivative(act: Activation, order: int):
    """Return a derivative of an activation, element by element."""
    if order == 0:
        return lambda x: act.call(x) * act.scale
    lower = _derivative(act, order - 1)
    return lambda x: jax.jvp(lower, (x,), (jnp.ones_like(x),))[1]


def _activation_abstract(z, *, form, backend):
    return [z.update(shape=(z.shape[0], form.size), weak_type=False) for _ in form.orders]


def _activation_jvp(primals, tangents, *, form, backend):
    [z], [t] = primals, tangents
    outputs = activate(form, z, backend)
    if type(t) is ad.Zero:
        return outputs, list(map(rules.zero, outputs))
    slopes = activate(form.of_orders(k + 1 for k in form.orders), z, backend)
    chain, arrays = chain_rule(form, len(slopes)), vary_alike([*slopes, t])
    return outputs, form_p.bind(*arrays, form=chain, **_by_row(z, backend))


activation_p = rules.defined_primitive(
    "eqfuse_activation", _activation, _activation_abstract, jvp=_activation_jvp
)
mlir.register_lowering(activation_p, rules.lowering_by(_activation))


def _lower_linear_form(*arrays, form, num_rows, backend):
    values, index = split(arrays, len(form.inputs))
    if backend == "triton" and num_rows and form.terms:
        plan = measured_plan(form, num_rows, 0, values[0].dtype)
        return by_plan(form, num_rows, 0, plan, values, index)
    index = index[0] if index else None
    if backend == "llvm" and num_rows and form.terms:
        return native.run_linear(form, values, index, num_rows)
    return xla.evaluate_linear_form(form, values, index, num_rows)


lowerings = {form_p: _lower_form, linear_form_p: _lower_linear_form}
