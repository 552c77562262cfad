"""Lowerings of the primitives: kernels or definitions."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from eqfuse.ops.backends.triton.primitive import launch_p
from eqfuse.ops.primitives import forms, gpu_layer, layer, measured, rules
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.measured import LookedUp, Problem


def _lower_fused(*arrays, call):
    """Compute a fused op or its derivative: by a kernel of the whole, or as it is defined."""
    if kernel := gpu_layer.KERNELS.get((call.kernels, len(call.derivatives))):
        return kernel(*arrays, call=call)
    return layer.definition(*arrays, call=call)


lowerings: dict[Primitive, Callable] = {**forms.lowerings, layer.fused_p: _lower_fused}
for _primitive, _function in lowerings.items():
    mlir.register_lowering(_primitive, rules.lowering_by(_function))


def compile_ahead(function, *args, target: str | None = None, threads: int | None = None):
    """Compile all Triton kernels of `function` that are not in the cache, in parallel.

    A jitted function compiles its kernels one after the other when it is called first; after this,
    it finds them. Ops on other backends than "triton" have no kernels and are passed over.

    Args:
      function: of JAX arrays, jitted or not, such as a training step.
      args: its arguments, arrays or jax.ShapeDtypeStructs in any pytree.
      target: "sm_90", "gfx942" or their like; that of JAX's devices if None.
      threads: how many; as many as there are processors if None.
    Returns:
      A compiled kernel for each distinct kernel of the function, in the order of their use.
    Raises:
      ValueError: no target is given and JAX has no GPU, or GPUs of several kinds.
      RuntimeError: a kernel that does not compile, with the compiler's message.
    """
    specs = list(dict.fromkeys(_specs(_used(function, args))))
    if not specs:
        return []
    from eqfuse.ops.backends.triton.compile import compile_many
    from eqfuse.ops.backends.triton.runtime import common_target

    target = target or common_target(jax.devices())
    if target is None:
        raise ValueError("JAX has no GPU here; give what to compile for, as in target='sm_90'")
    return compile_many(specs, target, threads)


def ops_of(function, *args) -> dict[Problem, int]:
    """Return the fused ops of `function` to measure, with the order of the highest derivative.

    Those within `jax.vmap`, which have another number of rows there, and within `jax.shard_map`
    are left out.
    """
    with measured.collecting(LookedUp()):
        traced = jax.make_jaxpr(function)(*args)
    orders: dict[Problem, int] = {}
    for equation in _equations(traced.jaxpr):
        call = equation.params.get("call")
        if equation.primitive is layer.fused_p and call.kernels is Kernels.MEASURED:
            dtype = equation.invars[0].aval.dtype
            sizes = call.num_rows, call.num_nodes
            problem = Problem.of(call.fused, *sizes, call.backend, dtype)
            order = min(2, -(-len(call.derivatives) // 2))
            orders[problem] = max(order, orders.get(problem, 0))
    return orders


def plans_of(function, *args) -> dict[Problem, int]:
    """Return the forms of `function` whose kernels on a GPU have several plans, each of order 0."""
    used = _used(function, args)
    with measured.collecting(found := LookedUp()):
        list(_specs(used))
    return dict.fromkeys(found.problems, 0)


def _used(function, args) -> Jaxpr:
    """Return what a function computes, as JAX lowers it: without what is never used."""
    traced = jax.jit(function).trace(*args).jaxpr.jaxpr
    return pe.dce_jaxpr(traced, [True] * len(traced.outvars))[0]


def _specs(jaxpr: Jaxpr):
    for equation in _equations(jaxpr):
        params = equation.params
        if equation.primitive in lowerings:
            backend = params["call"].backend if "call" in params else params["backend"]
            if backend == "triton":
                lower = functools.partial(lowerings[equation.primitive], **params)
                avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
                yield from _specs(jax.make_jaxpr(lower)(*avals).jaxpr)
        if equation.primitive is launch_p:
            yield params["spec"]


def _equations(jaxpr: Jaxpr):
    """Yield the equations of a jaxpr, and of those within."""

    def is_jaxpr(value) -> bool:
        return isinstance(value, Jaxpr | ClosedJaxpr)

    for equation in jaxpr.eqns:
        yield equation
        params = list(equation.params.values())
        for inner in filter(is_jaxpr, jax.tree.leaves(params, is_leaf=is_jaxpr)):
            yield from _equations(getattr(inner, "jaxpr", inner))
