"""What the primitives become when JAX compiles them: kernels, or their definition.

Forms over rows are partitioned over the devices here.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from eqfuse.ops.backends.triton import forms as triton_forms
from eqfuse.ops.backends.triton import linear_forms as triton_linear_forms
from eqfuse.ops.backends.xla import forms as xla_forms
from eqfuse.ops.backends.xla import linear_forms as xla_linear_forms
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import INDEX_ARRAYS, Index
from eqfuse.ops.primitives import (
    blocks,
    forms,
    fused,
    fused_kernels,
    linear_forms,
    native,
    node_kernels,
    sequences,
)
from eqfuse.ops.primitives.rules import definitions, split

# forms


def _form(*args, form, num_rows, num_nodes, backend):
    inputs, indices = split(args, len(form.inputs))
    indices = dict(zip(INDEX_ARRAYS, indices, strict=False))
    if num_rows == 0 or not form.paths:
        shapes = [(o.index.count(num_rows, num_nodes), o.size) for o in form.outputs]
        return [jnp.zeros(shape, inputs[0].dtype) for shape in shapes]

    def computed(form, *inputs):
        if backend == "xla":
            ends = indices.get("senders"), indices.get("receivers")
            dtype = inputs[0].dtype
            return xla_forms.evaluate(form, inputs, *ends, num_nodes, num_rows, dtype)
        if form.on_graph or backend == "triton-interpret":  # JAX partitions no Python callback
            return _kernels(form, inputs, indices, num_rows, num_nodes, backend)
        return _over_rows(form, backend)(*inputs)

    return forms.summed(computed, form, inputs)


def _kernels(form: Form, inputs, indices, num_rows: int, num_nodes: int, backend: str):
    if backend == "llvm":
        return native.run(form, inputs, indices, num_rows, num_nodes)
    return triton_forms.run(form, inputs, indices, num_rows, num_nodes, backend)


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


def _linear_form(*arrays, linear_form, num_rows, backend):
    values, index = split(arrays, len(linear_form.inputs))
    if backend.startswith("triton") and num_rows and linear_form.terms:
        return triton_linear_forms.run(linear_form, values, index, num_rows, backend)
    index = index[0] if index else None
    if backend == "llvm" and num_rows and linear_form.terms:
        return native.linear(linear_form, values, index, num_rows)
    return xla_linear_forms.evaluate(linear_form, values, index, num_rows)


# fused ops


def _defined(primitive: Primitive):
    """Return the lowering of a primitive: blocks of rows, or on a CPU a native kernel."""

    def lowered(*arrays, call, **params):
        if call.by_rows:
            return blocks.run(primitive, arrays, call, **params)
        function = functools.partial(definitions[primitive], call=call, **params)
        if primitive in (fused.tangent_p, fused.second_p):
            return function(*arrays)
        return sequences.run(function, arrays, call)

    return lowered


def _fused(*arrays, call):
    if not fused_kernels.runs(call):
        return _defined(fused.fused_p)(*arrays, call=call)
    kernels = node_kernels if call.keeps_sums else fused_kernels
    return kernels.forward(call, *split(arrays, call.fused.num_floats))


def _backward(*arrays, call, wanted, given):
    if not fused_kernels.runs(call):
        return _defined(fused.backward_p)(*arrays, call=call, wanted=wanted, given=given)
    floats, [z], *others = split(arrays, call.fused.num_floats, 1, sum(given))
    kernels = node_kernels if call.fused.only_mixes else fused_kernels
    return kernels.backward(call, wanted, given, floats, z, *others)


lowerings: dict[Primitive, Callable] = {
    forms.form_p: _form,
    linear_forms.linear_form_p: _linear_form,
    fused.fused_p: _fused,
    fused.backward_p: _backward,
    **{p: _defined(p) for p in (fused.tangent_p, fused.second_p, fused.double_p)},
}
for _primitive, _function in lowerings.items():
    mlir.register_lowering(_primitive, mlir.lower_fun(_function, multiple_results=True))
