"""Activations of scalars of rows as a JAX primitive: a step of the native kernel of a gate.

Alone, its definition in jax.numpy is what runs.
"""

import jax
import jax.numpy as jnp
from jax.interpreters import ad, mlir

from eqfuse.ops.backends.xla import activations
from eqfuse.ops.ir.activated import Activated, chain_rule
from eqfuse.ops.ir.gate_forms import GateForms
from eqfuse.ops.ir.gates import Activation
from eqfuse.ops.primitives import forms, rules


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
        return lambda x: activations.apply(act, x)
    lower = _derivative(act, order - 1)
    return lambda x: jax.jvp(lower, (x,), (jnp.ones_like(x),))[1]


def _abstract(z, *, activated, backend):
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


activation_p = rules.defined_primitive("eqfuse_activation", _definition, _abstract, jvp=_jvp)
mlir.register_lowering(activation_p, mlir.lower_fun(_definition, multiple_results=True))
