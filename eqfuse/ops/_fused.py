"""Product, Linear and gate as one JAX primitive, with its derivatives.

    z = Linear(product(x, y, w)) + skip,    out = gate(z)

Three primitives: the op; its tangent, linear in the tangents; and its backward, the transpose of
the tangent. On a GPU the op and its backward are fused kernels. Everything else (the tangent, the
derivatives of the backward, `vmap`) is composed by JAX itself from the definitions below: of the
kernels of the product, of the mixing, and of the gate in jax.numpy, so that no derivative is
missing at any order.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from eqfuse.ops import _gate, _mixing_primitive, _primitive
from eqfuse.ops._form import Form, Index
from eqfuse.ops._gate import Gate
from eqfuse.ops._linear import Linear


@dataclasses.dataclass(frozen=True)
class Fused:
    """What is fused. Operands: the form's inputs, the Linear's parameters, the skip if any.

    Attributes:
      form: the product; its one output is mixed.
      linear: the Linear.
      gate: what becomes of the mixed row; None if nothing.
      skip: whether a row [rows, linear.size_out] is added before the gate.
    """

    form: Form
    linear: Linear
    gate: Gate | None
    skip: bool

    @classmethod
    def build(cls, form: Form, linear: Linear, gate: Gate | None, skip: bool) -> "Fused":
        """The op, without those paths of the product that the Linear does not read."""
        [out] = form.outputs
        read = [b for n, b in enumerate(linear.blocks_in) if linear.reads(n)]
        paths = tuple(
            p for p in form.paths if any(b.holds(out.segments[p.output.segment]) for b in read)
        )
        return cls(dataclasses.replace(form, paths=paths), linear, gate, skip)

    @property
    def num_sets(self) -> int:
        return self.linear.mixing.num_sets

    @property
    def num_floats(self) -> int:
        return len(self.form.inputs) + len(self.linear.parameters) + self.skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the rows of the outputs: out and, if it is another array, z."""
        gated = () if self.gate is None else (self.gate.irreps_out.dim,)
        return (*gated, self.linear.size_out)

    def cotangents(self, given) -> list[str]:
        """Names of the cotangents of the outputs that are given, in their order."""
        names = ["ct_z"] if self.gate is None else ["ct_out", "ct_z"]
        return [name for name, is_given in zip(names, given, strict=True) if is_given]

    def operands(self, floats):
        """(inputs of the form, parameters of the Linear, skip or None)."""
        n = len(self.form.inputs)
        m = n + len(self.linear.parameters)
        return list(floats[:n]), list(floats[n:m]), (floats[m] if self.skip else None)

    def split(self, integers):
        """(the index of the weights or None, the index arrays by name)."""
        index, *arrays = integers if self.num_sets else (None, *integers)
        return index, dict(zip(_primitive.INDEX_ARRAYS, arrays, strict=False))


@dataclasses.dataclass(frozen=True)
class Call:
    """The static arguments of one call."""

    fused: Fused
    num_rows: int
    num_nodes: int
    backend: str

    @property
    def rows(self) -> int:
        """Rows of the output."""
        over_rows = self.fused.form.outputs[0].index is Index.ROW
        return self.num_rows if over_rows else self.num_nodes


def product(call: Call, form: Form, inputs, integers):
    """A form on the operands of a call."""
    _, arrays = call.fused.split(integers)
    return _primitive.form_p.bind(
        *inputs,
        *arrays.values(),
        form=form,
        num_rows=call.num_rows,
        num_nodes=call.num_nodes,
        backend=call.backend,
    )


def _apply_gate(fused: Fused, z):
    return z if fused.gate is None else _gate.apply_gate(fused.gate, fused.linear, z)


def define(call: Call, floats, integers):
    """out and z (or only z, where nothing follows it), from the definitions of the parts."""
    fused = call.fused
    inputs, parameters, skip = fused.operands(floats)
    index, _ = fused.split(integers)
    [m] = product(call, fused.form, inputs, integers)
    [z] = _mixing_primitive.evaluate(
        fused.linear.mixing, [m, *parameters], index, call.rows, call.backend
    )
    z = z if skip is None else z + skip
    return [z] if fused.gate is None else [_apply_gate(fused, z), z]


def define_tangent(call: Call, active, floats, z, tangents, integers):
    """Tangents of the outputs, linear in the tangents of the active operands."""
    fused = call.fused
    inputs, parameters, _ = fused.operands(floats)
    tangents = iter(tangents)
    given = [next(tangents) if a else None for a in active]
    t_inputs, t_parameters, t_skip = fused.operands(given)
    index, _ = fused.split(integers)
    m = t_m = None
    if any(t is not None for t in t_inputs):
        form = fused.form.jvp(tuple(t is not None for t in t_inputs))
        used = form.used_inputs()
        arrays = [*inputs, *(t for t in t_inputs if t is not None)]
        arrays = [a for a, keep in zip(arrays, used, strict=True) if keep]
        [t_m] = product(call, form.drop_inputs(used), arrays, integers)
    if any(t is not None for t in t_parameters):
        [m] = product(call, fused.form, inputs, integers)
    t_z = _mixing_primitive.tangent(
        fused.linear.mixing,
        [m, *parameters],
        [t_m, *t_parameters],
        index,
        call.rows,
        call.backend,
    )
    t_z = t_skip if t_z is None else t_z if t_skip is None else t_z + t_skip
    t_z = jnp.zeros_like(z) if t_z is None else t_z
    if fused.gate is None:
        return [t_z]
    return [jax.jvp(functools.partial(_apply_gate, fused), (z,), (t_z,))[1], t_z]


def define_backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Cotangents of the wanted operands, from those of the outputs that are `given`, not zero."""
    cotangents = iter(cotangents)
    cotangents = [
        next(cotangents) if is_given else jnp.zeros((call.rows, size), z.dtype)
        for is_given, size in zip(given, call.fused.sizes, strict=True)
    ]

    def tangent(*tangents):
        return define_tangent(call, wanted, floats, z, tangents, integers)

    shapes = [
        jax.ShapeDtypeStruct(f.shape, f.dtype) for f, w in zip(floats, wanted, strict=True) if w
    ]
    return list(jax.linear_transpose(tangent, *shapes)(cotangents))


fused_p = Primitive("eqfuse_fused")
tangent_p = Primitive("eqfuse_fused_tangent")
backward_p = Primitive("eqfuse_fused_backward")


def evaluate(call: Call, floats, integers):
    """The output of a fused op. `floats`, `integers`: its operands, as in `Fused`."""
    arrays = _primitive._vary_alike([*floats, *integers])
    return fused_p.bind(*arrays, call=call)[0]


def _compiled(primitive):
    """Outside `jit`: compiled once for each call and shapes."""

    @functools.partial(jax.jit, static_argnames=("call", "active", "wanted", "given", "reached"))
    def bind(*arrays, **params):
        return primitive.bind(*arrays, **params)

    return bind


def _fused_function(*arrays, call):
    return define(call, arrays[: call.fused.num_floats], arrays[call.fused.num_floats :])


def _tangent_arguments(arrays, call, active):
    n = call.fused.num_floats
    m = n + 1 + sum(active)
    return arrays[:n], arrays[n], arrays[n + 1 : m], arrays[m:]


def _tangent_function(*arrays, call, active):
    return define_tangent(call, active, *_tangent_arguments(arrays, call, active))


def _backward_arguments(arrays, call, given):
    n = call.fused.num_floats
    m = n + 1 + sum(given)
    return arrays[:n], arrays[n], arrays[n + 1 : m], arrays[m:]


def _backward_function(*arrays, call, wanted, given):
    return define_backward(call, wanted, given, *_backward_arguments(arrays, call, given))


for _p, _function in (
    (fused_p, _fused_function),
    (tangent_p, _tangent_function),
    (backward_p, _backward_function),
):
    _p.multiple_results = True


@fused_p.def_abstract_eval
def _fused_abstract(*arrays, call):
    return [arrays[0].update(shape=(call.rows, s), weak_type=False) for s in call.fused.sizes]


@tangent_p.def_abstract_eval
def _tangent_abstract(*arrays, call, active):
    return _fused_abstract(*arrays, call=call)


@backward_p.def_abstract_eval
def _backward_abstract(*arrays, call, wanted, given):
    floats = arrays[: call.fused.num_floats]
    return [a.update(weak_type=False) for a, w in zip(floats, wanted, strict=True) if w]


def _fused_jvp(primals, tangents, *, call):
    n = call.fused.num_floats
    outputs = fused_p.bind(*primals, call=call)
    active = tuple(type(t) is not ad.Zero for t in tangents[:n])
    given = [t for t in tangents[:n] if type(t) is not ad.Zero]
    arrays = _primitive._vary_alike([*primals[:n], outputs[-1], *given, *primals[n:]])
    return outputs, tangent_p.bind(*arrays, call=call, active=active)


def _tangent_transpose(cotangents, *arrays, call, active):
    floats, z, tangents, integers = _tangent_arguments(arrays, call, active)
    if any(map(ad.is_undefined_primal, (*floats, z))) or not all(
        map(ad.is_undefined_primal, tangents)
    ):
        # linear in some of the tangents only
        cotangents = _instantiated(cotangents)
        return _transpose_of(_tangent_function, cotangents, arrays, call=call, active=active)
    given = tuple(type(c) is not ad.Zero for c in cotangents)
    cotangents = [c for c in cotangents if type(c) is not ad.Zero]
    arrays = _primitive._vary_alike([*floats, z, *cotangents, *integers])
    results = backward_p.bind(*arrays, call=call, wanted=active, given=given)
    return [None] * (len(floats) + 1) + list(results) + [None] * len(integers)


def _backward_transpose(cotangents, *arrays, **params):
    return _transpose_of(_backward_function, _instantiated(cotangents), arrays, **params)


def _instantiated(cotangents):
    return [jnp.zeros(c.aval.shape, c.aval.dtype) if type(c) is ad.Zero else c for c in cotangents]


def _transpose_of(function, cotangents, arrays, **params):
    """The transpose of a definition with respect to the operands that are unknown."""
    linear = [n for n, a in enumerate(arrays) if ad.is_undefined_primal(a)]

    def restricted(*unknown):
        full = list(arrays)
        for n, a in zip(linear, unknown, strict=True):
            full[n] = a
        return function(*full, **params)

    shapes = [jax.ShapeDtypeStruct(arrays[n].aval.shape, arrays[n].aval.dtype) for n in linear]
    found = iter(jax.linear_transpose(restricted, *shapes)(list(cotangents)))
    return [next(found) if ad.is_undefined_primal(a) else None for a in arrays]


def _jvp_of(function):
    """The JVP of a definition, along the operands whose tangents are not zero."""

    def rule(primals, tangents, **params):
        active = [n for n, t in enumerate(tangents) if type(t) is not ad.Zero]

        def restricted(*arrays):
            full = list(primals)
            for n, a in zip(active, arrays, strict=True):
                full[n] = a
            return function(*full, **params)

        return jax.jvp(restricted, [primals[n] for n in active], [tangents[n] for n in active])

    return rule


def _backward_jvp(primals, tangents, *, call, **params):
    """A primitive of its own where that is a kernel of its own, too."""
    from eqfuse.ops import _fused_native

    rule = _jvp_of(_backward_function)
    rule = _fused_native.backward_jvp if _fused_native.is_native(call) else rule
    return rule(primals, tangents, call=call, **params)


def _batch_of(function):
    """`vmap` of a definition: composed, not fused."""

    def rule(arrays, dims, **params):
        axes = list(dims)
        results = jax.vmap(functools.partial(function, **params), in_axes=axes)(*arrays)
        return results, [0] * len(results)

    return rule


ad.primitive_jvps[fused_p] = _fused_jvp
ad.primitive_jvps[tangent_p] = _jvp_of(_tangent_function)
ad.primitive_jvps[backward_p] = _backward_jvp
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
for _p, _function in (
    (fused_p, _fused_function),
    (tangent_p, _tangent_function),
    (backward_p, _backward_function),
):
    _p.def_impl(_compiled(_p))
    prim_requires_devices_during_lowering.add(_p)  # as the forms that they are lowered to
    batching.primitive_batchers[_p] = _batch_of(_function)


def _lower_fused(*arrays, call):
    n = call.fused.num_floats
    if not call.backend.startswith("triton") or not _has_kernels(call):
        return _composed(_fused_function, arrays, call=call)
    from eqfuse.ops import _fused_run

    return _fused_run.forward(call, arrays[:n], arrays[n:])


def _lower_backward(*arrays, call, wanted, given):
    if not call.backend.startswith("triton") or not _has_kernels(call):
        return _composed(_backward_function, arrays, call=call, wanted=wanted, given=given)
    from eqfuse.ops import _fused_run

    return _fused_run.backward(call, wanted, given, *_backward_arguments(arrays, call, given))


def _composed(function, arrays, call, **params):
    """A definition as it is, or as one native kernel."""
    from eqfuse.ops import _fused_native

    return _fused_native.run(functools.partial(function, call=call, **params), arrays, call)


def _has_kernels(call: Call) -> bool:
    """Whether there is work for a kernel: rows, and something to mix, that it owns."""
    if call.fused.form.on_graph and call.fused.form.outputs[0].index is not Index.RECEIVER:
        return False
    matrices = any(term.x is not None for term in call.fused.linear.mixing.terms)
    return bool(call.rows and call.num_rows and call.fused.form.paths and matrices)


mlir.register_lowering(fused_p, mlir.lower_fun(_lower_fused, multiple_results=True))
mlir.register_lowering(tangent_p, mlir.lower_fun(_tangent_function, multiple_results=True))
mlir.register_lowering(backward_p, mlir.lower_fun(_lower_backward, multiple_results=True))
