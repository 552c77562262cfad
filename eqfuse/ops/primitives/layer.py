"""The fused op as five JAX primitives, each a derivative of the one before.

What no kernel computes, JAX composes from the definitions here, at any order. Where `choice`
decides against kernels of the whole, an op is its definition from the start: JAX keeps the product
for the backward.
"""

from __future__ import annotations

import dataclasses
import functools
from itertools import compress

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from eqfuse.ops.backends import xla
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.ir.fused import Fused, forms_of
from eqfuse.ops.primitives import choice, forms, rules
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.rules import split


@dataclasses.dataclass(frozen=True)
class Call:
    """The static arguments of one call; `kernels` is what computes it."""

    fused: Fused
    num_rows: int
    num_nodes: int
    backend: str
    kernels: Kernels = Kernels.APART

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the rows of all outputs; the sums of nodes come last, if kept."""
        sums = [self.fused.form.outputs[0].size] if self.kernels.keeps_sums else []
        return (*self.fused.sizes, *sums)

    @property
    def num_output_rows(self) -> int:
        return self.num_nodes if self.fused.summed else self.num_rows

    @property
    def counts(self) -> dict:
        """Return the parameters of `form_p` besides the form."""
        names = "num_rows", "num_nodes", "backend"
        return {name: getattr(self, name) for name in names}


def product(call: Call, form: Form, inputs, integers):
    """Return a form on the operands of a call."""
    if call.fused.is_epilogue:
        return list(inputs)
    _, arrays = call.fused.split(integers)
    return forms.form_p.bind(*inputs, *arrays.values(), form=form, **call.counts)


def _product_tangent(call: Call, inputs, tangents, integers):
    """Return the tangent of the product, from that of each input or None; None where it is zero."""
    if call.fused.is_epilogue:
        return tangents[0]
    arrays = list(call.fused.split(integers)[1].values())
    form = call.fused.form
    return rules.bind_tangent(forms.form_p, form, inputs, tangents, arrays, call.counts)[0]


def _apply_gate(call: Call, z):
    fused = call.fused
    if call.kernels is Kernels.NATIVE:
        return forms.gated(forms_of(fused.gate, fused.linear), z, call.backend)
    return xla.apply_gate(fused.gate, fused.linear, z)


def _gate_tangent(call: Call, z, t_z):
    fused = call.fused
    if call.kernels is Kernels.NATIVE:
        return forms.gated_tangent(forms_of(fused.gate, fused.linear), z, t_z, call.backend)
    return jax.jvp(functools.partial(_apply_gate, call), (z,), (t_z,))[1]


def evaluate(call: Call, floats, integers):
    """Return the gated row of a fused op, or the arrays of the pre-activation."""
    if not call.num_rows or not call.num_output_rows:
        call = dataclasses.replace(call, kernels=Kernels.APART)
    compute = {Kernels.APART: _fused, Kernels.BLOCKS: _in_blocks}.get(call.kernels, fused_p.bind)
    outputs = compute(*rules.vary_alike([*floats, *integers]), call=call)
    return outputs[: len(call.fused.sizes) if call.fused.gate is None else 1]


def _in_blocks(*arrays, call: Call):
    """Return the outputs, some rows at a time; two orders of derivative keep no product of all.

    Rows of a block have their own row of every node.
    """
    fused, dtype, size = call.fused, arrays[0].dtype, choice.BLOCK
    floats, integers = split(arrays, fused.num_floats)
    inputs, parameters, skip = fused.operands(floats)
    index, _ = fused.split(integers)
    form, by_row = fused.form, [a for a in (skip, index) if a is not None]
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
        return _fused(*arrays, *rows, call=part)

    for _ in range(2):  # a derivative undoes one, and training on forces takes two derivatives
        block = jax.checkpoint(block, prevent_cse=False)  # in a loop there is nothing to prevent
    whole = call.num_rows // size * size
    blocks = jax.lax.map(block, [a[:whole].reshape(-1, size, *a.shape[1:]) for a in by_row])
    outputs = [b.reshape(whole, b.shape[-1]) for b in blocks]
    if whole < call.num_rows:
        rest = block([a[whole:] for a in by_row])
        outputs = [jnp.concatenate(pair) for pair in zip(outputs, rest, strict=True)]
    return outputs


def rows_of_nodes(size: int, index: Index, summed: bool) -> Form:
    """Return the form that gathers the row of a node for each edge, or sums those of edges."""
    segment, one = (Segment(0, size, 1, 1),), SegmentRef(0, 0)
    of_edges = Operand("rows", size, segment, True)
    of_nodes = Operand("nodes", size, segment, True, index)
    source, target = (of_edges, of_nodes) if summed else (of_nodes, of_edges)
    return Form((source,), (target,), (Path((one,), one, (((0, 0), 1.0),)),))


# the definitions, of the operands in one list: floats, z, tangents or cotangents, integers


def _fused(*arrays, call):
    """Return out and z (only the arrays of z, where nothing follows it), part by part."""
    fused = call.fused
    floats, integers = split(arrays, fused.num_floats)
    inputs, parameters, skip = fused.operands(floats)
    index, _ = fused.split(integers)
    [m] = product(call, fused.form, inputs, integers)
    arrays = forms.evaluate_linear(
        fused.linear.linear_form, [m, *parameters], index, call.num_output_rows, call.backend
    )
    if skip is not None:
        arrays = [arrays[0] + skip]
    gated = [] if fused.gate is None else [_apply_gate(call, arrays[0])]
    return [*gated, *arrays, *([m] if call.kernels.keeps_sums else [])]


def _tangent(*arrays, call, active):
    """Return tangents of the outputs, linear in the tangents of the active operands."""
    fused = call.fused
    floats, [z], tangents, integers = split(arrays, fused.num_floats, 1, sum(active))
    inputs, parameters, _ = fused.operands(floats)
    t_inputs, t_parameters, t_skip = fused.operands(_scattered(tangents, active))
    index, _ = fused.split(integers)
    m, t_m = None, _product_tangent(call, inputs, t_inputs, integers)
    if any(t is not None for t in t_parameters):
        [m] = product(call, fused.form, inputs, integers)
    results = rules.bind_tangent(
        forms.linear_form_p,
        fused.linear.linear_form,
        [m, *parameters],
        [t_m, *t_parameters],
        [] if index is None else [index],
        {"num_rows": call.num_output_rows, "backend": call.backend},
    )
    if t_skip is not None:
        results = [t_skip if results[0] is None else results[0] + t_skip]
    shapes = [(call.num_output_rows, rows.size) for rows in fused.linear.linear_form.outputs]
    results = [
        rules.vary_alike([jnp.zeros(shape, z.dtype), z])[0] if t is None else t
        for t, shape in zip(results, shapes, strict=True)
    ]
    if fused.gate is None:
        return results
    return [_gate_tangent(call, z, *results), *results]


def _backward(*arrays, call, wanted, given):
    """Return cotangents of the wanted operands, from the `given` ones of the outputs."""
    tangent = functools.partial(_tangent, call=call, active=wanted)
    return _pulled(tangent, arrays, call.fused.num_floats + 1, wanted, given)


def _second(*arrays, call, wanted, given, active):
    """Return tangents of the backward, linear in those of active floats, z and cotangents."""
    operands, tangents, integers = split(arrays, len(active), sum(active))

    def restricted(*changed):
        changed = _scattered(changed, active)
        full = [x if c is None else c for x, c in zip(operands, changed, strict=True)]
        return _backward(*full, *integers, call=call, wanted=wanted, given=given)

    return jax.jvp(restricted, list(compress(operands, active)), tangents)[1]


def _double(*arrays, call, active, reached, **params):
    """Return the transpose of a backward's tangent, from cotangents of the outputs `reached`."""
    tangent = functools.partial(_second, call=call, active=active, **params)
    return _pulled(tangent, arrays, len(active), active, reached)


def _pulled(tangent, arrays, count: int, active, reached) -> list:
    """Return cotangents of the active ones of `count` operands, from those of outputs `reached`."""
    operands, cotangents, integers = split(arrays, count, sum(reached))

    def linear(*tangents):
        return list(compress(tangent(*operands, *tangents, *integers), reached))

    avals = map(rules.abstract, compress(operands, active))
    return list(jax.linear_transpose(linear, *avals)(cotangents))


def _scattered(values, chosen) -> list:
    """Return the values at the places that are chosen, None at the others."""
    values = iter(values)
    return [next(values) if is_chosen else None for is_chosen in chosen]


def _present(values) -> tuple[tuple[bool, ...], list]:
    """Return which values are not None, and those."""
    which = tuple(v is not None for v in values)
    return which, list(compress(values, which))


# their shapes


def _fused_abstract(*arrays, call, **params):
    return [arrays[0].update(shape=(call.num_output_rows, s), weak_type=False) for s in call.sizes]


def _like(chosen: str):
    """Return the rule of outputs that are like the operands which a parameter chooses."""

    def rule(*arrays, **params):
        return [a.update(weak_type=False) for a in compress(arrays, params[chosen])]

    return rule


# their derivatives


def _summed_jvp(primals, tangents, *, call):
    """Go from the tangent of the sums of nodes, which are kept, to those of what follows them."""
    fused, n = call.fused, call.fused.num_floats
    *outputs, m = fused_p.bind(*primals, call=call)
    inputs, _, _ = fused.operands(primals[:n])
    t_inputs, t_parameters, t_skip = fused.operands(rules.given(tangents[:n]))
    t_m = _product_tangent(call, inputs, t_inputs, primals[n:])
    active, changed = _present([t_m, *t_parameters, *([t_skip] if fused.skip else [])])
    floats = [m, *primals[len(inputs) : n]]
    index = primals[n:][: fused.num_sets > 0]
    kernels = Kernels.EPILOGUE if call.kernels is Kernels.NODES else Kernels.APART
    epilogue = Call(fused.epilogue, call.num_nodes, 0, call.backend, kernels)
    arrays = rules.vary_alike([*floats, outputs[-1], *changed, *index])
    t_outputs = tangent_p.bind(*arrays, call=epilogue, active=active)
    t_m = ad.Zero(jax.typeof(m).to_tangent_aval()) if t_m is None else t_m
    return [*outputs, m], [*t_outputs, t_m]


def _fused_jvp(primals, tangents, *, call):
    if call.kernels.keeps_sums:
        return _summed_jvp(primals, tangents, call=call)
    n = call.fused.num_floats
    outputs = fused_p.bind(*primals, call=call)
    active, changed = _present(rules.given(tangents[:n]))
    arrays = rules.vary_alike([*primals[:n], outputs[-1], *changed, *primals[n:]])
    return outputs, tangent_p.bind(*arrays, call=call, active=active)


def _tangent_transpose(cotangents, *arrays, call, active):
    if call.fused.gate is None:  # its kernels take those of all arrays of the pre-activation
        cotangents = rules.instantiated(cotangents)

    def bound(*arrays, reached):
        return backward_p.bind(*arrays, call=call, wanted=active, given=reached)

    definition, count = functools.partial(_tangent, call=call, active=active), call.fused.num_floats
    return _transpose(definition, bound, cotangents, arrays, count + 1, active)


def _transpose(definition, bound, cotangents, arrays, count: int, active):
    """Return the transpose of a tangent of `count` operands along the active ones, by `bound`."""
    operands, tangents, integers = split(arrays, count, sum(active))
    if any(map(ad.is_undefined_primal, operands)) or not all(map(ad.is_undefined_primal, tangents)):
        return rules.transpose_of(definition, cotangents, arrays)  # linear in some tangents only
    reached, cotangents = _present(rules.given(cotangents))
    results = bound(*rules.vary_alike([*operands, *cotangents, *integers]), reached=reached)
    return [None] * len(operands) + list(results) + [None] * len(integers)


def _backward_jvp(primals, tangents, *, call, wanted, given):
    params = {"call": call, "wanted": wanted, "given": given}
    if call.kernels is not Kernels.NATIVE:
        return rules.jvp_of(_backward)(primals, tangents, **params)
    outputs = backward_p.bind(*primals, **params)
    n, m = call.fused.num_floats, call.fused.num_floats + 1 + sum(given)
    active = [type(t) is not ad.Zero for t in tangents[:m]]
    active[n] &= call.fused.gate is not None  # without a gate, the backward does not depend on z
    active = tuple(active)
    if not any(active):
        return outputs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outputs]
    changed = compress(tangents, active)
    arrays = rules.vary_alike([*primals[:m], *changed, *primals[m:]])
    return outputs, second_p.bind(*arrays, active=active, **params)


def _second_transpose(cotangents, *arrays, call, wanted, given, active):
    params = {"call": call, "wanted": wanted, "given": given, "active": active}
    definition = functools.partial(_second, **params)
    bound = functools.partial(double_p.bind, **params)
    return _transpose(definition, bound, cotangents, arrays, len(active), active)


fused_p = rules.defined_primitive("eqfuse_fused", _fused, _fused_abstract, jvp=_fused_jvp)
tangent_p = rules.defined_primitive(
    "eqfuse_fused_tangent", _tangent, _fused_abstract, transpose=_tangent_transpose
)
backward_p = rules.defined_primitive(
    "eqfuse_fused_backward", _backward, _like("wanted"), jvp=_backward_jvp
)
second_p = rules.defined_primitive(
    "eqfuse_fused_second", _second, _like("wanted"), transpose=_second_transpose
)
double_p = rules.defined_primitive("eqfuse_fused_double", _double, _like("active"))

PRIMITIVES = (fused_p, tangent_p, backward_p, second_p, double_p)
