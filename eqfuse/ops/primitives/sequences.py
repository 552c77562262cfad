"""Fused ops over rows on a CPU: what JAX makes of a definition, run as one native kernel.

All arrays of whole products stay in the cache of a thread, in the backward and in the backward of
that as well.
"""

from eqfuse.ops.ir.form import INDEX_ARRAYS
from eqfuse.ops.primitives import native
from eqfuse.ops.primitives.tracing import traced


def run(function, arrays, call) -> list:
    """Return what `function` computes of the arrays, by one kernel where it is a program by rows.

    Args:
      function: of floating point arrays and, for a form on a graph, the index arrays.
    """
    n = len(arrays) - len(INDEX_ARRAYS) * call.fused.form.on_graph
    found = traced(function, arrays, len(arrays) - n) if call.is_native else None
    if found is None or not found[0].runs_by_rows:
        return function(*arrays)
    program, read = found
    indices = dict(zip(INDEX_ARRAYS, arrays[n:], strict=False))
    operands = [arrays[k] for k in read]
    results = native.by_rows(program, operands, indices, call.num_rows, call.num_nodes)
    return function(*arrays) if results is None else results
