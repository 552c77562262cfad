"""Rules of JAX primitives that have a definition in terms of others."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from eqfuse.ops.ir.form import Form

STATIC = "form", "num_rows", "num_nodes", "backend", "call"


def compiled(primitive):
    """Return the rule for calls outside `jit`, compiled once for each call and shapes."""

    @functools.partial(jax.jit, static_argnames=STATIC)
    def bind(*arrays, **params):
        return primitive.bind(*arrays, **params)

    @functools.wraps(bind)
    def implementation(*arrays, **params):
        with jax.disable_jit(False):  # under `jax.disable_jit`, the primitive would bind itself
            return bind(*arrays, **params)

    return implementation


def defined_primitive(name: str, function, abstract, *, jvp=None, transpose=None) -> Primitive:
    """Make a primitive whose rules, but for those given, follow from its definition `function`."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(compiled(primitive))
    primitive.def_abstract_eval(abstract)
    ad.primitive_jvps[primitive] = jvp or jvp_of(function)
    ad.primitive_transposes[primitive] = transpose or functools.partial(transpose_of, function)
    batching.primitive_batchers[primitive] = batch_of(function)
    definitions[primitive] = function
    return primitive


definitions: dict[Primitive, Callable] = {}
"""The functions that the primitives of `defined_primitive` stand for."""


def x64_of(*avals):
    """Return a context that computes these in float64, though the user's own may have ended."""
    is_wide = any(getattr(aval, "dtype", None) in ("float64", "int64") for aval in avals)
    return jax.enable_x64(is_wide or jax.config.jax_enable_x64)


def lowering_by(function) -> Callable:
    """Return the rule that lowers a primitive as a function."""
    rule = mlir.lower_fun(function, multiple_results=True)

    def lower(ctx, *operands, **params):
        with x64_of(*ctx.avals_in, *ctx.avals_out):
            return rule(ctx, *operands, **params)

    return lower


@dataclasses.dataclass(frozen=True)
class Call:
    """The static arguments of one call of a definition, or of a derivative of it.

    `derivatives` are tangents and transposes by turns: which operands of what comes before have a
    tangent, then which of its outputs have a cotangent, and so on. A backward pass has two of them,
    and that of a loss on forces, the gradient of a gradient, has four.

    Operands are those of what comes before (a transpose: of what its tangent is of), then tangents
    or cotangents, then integers. The definition has `num_operands` before its integers.
    """

    derivatives: tuple[tuple[bool, ...], ...] = dataclasses.field(default=(), kw_only=True)

    @property
    def counts(self) -> dict:
        """Return the parameters of a form besides it."""
        return {name: getattr(self, name) for name in ("num_rows", "num_nodes", "backend")}

    @property
    def is_tangent(self) -> bool:
        return len(self.derivatives) % 2 == 1

    @property
    def before(self):
        """Return what this is the tangent or the transpose of."""
        return dataclasses.replace(self, derivatives=self.derivatives[:-1])

    def then(self, chosen):
        """Return the tangent along the chosen operands, or the transpose of the chosen outputs."""
        return dataclasses.replace(self, derivatives=(*self.derivatives, tuple(chosen)))

    def split(self, arrays) -> list:
        """Return the operands, the tangents or cotangents, and the integers."""
        if not self.derivatives:
            return split(arrays, self.num_operands, 0)
        along = self if self.is_tangent else self.before
        return split(arrays, len(along.derivatives[-1]), sum(self.derivatives[-1]))


def derivative(definition, arrays, call: Call) -> list:
    """Return the outputs of a derivative, by the definition of what comes before."""
    operands, others, integers = call.split(arrays)
    if call.is_tangent:
        places = [n for n, active in enumerate(call.derivatives[-1]) if active]
        arrays = [*operands, *integers]
        function, chosen = along(definition, places, arrays, {"call": call.before})
        return jax.jvp(function, chosen, others)[1]

    def linear(*tangents):
        outputs = definition(*operands, *tangents, *integers, call=call.before)
        return list(itertools.compress(outputs, call.derivatives[-1]))

    chosen = itertools.compress(operands, call.before.derivatives[-1])
    avals = [jax.typeof(array).update(weak_type=False) for array in chosen]
    return list(jax.linear_transpose(linear, *avals)(others))


def derived_primitive(name: str, definition, abstract, jvp) -> Primitive:
    """Make a primitive of a definition and, by its `Call`, of derivatives of every order.

    `abstract` is of the definition alone.
    """

    def abstract_of(*arrays, call: Call):
        if call.is_tangent:
            return abstract_of(*arrays, call=call.before)
        if call.derivatives:
            arrays = itertools.compress(arrays, call.before.derivatives[-1])
            return [a.update(weak_type=False) for a in arrays]
        return abstract(*arrays, call=call)

    def transpose(cotangents, *arrays, call: Call):
        operands, tangents, integers = call.split(arrays)
        is_whole = not any(map(ad.is_undefined_primal, operands))
        if not (call.is_tangent and is_whole and all(map(ad.is_undefined_primal, tangents))):
            return transpose_of(definition, cotangents, arrays, call=call)
        cotangents = given(cotangents)
        reached = [c is not None for c in cotangents]
        arrays = vary_alike([*operands, *itertools.compress(cotangents, reached), *integers])
        results = primitive.bind(*arrays, call=call.then(reached))
        return [None] * len(operands) + list(results) + [None] * len(integers)

    primitive = defined_primitive(name, definition, abstract_of, jvp=jvp, transpose=transpose)
    return primitive


def split(arrays, *sizes: int) -> list:
    """Return parts of these sizes, and the rest, such as index arrays."""
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = [arrays[a:b] for a, b in itertools.pairwise(ends)]
    return [*map(list, parts), list(arrays[ends[-1] :])]


def zero(out) -> ad.Zero:
    """Return the tangent of an output that does not change."""
    return ad.Zero(jax.typeof(out).to_tangent_aval())


def along(function, places, arrays, params) -> tuple[Callable, list]:
    """Return a definition as a function of the operands at some places, and these operands."""

    def restricted(*chosen):
        full = list(arrays)
        for n, a in zip(places, chosen, strict=True):
            full[n] = a
        return function(*full, **params)

    return restricted, [arrays[n] for n in places]


def transpose_of(function, cotangents, arrays, **params):
    """Return the transpose of a definition with respect to the operands that are unknown."""
    cotangents = [ad.instantiate_zeros(c) for c in cotangents]
    linear = [n for n, a in enumerate(arrays) if ad.is_undefined_primal(a)]
    avals = [arrays[n].aval.update(weak_type=False) for n in linear]
    restricted, _ = along(function, linear, arrays, params)
    results = iter(jax.linear_transpose(restricted, *avals)(cotangents))
    return [next(results) if ad.is_undefined_primal(a) else None for a in arrays]


def jvp_of(function):
    """Return the JVP of a definition, along the operands whose tangents are not zero."""

    def rule(primals, tangents, **params):
        active = [n for n, t in enumerate(tangents) if type(t) is not ad.Zero]
        restricted, chosen = along(function, active, primals, params)
        return jax.jvp(restricted, chosen, [tangents[n] for n in active])

    return rule


def batch_of(function):
    """Return `vmap` of a definition: composed, not fused."""

    def rule(arrays, dims, **params):
        results = jax.vmap(functools.partial(function, **params), in_axes=list(dims))(*arrays)
        return results, [0] * len(results)

    return rule


def check_axes(*arrays) -> None:
    """Refuse arrays that explicit axes of a mesh shard: kernels compute what one device holds."""
    if any(any(jax.typeof(a).sharding.spec) for a in arrays):
        raise ValueError(
            "an op has an array that is sharded over explicit axes of a mesh; call it inside "
            "jax.shard_map, or make the mesh with axis_types of jax.sharding.AxisType.Auto"
        )


def vary_alike(arrays):
    """Return arrays that all vary over the mesh axes of `shard_map` that any varies over."""
    check_axes(*arrays)
    axes = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    union = frozenset().union(*axes)
    return [
        jax.lax.pcast(a, tuple(union - own), to="varying") if union - own else a
        for a, own in zip(arrays, axes, strict=True)
    ]


def multilinear_primitive(name: str) -> Primitive:
    """Return a primitive of a form with all rules but batching and lowering."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(compiled(primitive))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, primitive)
    pe.dce_rules[primitive] = _dce
    return primitive


def bind_reached(primitive, form: Form, arrays, integers, params) -> list:
    """Return a form's outputs, None for one that is zero, from the inputs that something reads."""
    reached = form.reached()
    if not any(reached):
        return [None] * len(reached)
    form = form.restrict(reached)
    used = form.used_inputs()
    arrays = list(itertools.compress(arrays, used))
    arrays += integers if form.needs_integers else ()
    results = iter(primitive.bind(*vary_alike(arrays), form=form.drop_inputs(used), **params))
    return [next(results) if is_reached else None for is_reached in reached]


def bind_tangent(primitive, form: Form, arrays, tangents, integers, params) -> list:
    """Return the tangents of a form's outputs, from those of its inputs; None where one is zero."""
    derivative = form.jvp(tuple(t is not None for t in tangents))
    arrays = [*arrays, *(t for t in tangents if t is not None)]
    return bind_reached(primitive, derivative, arrays, integers, params)


def given(tangents) -> list:
    """Return tangents or cotangents, None for those that JAX knows to be zero."""
    return [None if type(t) is ad.Zero else t for t in tangents]


def _jvp(primitive, primals, tangents, *, form, **params):
    outputs = primitive.bind(*primals, form=form, **params)
    inputs, integers = split(primals, len(form.inputs))
    tangents = given(tangents[: len(inputs)])
    results = bind_tangent(primitive, form, inputs, tangents, integers, params)
    pairs = zip(outputs, results, strict=True)
    return outputs, [zero(out) if t is None else t for out, t in pairs]


def _transpose(primitive, cotangents, *arrays, form, **params):
    inputs, integers = split(arrays, len(form.inputs))
    linear = tuple(map(ad.is_undefined_primal, inputs))
    cotangents = given(cotangents)
    values = [a for a, is_linear in zip(inputs, linear, strict=True) if not is_linear]
    values += [c for c in cotangents if c is not None]
    transposed = form.transpose(linear, tuple(c is not None for c in cotangents))
    values = iter(bind_reached(primitive, transposed, values, integers, params))
    results = []
    for a, is_linear in zip(inputs, linear, strict=True):
        value = next(values) if is_linear else None
        results.append(ad.Zero(a.aval) if is_linear and value is None else value)
    return results + [None] * len(integers)


def _dce(used_outputs, *rest):
    """Leave out outputs that nobody wants, and inputs that only they need.

    JAX 0.12 passes (used outputs, live inputs, equation), earlier versions no live inputs.
    """
    eqn = rest[-1]
    if not any(used_outputs):
        return [False] * len(eqn.invars), None
    n = len(eqn.params["form"].inputs)
    form = eqn.params["form"].restrict(tuple(used_outputs))
    used = form.used_inputs() if any(form.used_inputs()) else (True,) * n
    form = form.drop_inputs(used)
    keep = [*used, *[form.needs_integers] * (len(eqn.invars) - n)]
    invars = list(itertools.compress(eqn.invars, keep))
    outvars = list(itertools.compress(eqn.outvars, used_outputs))
    params = eqn.params | {"form": form}
    return keep, eqn.replace(invars=invars, outvars=outvars, params=params)


@dataclasses.dataclass(frozen=True)
class BatchAxes:
    """Leading axes as rows."""

    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def flatten(self, array, others: int = 1):
        """Return an array [..., *others], whose leading axes broadcast, as [rows, n] or [rows]."""
        check_axes(array)
        rest = array.shape[array.ndim - others :]
        array = jnp.broadcast_to(array, (*self.shape, *rest))
        return array.reshape((self.count, math.prod(rest)) if others else self.count)

    def unflatten(self, rows):
        """Return [rows, n] as [..., n]."""
        return rows.reshape(*self.shape, rows.shape[-1])
