"""Kernels inside a JAX computation: the plan of a form, launched one kernel after the other."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from eqfuse.ops.algebra.form import Form, Index
from eqfuse.ops.triton.codegen import plan
from eqfuse.ops.triton.codegen.form_kernel import Kernel

kernel_p = Primitive("eqfuse_kernel")
kernel_p.multiple_results = True


def run(form: Form, inputs, indices, num_rows: int, num_nodes: int, backend: str):
    """The outputs of a form, computed by its kernels.

    Args:
      form: what to compute.
      inputs: an array for each input of the form.
      indices: the index arrays by name.
      backend: "triton", "triton-interpret" to interpret those kernels on a CPU, or "numba".
    """
    if form.on_graph or backend == "triton-interpret":  # JAX cannot partition a Python callback
        return _launch(form, inputs, indices, num_rows, num_nodes, backend)
    return over_rows(form, backend)(*inputs)


@functools.lru_cache(maxsize=1024)
def over_rows(form: Form, backend: str):
    """A form without a graph: every device computes the rows that it holds."""

    def rows(*inputs):
        return _launch(form, inputs, {}, inputs[first].shape[0], 0, backend)

    def partition(mesh, arguments, results):
        # none where nothing is sharded: XLA's own kind of sharding has no axes then
        spec = getattr(arguments[first].sharding, "spec", None)
        by_row = NamedSharding(mesh, PartitionSpec(spec[0] if spec else None, None))
        whole = NamedSharding(mesh, PartitionSpec(None, None))
        return mesh, rows, [by_row for _ in results], tuple(by_row if r else whole for r in is_row)

    is_row = [o.index is Index.ROW for o in form.inputs]
    first = is_row.index(True)
    partitioned = custom_partitioning(rows)
    lines = ["i" if r else f"o{n}" for n, r in enumerate(is_row)] + ["i"] * len(form.outputs)
    operands = [f"{line} c{n}" for n, line in enumerate(lines)]
    axes = " ".join(operands).split()
    partitioned.def_partition(
        partition,
        sharding_rule=f"{', '.join(operands[: len(form.inputs)])} -> "
        f"{', '.join(operands[len(form.inputs) :])}",
        need_replication_factors=tuple(axis for axis in axes if axis != "i"),
    )
    return partitioned


def _launch(form: Form, inputs, indices, num_rows: int, num_nodes: int, backend: str):
    if backend == "numba":
        from eqfuse.ops.primitives import native

        return native.run(form, inputs, indices, num_rows, num_nodes)
    results: dict[int, jax.Array] = {}
    for kernel in plan.kernels(form, inputs[0].dtype.name):
        written = kernel_p.bind(
            *(inputs[i] for i in kernel.inputs),
            *(indices[name] for name in kernel.index_arrays),
            *(results[o] for o in kernel.continued),
            kernel=kernel,
            shapes=tuple(_shape(form, kernel, o, num_rows, num_nodes) for o in kernel.outputs),
            num_rows=num_rows,
            num_nodes=num_nodes,
            backend=backend,
        )
        results.update(zip(kernel.outputs, written, strict=True))
    whole = [results[o] for o in range(len(form.outputs))]
    whole = [a.sum(axis=0) if a.ndim == 3 else a for a in whole]
    return [a.astype(inputs[0].dtype) for a in whole]


def _shape(form: Form, kernel: Kernel, output: int, num_rows: int, num_nodes: int):
    operand = form.outputs[output]
    shape = (operand.index.count(num_rows, num_nodes), operand.size)
    return (kernel.channel_blocks, *shape) if output in kernel.partial else shape


@kernel_p.def_abstract_eval
def _abstract(*args, kernel, shapes, num_rows, num_nodes, backend):
    return [
        jax.core.ShapedArray(shape, jnp.dtype(name))
        for shape, name in zip(shapes, kernel.spec.output_dtypes, strict=True)
    ]


def _lower(ctx, *operands, kernel, shapes, num_rows, num_nodes, backend):
    from eqfuse.ops.triton.runtime import launch

    sizes = {"num_rows": num_rows, "num_nodes": num_nodes}
    first = len(kernel.inputs) + len(kernel.index_arrays)
    aliases = tuple((first + n, kernel.outputs.index(o)) for n, o in enumerate(kernel.continued))
    lower = launch.lower_gpu if backend == "triton" else launch.lower_interpret
    return lower(
        ctx,
        kernel.spec,
        operands,
        ctx.avals_in,
        ctx.avals_out,
        tuple(sizes[name] for name in kernel.spec.scalars),
        kernel.grid(num_rows, num_nodes),
        aliases=aliases,
    )


def _lower_cpu(ctx, *operands, backend, **params):
    if backend == "triton":
        raise NotImplementedError(
            "backend='triton' compiles for GPUs, and this computation is lowered for a CPU; use "
            "backend='xla' there, or 'triton-interpret' to check the kernels slowly without a GPU"
        )
    return _lower(ctx, *operands, backend=backend, **params)


mlir.register_lowering(kernel_p, _lower_cpu, platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(kernel_p, _lower, platform=_platform)
