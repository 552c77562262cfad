"""The linear form as a JAX primitive, whose derivatives of every order are linear forms again.

Their rules are those of `primitives.multilinear`, as for the form.
"""

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from eqfuse.ops.backends import xla
from eqfuse.ops.backends import xla as definition
from eqfuse.ops.ir.gate import Activated, Activation, GateForms, chain_rule
from eqfuse.ops.ir.linear import LinearForm, Rows
from eqfuse.ops.primitives import forms, rules
from eqfuse.ops.primitives.rules import split, vary_alike, with_auto_axes

linear_form_p = rules.multilinear_primitive(
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
    return rules.bind_reached(linear_form_p, "linear_form", derivative, given, index, params)


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
            return definition.evaluate_linear_form(
                linear_form, values, index[0] if index else None, num_rows
            )

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


def activate(activated: Activated, z, backend: str) -> list[jax.Array]:
    """Return the derivatives of the activations of rows z, [rows, scalars] for each order."""
    return activation_p.bind(z, activated=activated, backend=backend)


def gated(gate: GateForms, z, backend: str):
    """Return the gate of a pre-activation [rows, size]."""
    [a] = activate(gate.activated, z, backend)
    return _form(gate.value, [a, z], backend)


def gated_tangent(gate: GateForms, z, t_z, backend: str):
    """Return the tangent of a gate, linear in that of the pre-activation."""
    a, d = activate(gate.activated.of_orders((0, 1)), z, backend)
    return _form(gate.tangent, [d, a, z, t_z], backend)


def _form(form, arrays, backend: str):
    used = form.used_inputs()
    arrays = [a for a, keep in zip(arrays, used, strict=True) if keep]
    params = {"num_rows": arrays[0].shape[0], "num_nodes": 0, "backend": backend}
    arrays = rules.vary_alike(arrays)
    [out] = forms.form_p.bind(*arrays, form=form.drop_inputs(used), **params)
    return out


def _definition(z, *, activated: Activated, backend):
    none = jnp.zeros((z.shape[0], 0), z.dtype)
    columns = [z[:, p.offset : p.offset + p.mul] for p in activated.parts]
    acts = [Activation(p.name, p.scale, 0) for p in activated.parts]  # of which parity is no matter
    pairs = list(zip(acts, columns, strict=True))
    parts = [[none, *(_derivative(a, k)(c) for a, c in pairs)] for k in activated.orders]
    return [jnp.concatenate(part, axis=1) for part in parts]


def _derivative(act: Activation, order: int):
    """Return a derivative of an activation, element by element."""
    if order == 0:
        return lambda x: xla.apply(act, x)
    lower = _derivative(act, order - 1)
    return lambda x: jax.jvp(lower, (x,), (jnp.ones_like(x),))[1]


def _activation_abstract(z, *, activated, backend):
    shape = (z.shape[0], activated.size)
    return [z.update(shape=shape, weak_type=False) for _ in activated.orders]


def _jvp(primals, tangents, *, activated, backend):
    [z], [t] = primals, tangents
    outputs = activate(activated, z, backend)
    if type(t) is ad.Zero:
        return outputs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outputs]
    slopes = activate(activated.of_orders(k + 1 for k in activated.orders), z, backend)
    form = chain_rule(activated, len(slopes))
    params = {"num_rows": z.shape[0], "num_nodes": 0, "backend": backend}
    return outputs, forms.form_p.bind(*rules.vary_alike([*slopes, t]), form=form, **params)


activation_p = rules.defined_primitive(
    "eqfuse_activation", _definition, _activation_abstract, jvp=_jvp
)
mlir.register_lowering(activation_p, mlir.lower_fun(_definition, multiple_results=True))
