"""Fused ops on a CPU: what JAX makes of a definition, run as one native kernel.

Over rows, all arrays of whole products stay in the cache of a thread, in the backward and in the
backward of that as well. On a graph, where sums over edges lie between, the steps run one after the
other.
"""

import jax
import jax.numpy as jnp

from eqfuse.ops.backends.llvm.emit import program as native_program
from eqfuse.ops.backends.llvm.runtime import machine, threads
from eqfuse.ops.ir.linear_form import Weights
from eqfuse.ops.ir.operands import INDEX_ARRAYS
from eqfuse.ops.ir.program import Program
from eqfuse.ops.ir.steps import Extent
from eqfuse.ops.primitives import native
from eqfuse.ops.primitives.tracing import as_whole, traced


def run(function, arrays, call) -> list:
    """Return what `function` computes of the arrays, by one kernel where it is a program.

    Args:
      function: of floating point arrays and, for a form on a graph, the index arrays.
    """
    n = len(arrays) - len(INDEX_ARRAYS) * call.fused.form.on_graph
    summed = call.fused.summed
    found = traced(function, arrays, len(arrays) - n, summed) if call.is_native else None
    if found is None or not (found.program.runs_by_rows or (summed and found.program.steps)):
        return function(*arrays)
    kernel = _whole if summed else native.by_rows
    indices = dict(zip(INDEX_ARRAYS, arrays[n:], strict=False))
    operands = [arrays[k] for k in found.read]
    results = kernel(found.program, operands, indices, call.num_rows, call.num_nodes)
    if results is None:
        return function(*arrays)
    shapes, results = jax.eval_shape(function, *arrays), iter(results)
    outputs = []
    for out, constant, passed in zip(shapes, found.constants, found.passed, strict=True):
        if passed is not None:
            outputs.append(arrays[passed])
        elif constant is not None:
            outputs.append(jnp.full(out.shape, constant, out.dtype))
        else:
            outputs.append(next(results))
    return outputs


def _whole(
    program: Program, arrays, indices, num_rows: int, num_nodes: int
) -> list[jax.Array] | None:
    """Return the outputs of a program on a graph, computed by its native kernel, step by step.

    The arguments are those of `native.by_rows`.

    Returns:
      None where no kernel has its steps.
    """
    dtype = arrays[0].dtype.name
    if dtype not in ("float32", "float64") or not native.has_steps(program):
        return None
    full = as_whole(program, num_rows, num_nodes)
    module = native_program.generate(full, dtype, machine.machine(), threads.WORK_OF_A_THREAD)
    inputs = [a.reshape(1, -1) for a in arrays] + [indices[n] for n in INDEX_ARRAYS]
    results = [(1, full.arrays[n].size) for n in full.outputs]
    results += [(1, width) for width in module.copies]
    results = native.native_p.bind(*inputs, module=module, shapes=tuple(results))
    counts = {Extent.WHOLE: 1, Extent.ROWS: num_rows, Extent.NODES: num_nodes}
    outputs = [(program.operands[n], program.arrays[n]) for n in program.outputs]
    return [
        r.reshape(o.shape if isinstance(o, Weights) else (counts[a.extent], a.size))
        for r, (o, a) in zip(results, outputs, strict=False)
    ]
