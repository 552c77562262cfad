"""The linear form as a JAX primitive, whose derivatives of every order are linear forms again."""

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from eqfuse.ops.backends import xla
from eqfuse.ops.ir.gate import Activated, Activation, GateForms, chain_rule
from eqfuse.ops.ir.linear import LinearForm, Rows
from eqfuse.ops.primitives import forms, rules
from eqfuse.ops.primitives.rules import split, vary_alike, with_auto_axes

linear_form_p = rules.multilinear_primitive("eqfuse_linear_form")


def evaluate(
    linear_form: LinearForm, arrays, index, num_rows: int, backend: str
) -> list[jax.Array]:
    """Compute a linear form of arrays of one dtype, [num_rows, size] or the shape of the weights.

    `index` is [num_rows] int32, or None if there is one set of weights.
    """
    assert len({a.dtype for a in arrays}) == 1, [a.dtype for a in arrays]
    integers = [] if index is None else [index]

    def bound(*arrays):
        params = {"num_rows": num_rows, "backend": backend}
        return linear_form_p.bind(*vary_alike(arrays), form=linear_form, **params)

    counted = [
        ["rows" if isinstance(o, Rows) else None for o in side]
        for side in (linear_form.inputs, linear_form.outputs)
    ]
    return with_auto_axes(bound, [*arrays, *integers], *counted)


@linear_form_p.def_abstract_eval
def _abstract(*arrays, form, num_rows, backend):
    return [arrays[0].update(shape=form.shape(o, num_rows), weak_type=False) for o in form.outputs]


def _batch(arrays, dims, *, form, num_rows, backend):
    """Join the rows of all members, where they share the weights and want no gradient of them."""
    is_rows = [isinstance(o, Rows) for o in form.inputs]
    weights = [d for d, rows in zip(dims, is_rows, strict=False) if not rows]
    if any(d is not None for d in weights) or not all(isinstance(o, Rows) for o in form.outputs):

        def member(*arrays):
            values, index = split(arrays, len(form.inputs))
            return xla.evaluate_linear_form(form, values, index[0] if index else None, num_rows)

        outputs = jax.vmap(member, in_axes=list(dims))(*arrays)
        return outputs, [0] * len(outputs)
    [size] = {a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None}
    is_rows += [True] * form.needs_integers
    joined = [
        _joined(a, d, size) if rows else a for a, d, rows in zip(arrays, dims, is_rows, strict=True)
    ]
    outputs = linear_form_p.bind(
        *vary_alike(joined), form=form, num_rows=size * num_rows, backend=backend
    )
    return [o.reshape(size, num_rows, o.shape[-1]) for o in outputs], [0] * len(outputs)


def _joined(array, dim, size):
    array = batching.bdim_at_front(array, dim, size)
    return array.reshape(-1, *array.shape[2:])


batching.primitive_batchers[linear_form_p] = _batch


def activate(activated: Activated, z, backend: str) -> list[jax.Array]:
    """Return the derivatives of the activations of rows z, [rows, scalars] for each order."""
    return activation_p.bind(z, form=activated, backend=backend)


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


def _definition(z, *, form: Activated, backend):
    none = jnp.zeros((z.shape[0], 0), z.dtype)
    columns = [z[:, p.offset : p.offset + p.mul] for p in form.parts]
    acts = [Activation(p.name, p.scale, 0) for p in form.parts]  # of which parity is no matter
    pairs = list(zip(acts, columns, strict=True))
    parts = [[none, *(_derivative(a, k)(c) for a, c in pairs)] for k in form.orders]
    return [jnp.concatenate(part, axis=1) for part in parts]


def _derivative(act: Activation, order: int):
    """Return a derivative of an activation, element by element."""
    if order == 0:
        return lambda x: xla.apply(act, x)
    lower = _derivative(act, order - 1)
    return lambda x: jax.jvp(lower, (x,), (jnp.ones_like(x),))[1]


def _activation_abstract(z, *, form, backend):
    return [z.update(shape=(z.shape[0], form.size), weak_type=False) for _ in form.orders]


def _jvp(primals, tangents, *, form, backend):
    [z], [t] = primals, tangents
    outputs = activate(form, z, backend)
    if type(t) is ad.Zero:
        return outputs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outputs]
    slopes = activate(form.of_orders(k + 1 for k in form.orders), z, backend)
    params = {"num_rows": z.shape[0], "num_nodes": 0, "backend": backend}
    chain = chain_rule(form, len(slopes))
    return outputs, forms.form_p.bind(*rules.vary_alike([*slopes, t]), form=chain, **params)


activation_p = rules.defined_primitive(
    "eqfuse_activation", _definition, _activation_abstract, jvp=_jvp
)
mlir.register_lowering(activation_p, mlir.lower_fun(_definition, multiple_results=True))
