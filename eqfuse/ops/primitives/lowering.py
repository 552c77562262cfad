"""Lowerings of the primitives, kernels or definitions; rows are partitioned over devices here."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe
from jax.sharding import NamedSharding, PartitionSpec

from eqfuse.ops.backends import xla
from eqfuse.ops.backends.triton import primitive as triton
from eqfuse.ops.backends.triton.primitive import launch_p
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index
from eqfuse.ops.primitives import forms, gpu_layer, layer, linear, native
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.rules import definitions, split

# forms


def _form(*args, form, num_rows, num_nodes, backend):
    inputs, indices = split(args, len(form.inputs))
    indices = dict(zip(INDEX_ARRAYS, indices, strict=False))
    if num_rows == 0 or not form.paths:
        return [jnp.zeros(o.shape(num_rows, num_nodes), inputs[0].dtype) for o in form.outputs]

    def computed(form, *inputs):
        if backend == "xla":
            ends = indices.get("senders"), indices.get("receivers")
            dtype = inputs[0].dtype
            return xla.evaluate_form(form, inputs, *ends, num_nodes, num_rows, dtype)
        if form.on_graph or backend == "triton-interpret":  # JAX partitions no Python callback
            return _kernels(form, inputs, indices, num_rows, num_nodes, backend)
        return _over_rows(form, backend)(*inputs)

    return forms.summed(computed, form, inputs)


def _kernels(form: Form, inputs, indices, num_rows: int, num_nodes: int, backend: str):
    if backend == "llvm":
        return native.run(form, inputs, indices, num_rows, num_nodes)
    return triton.run_form(form, inputs, indices, num_rows, num_nodes, backend)


@functools.lru_cache(maxsize=1024)
def _over_rows(form: Form, backend: str):
    """Return a form without a graph: every device computes the rows that it holds."""

    def rows(*inputs):
        return _kernels(form, inputs, {}, inputs[first].shape[0], 0, backend)

    def partition(mesh, arguments, results):
        # none where nothing is sharded: XLA's own kind of sharding has no axes then
        spec = getattr(arguments[first].sharding, "spec", None)
        by_row = NamedSharding(mesh, PartitionSpec(spec[0] if spec else None, None))
        whole = NamedSharding(mesh, PartitionSpec(None, None))
        return mesh, rows, [by_row for _ in results], tuple(by_row if r else whole for r in is_row)

    is_row = [o.index is Index.ROW for o in form.inputs]
    first = is_row.index(True)
    partitioned = custom_partitioning(rows)
    leading = ["i" if r else f"o{n}" for n, r in enumerate(is_row)] + ["i"] * len(form.outputs)
    operands = [f"{axis} c{n}" for n, axis in enumerate(leading)]
    axes = " ".join(operands).split()
    partitioned.def_partition(
        partition,
        sharding_rule=f"{', '.join(operands[: len(form.inputs)])} -> "
        f"{', '.join(operands[len(form.inputs) :])}",
        need_replication_factors=tuple(axis for axis in axes if axis != "i"),
    )
    return partitioned


# Linears


def _linear_form(*arrays, form, num_rows, backend):
    values, index = split(arrays, len(form.inputs))
    if backend.startswith("triton") and num_rows and form.terms:
        return triton.run_linear_form(form, values, index, num_rows, backend)
    index = index[0] if index else None
    if backend == "llvm" and num_rows and form.terms:
        return native.linear(form, values, index, num_rows)
    return xla.evaluate_linear_form(form, values, index, num_rows)


# fused ops


def _layer(primitive: Primitive):
    """Return the lowering of a primitive of `layer`: kernels of the whole, or its definition."""

    def lowered(*arrays, call, **params):
        if kernel := gpu_layer.KERNELS.get((primitive, call.kernels)):
            return kernel(*arrays, call=call, **params)
        if call.kernels in (Kernels.ROWS, Kernels.BLOCKS):
            return gpu_layer.run_in_blocks(primitive, arrays, call, **params)
        function = functools.partial(definitions[primitive], call=call, **params)
        if call.kernels is not Kernels.NATIVE or primitive in (layer.tangent_p, layer.second_p):
            return function(*arrays)
        return native.run_natively(function, arrays, call)

    return lowered


lowerings: dict[Primitive, Callable] = {
    forms.form_p: _form,
    linear.linear_form_p: _linear_form,
    **{p: _layer(p) for p in layer.PRIMITIVES},
}
for _primitive, _function in lowerings.items():
    mlir.register_lowering(_primitive, mlir.lower_fun(_function, multiple_results=True))


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
    from eqfuse.ops.backends.triton.compile import compile_many
    from eqfuse.ops.backends.triton.runtime import common_target

    target = target or common_target(jax.devices())
    if target is None:
        raise ValueError("JAX has no GPU here; give what to compile for, as in target='sm_90'")
    return compile_many(specs, target, processes)


def _specs(jaxpr: Jaxpr):
    for equation in jaxpr.eqns:
        params = equation.params
        if equation.primitive in lowerings:
            backend = params["call"].backend if "call" in params else params["backend"]
            if backend == "triton":
                lower = functools.partial(lowerings[equation.primitive], **params)
                avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
                yield from _specs(jax.make_jaxpr(lower)(*avals).jaxpr)
        if equation.primitive is launch_p:
            yield params["spec"]

        def is_jaxpr(value) -> bool:
            return isinstance(value, Jaxpr | ClosedJaxpr)

        for inner in filter(is_jaxpr, jax.tree.leaves(list(params.values()), is_leaf=is_jaxpr)):
            yield from _specs(getattr(inner, "jaxpr", inner))
