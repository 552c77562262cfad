"""The definition of a fused op and of its derivatives.

They are composed of the kernels of the product, of the linear form, and of the gate in
jax.numpy; `primitives.fused` decides where one kernel takes their place.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from eqfuse.ops.backends.xla import gates
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.gate_forms import forms_of
from eqfuse.ops.primitives import activation, forms, linear_forms, rules


@dataclasses.dataclass(frozen=True)
class Call:
    """The static arguments of one call.

    Attributes:
      fuses: whether one kernel each way is to compute it, see `choice`.
      in_blocks: whether the kernels of its parts are to compute some rows at a time, see `blocks`.
      forward_only: whether the kernels of its parts are to compute its derivatives.
    """

    fused: Fused
    num_rows: int
    num_nodes: int
    backend: str
    fuses: bool = False
    in_blocks: bool = False
    forward_only: bool = False

    @property
    def by_rows(self) -> bool:
        """Return whether it is fused over rows on a GPU, and so are its first two derivatives."""
        over_rows = not (self.fused.summed or self.fused.only_mixes)
        return self.fuses and self.backend.startswith("triton") and over_rows

    @property
    def keeps_sums(self) -> bool:
        """Return whether the product is an output too: the sums of nodes, for its derivatives."""
        return self.fuses and self.fused.summed and self.backend.startswith("triton")

    @property
    def mixes_rows(self) -> bool:
        """Return whether it is fused on a GPU and is what follows the sums of nodes."""
        return self.fuses and self.fused.only_mixes and self.backend.startswith("triton")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the rows of all outputs."""
        sums = [self.fused.form.outputs[0].size] if self.keeps_sums else []
        return (*self.fused.sizes, *sums)

    @property
    def num_output_rows(self) -> int:
        """Return how many rows the output has."""
        return self.num_nodes if self.fused.summed else self.num_rows

    @property
    def is_native(self) -> bool:
        """Return whether native kernels of the whole op run it."""
        return self.backend == "llvm" and self.fuses


def product(call: Call, form: Form, inputs, integers):
    """Return a form on the operands of a call."""
    if call.fused.only_mixes:
        return list(inputs)
    _, arrays = call.fused.split(integers)
    return forms.form_p.bind(
        *inputs,
        *arrays.values(),
        form=form,
        num_rows=call.num_rows,
        num_nodes=call.num_nodes,
        backend=call.backend,
    )


def _apply_gate(call: Call, z):
    fused = call.fused
    if call.is_native:
        return activation.gated(forms_of(fused.gate, fused.linear), z, call.backend)
    return gates.apply_gate(fused.gate, fused.linear, z)


def _gate_tangent(call: Call, z, t_z):
    fused = call.fused
    if call.is_native:
        return activation.gated_tangent(forms_of(fused.gate, fused.linear), z, t_z, call.backend)
    return jax.jvp(functools.partial(_apply_gate, call), (z,), (t_z,))[1]


def forward(call: Call, floats, integers):
    """Return out and z (only the arrays of z, where nothing follows it), part by part.

    The sums of nodes come last, if they are kept.
    """
    fused = call.fused
    inputs, parameters, skip = fused.operands(floats)
    index, _ = fused.split(integers)
    [m] = product(call, fused.form, inputs, integers)
    arrays = linear_forms.evaluate(
        fused.linear.linear_form, [m, *parameters], index, call.num_output_rows, call.backend
    )
    if skip is not None:
        arrays = [arrays[0] + skip]
    gated = [] if fused.gate is None else [_apply_gate(call, arrays[0])]
    return [*gated, *arrays, *([m] if call.keeps_sums else [])]


def _zeros(rows: int, size: int, like):
    """Return zeros that are like an array: of its dtype, and varying as it in `shard_map`."""
    zeros, _ = rules.vary_alike([jnp.zeros((rows, size), like.dtype), like])
    return zeros


def product_tangent(call: Call, inputs, tangents, integers):
    """Return the tangent of the product, or None where it is zero.

    Args:
      tangents: of each input, or None.
    """
    given = [t for t in tangents if t is not None]
    if not given:
        return None
    form = call.fused.form.jvp(tuple(t is not None for t in tangents))
    used = form.used_inputs()
    arrays = [a for a, keep in zip([*inputs, *given], used, strict=True) if keep]
    return product(call, form.drop_inputs(used), arrays, integers)[0] if form.paths else None


def forward_tangent(call: Call, active, floats, z, tangents, integers):
    """Return tangents of the outputs, linear in the tangents of the active operands."""
    fused = call.fused
    inputs, parameters, _ = fused.operands(floats)
    tangents = iter(tangents)
    given = [next(tangents) if a else None for a in active]
    t_inputs, t_parameters, t_skip = fused.operands(given)
    index, _ = fused.split(integers)
    m, t_m = None, product_tangent(call, inputs, t_inputs, integers)
    if any(t is not None for t in t_parameters):
        [m] = product(call, fused.form, inputs, integers)
    results = linear_forms.tangent(
        fused.linear.linear_form,
        [m, *parameters],
        [t_m, *t_parameters],
        index,
        call.num_output_rows,
        call.backend,
    )
    if t_skip is not None:
        results = [t_skip if results[0] is None else results[0] + t_skip]
    sizes = [rows.size for rows in fused.linear.linear_form.outputs]
    results = [
        _zeros(call.num_output_rows, size, z) if t is None else t
        for t, size in zip(results, sizes, strict=True)
    ]
    if fused.gate is None:
        return results
    return [_gate_tangent(call, z, *results), *results]


def backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Return cotangents of the wanted operands, from the `given` ones of the outputs."""

    def tangent(*tangents):
        outputs = forward_tangent(call, wanted, floats, z, tangents, integers)
        return [t for t, is_given in zip(outputs, given, strict=True) if is_given]

    avals = [rules.abstract(f) for f, w in zip(floats, wanted, strict=True) if w]
    return list(jax.linear_transpose(tangent, *avals)(list(cotangents)))


def gradients(call: Call, wanted, floats, dz, integers):
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    fused = call.fused
    plain = Fused.build(fused.form, fused.linear, None, False)
    inputs, parameters, _ = fused.operands(floats)
    wanted = (*(False for _ in inputs), *wanted)
    call = dataclasses.replace(call, fused=plain)
    given = (True,) * len(dz)
    return backward(call, wanted, given, [*inputs, *parameters], dz[0], dz, integers)


def backward_tangent(call: Call, wanted, given, active, operands, tangents, integers):
    """Return tangents of the backward, linear in those of active floats, z and cotangents."""
    n = call.fused.num_floats

    def restricted(*changed):
        changed = iter(changed)
        full = [next(changed) if a else x for x, a in zip(operands, active, strict=True)]
        return backward(call, wanted, given, full[:n], full[n], full[n + 1 :], integers)

    changed = [x for x, a in zip(operands, active, strict=True) if a]
    return jax.jvp(restricted, changed, list(tangents))[1]
