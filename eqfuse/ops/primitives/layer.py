"""The fused op and its derivatives of every order, as one JAX primitive.

What no kernel computes, JAX composes from the definition here. Where `choice` decides against
kernels of the whole, an op is its definition from the start, and JAX keeps the product for the
backward.
"""

from __future__ import annotations

import dataclasses
from itertools import compress

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from eqfuse.ops.ir.form import Form, Index, rows_of_nodes
from eqfuse.ops.ir.fused import Fused, forms_of
from eqfuse.ops.primitives import choice, forms, rules
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.rules import split


@dataclasses.dataclass(frozen=True)
class Call(rules.Call):
    """The static arguments of one call: an op, or a derivative of it.

    A derivative of the op has one operand more, the pre-activation, which the op computes.
    """

    fused: Fused
    num_rows: int
    num_nodes: int
    backend: str
    kernels: Kernels = Kernels.APART

    @property
    def num_operands(self) -> int:
        return self.fused.num_floats

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the rows of the op's outputs; sums of nodes come last, if kept."""
        sums = [self.fused.form.outputs[0].size] if self.kernels is Kernels.VALUE else []
        return (*self.fused.sizes, *sums)

    @property
    def num_output_rows(self) -> int:
        return self.num_nodes if self.fused.summed else self.num_rows


def evaluate(call: Call, floats, integers):
    """Return the gated row of a fused op, or the pre-activation."""
    if not call.num_rows or not call.num_output_rows:
        call = dataclasses.replace(call, kernels=Kernels.APART)
    compute = {Kernels.APART: _value, Kernels.BLOCKS: _in_blocks}.get(call.kernels, fused_p.bind)
    return compute(*rules.vary_alike([*floats, *integers]), call=call)[0]


def _in_blocks(*arrays, call: Call):
    """Return the outputs, some rows at a time; two orders of derivative keep no product of all.

    Rows of a block have their own row of every node.
    """
    fused, dtype, size = call.fused, arrays[0].dtype, choice.BLOCK
    floats, integers = split(arrays, fused.num_floats)
    inputs, parameters, skip = fused.operands(floats)
    form, by_row = fused.form, [] if skip is None else [skip]
    wide = jnp.promote_types(dtype, jnp.float32)  # in which gradients of what rows share are summed
    parameters, shared = ([a.astype(wide) for a in arrays] for arrays in (parameters, inputs))
    for array, operand in reversed(list(zip(inputs, form.inputs, strict=True))):
        if operand.index.is_node:
            gather = rows_of_nodes(operand.size, operand.index, False)
            [array] = product(call, gather, [array], integers)
        by_row += [array] * (operand.index is not Index.SHARED)
    form = form.indexed({n: Index.ROW for n, o in enumerate(form.inputs) if o.index.is_node})

    def block(rows):
        rows = list(rows)
        part = Call(dataclasses.replace(fused, form=form), len(rows[0]), 0, call.backend)
        arrays = [
            a.astype(dtype) if o.index is Index.SHARED else rows.pop()
            for a, o in zip(shared, form.inputs, strict=True)
        ]
        arrays += [a.astype(dtype) for a in parameters]
        return _value(*arrays, *rows, call=part)

    for _ in range(2):  # a derivative undoes one, and training on forces takes two derivatives
        block = jax.checkpoint(block, prevent_cse=False)  # in a loop there is nothing to prevent
    whole = call.num_rows // size * size
    blocks = jax.lax.map(block, [a[:whole].reshape(-1, size, *a.shape[1:]) for a in by_row])
    outputs = [b.reshape(whole, b.shape[-1]) for b in blocks]
    if whole < call.num_rows:
        rest = block([a[whole:] for a in by_row])
        outputs = [jnp.concatenate(pair) for pair in zip(outputs, rest, strict=True)]
    return outputs


# the definition


def definition(*arrays, call: Call) -> list:
    """Return the outputs of an op or of a derivative."""
    if len(call.derivatives) < 2:
        return (_tangent if call.derivatives else _value)(*arrays, call=call)
    return rules.derivative(definition, arrays, call)


def product(call: Call, form: Form, inputs, integers) -> list:
    """Return a form on the operands of a call."""
    return forms.form_p.bind(*inputs, *integers, form=form, **call.counts)


def _gated(compute, call: Call, *arrays) -> list:
    """Return what becomes of a pre-activation, or its tangent; nothing where there is no gate."""
    gate, linear = call.fused.gate, call.fused.linear
    backend = call.backend if call.kernels is Kernels.NATIVE else "xla"  # unless in the kernel
    return [] if gate is None else [compute(forms_of(gate, linear), *arrays, backend)]


def _value(*arrays, call: Call) -> list:
    """Return out and z (only z, where nothing follows it), part by part."""
    fused = call.fused
    floats, _, integers = call.split(arrays)
    inputs, parameters, skip = fused.operands(floats)
    [m] = product(call, fused.form, inputs, integers)
    [z] = forms.evaluate_linear(
        fused.linear.linear_form, [m, *parameters], None, call.num_output_rows, call.backend
    )
    z = z if skip is None else z + skip
    return [*_gated(forms.gated, call, z), z, *([m] if call.kernels is Kernels.VALUE else [])]


def _tangent(*arrays, call: Call, m=None) -> list:
    """Return tangents of the outputs; `m` is the product, if it is known."""
    fused = call.fused
    [*floats, z], tangents, integers = call.split(arrays)
    inputs, parameters, _ = fused.operands(floats)
    changed = iter(tangents)
    [*changed, _] = [next(changed) if active else None for active in call.derivatives[0]]
    t_inputs, t_parameters, t_skip = fused.operands(changed)
    [t_m] = rules.bind_tangent(forms.form_p, fused.form, inputs, t_inputs, integers, call.counts)
    if m is None and any(t is not None for t in t_parameters):
        [m] = product(call, fused.form, inputs, integers)
    [t_z] = rules.bind_tangent(
        forms.linear_form_p,
        fused.linear.linear_form,
        [m, *parameters],
        [t_m, *t_parameters],
        [],
        {"num_rows": call.num_output_rows, "backend": call.backend},
    )
    if t_skip is not None:
        t_z = t_skip if t_z is None else t_z + t_skip
    if t_z is None:
        t_z = rules.vary_alike([jnp.zeros_like(z), z])[0]
    gated = _gated(forms.gated_tangent, call, z, t_z)
    return [*gated, t_z, *([t_m] if call.kernels is Kernels.VALUE else [])]


# the primitive


def _abstract(*arrays, call: Call):
    return [arrays[0].update(shape=(call.num_output_rows, s), weak_type=False) for s in call.sizes]


def _jvp(primals, tangents, *, call: Call):
    of_every_order = call.kernels in (Kernels.NATIVE, Kernels.MEASURED)
    if call.is_tangent or (call.derivatives and not of_every_order):
        return rules.jvp_of(definition)(primals, tangents, call=call)
    operands, given, integers = call.split(primals)
    operands, n = [*operands, *given], call.fused.num_floats
    outputs = fused_p.bind(*primals, call=call)
    active = [type(t) is not ad.Zero for t in tangents[: len(operands)]]
    if not call.derivatives:
        operands, active = [*operands, outputs[len(call.fused.sizes) - 1]], [*active, False]
    elif call.fused.gate is None:  # the derivatives do not depend on the pre-activation
        active[n] = False
    if not any(active):
        return outputs, list(map(rules.zero, outputs))
    arrays = rules.vary_alike([*operands, *compress(tangents, active), *integers])
    if call.kernels is not Kernels.VALUE:
        return outputs, fused_p.bind(*arrays, call=call.then(active))
    *results, t_m = _tangent(*arrays, call=call.then(active), m=outputs[-1])
    return outputs, [*results, rules.zero(outputs[-1]) if t_m is None else t_m]


fused_p = rules.derived_primitive("eqfuse_fused", definition, _abstract, _jvp)
