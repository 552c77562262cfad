"""Compile the kernels of a whole computation in parallel, before JAX asks for them one by one.

This is in the layer of the primitives since it lowers those of a trace to find their kernels.
"""

from __future__ import annotations

import functools

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters import partial_eval as pe

from eqfuse.ops.backends.triton.launch import launch_p
from eqfuse.ops.primitives.lowering import lowerings


def _backend(params) -> str:
    return params["call"].backend if "call" in params else params["backend"]


def compile_ahead(function, *args, target: str | None = None, processes: int | None = None):
    """Compile all Triton kernels of `function` that are not in the cache, in parallel processes.

    A jitted function compiles its kernels one after the other when it is called first; after this,
    it finds them. Ops on other backends than "triton" have no kernels and are passed over.

    Args:
      function: of JAX arrays, jitted or not, such as a training step.
      args: its arguments, arrays or jax.ShapeDtypeStructs in any pytree.
      target: "sm_90", "gfx942" or their like; that of JAX's devices if None.
      processes: how many; as many as there are processors if None.
    Returns:
      A compiled kernel for each distinct kernel of the function, in the order of their use.
    Raises:
      ValueError: no target is given and JAX has no GPU, or GPUs of several kinds.
      RuntimeError: a kernel that does not compile, with the compiler's message.
    """
    traced = jax.jit(function).trace(*args).jaxpr.jaxpr
    # as JAX does before it lowers, so that no kernel is compiled that is never run
    used, _ = pe.dce_jaxpr(traced, [True] * len(traced.outvars))
    specs = list(dict.fromkeys(_specs(used)))
    if not specs:
        return []
    from eqfuse.ops.backends.triton.runtime.launch import common_target
    from eqfuse.ops.backends.triton.runtime.parallel import compile_many

    target = target or common_target(jax.devices())
    if target is None:
        raise ValueError("JAX has no GPU here; give what to compile for, as in target='sm_90'")
    return compile_many(specs, target, processes)


def _specs(jaxpr: Jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive in lowerings and _backend(equation.params) == "triton":
            lower = functools.partial(lowerings[equation.primitive], **equation.params)
            avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
            yield from _specs(jax.make_jaxpr(lower)(*avals).jaxpr)
        if equation.primitive is launch_p:
            yield equation.params["spec"]
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: isinstance(p, Jaxpr | ClosedJaxpr)
        ):
            if isinstance(inner, Jaxpr | ClosedJaxpr):
                yield from _specs(getattr(inner, "jaxpr", inner))
