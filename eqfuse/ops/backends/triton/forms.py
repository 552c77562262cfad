"""The Triton kernels of a form inside a JAX computation, launched one after the other."""

import jax

from eqfuse.ops.backends.triton.emit import plan
from eqfuse.ops.backends.triton.emit.form_kernel import FormKernel
from eqfuse.ops.backends.triton.launch import launch
from eqfuse.ops.ir.form import Form


def run(form: Form, inputs, indices, num_rows: int, num_nodes: int, backend: str):
    """Return the outputs of a form, computed by its kernels.

    Args:
      form: what to compute.
      inputs: an array for each input of the form.
      indices: the index arrays by name.
      backend: "triton", or "triton-interpret" to interpret those kernels on a CPU.
    """
    sizes = {"num_rows": num_rows, "num_nodes": num_nodes}
    results: dict[int, jax.Array] = {}
    dtype = inputs[0].dtype.name
    lanes = plan.edge_lanes(form, dtype, num_rows, num_nodes) if form.on_graph else 1
    for kernel in plan.kernels(form, dtype, lanes):
        arrays = [inputs[i] for i in kernel.inputs]
        arrays += [indices[name] for name in kernel.index_arrays]
        aliases = tuple(
            (len(arrays) + n, kernel.outputs.index(o)) for n, o in enumerate(kernel.continued)
        )
        written = launch(
            kernel.spec,
            [*arrays, *(results[o] for o in kernel.continued)],
            [_shape(form, kernel, o, num_rows, num_nodes) for o in kernel.outputs],
            [sizes[name] for name in kernel.spec.scalars],
            kernel.grid(num_rows, num_nodes),
            backend,
            aliases,
        )
        results.update(zip(kernel.outputs, written, strict=True))
    whole = [results[o] for o in range(len(form.outputs))]
    whole = [a.sum(axis=0) if a.ndim == 3 else a for a in whole]
    return [a.astype(inputs[0].dtype) for a in whole]


def _shape(form: Form, kernel: FormKernel, output: int, num_rows: int, num_nodes: int):
    operand = form.outputs[output]
    shape = (operand.index.count(num_rows, num_nodes), operand.size)
    return (kernel.channel_blocks, *shape) if output in kernel.partial else shape
