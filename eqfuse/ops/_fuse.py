"""`fuse`: existing code with fused ops in the places where they fit."""

from __future__ import annotations

import functools
from collections.abc import Callable

from eqfuse.ops.transforms.fuse.rewrite import Entry, rewritten, table
from eqfuse.ops.transforms.fuse.trace import traced


def fuse(function: Callable | None = None, *, report: bool = False) -> Callable:
    """Compute a function by fused ops wherever it writes out what they compute.

    The function is traced, with the shapes of its arguments, before anything differentiates it.
    Where the trace gathers node features by an index array, multiplies them with features of edges
    by `ops.tensor_product`, and sums the products to nodes by another index array, one
    `ops.graph_tensor_product` takes their place, and with an `ops.Linear` and a gate behind it one
    `TensorProductLinearGate`. What is between belongs to it: features of either end beside the
    product or in a difference, channels on an axis, other orders of components, weights of channels
    or irreps, constants, masks, a wider dtype for the sum. All else is computed as it was. Nothing
    is replaced whose value could differ but by rounding.

    What is returned is an ordinary JAX function: `jit`, `vmap`, `grad` of every order and control
    flow work on it and in it. It is traced whenever it is called, so call it under `jit`. Wrap what
    computes an energy or a layer, and differentiate what `fuse` returns: in a function that takes
    a gradient itself, the gradient is traced already and stays as it is, as the report notes. In
    a method of a flax module, JAX cannot trace; wrap its `apply` (Haiku: the `apply` of the
    transformed function), or a function that calls an Equinox module. `init` stays as it is, and so
    do the parameters.

    Args:
      function: of any arguments. Arrays in them (leaves of pytrees, such as an IrrepsArray's) are
        traced; all other leaves are passed to it as they are.
      report: print, whenever the function is traced, a table of what was replaced, by what, and
        what was not, why, and what to do about it.
    Returns:
      The function. Without a `function`, a decorator.
    """
    if function is None:
        return functools.partial(fuse, report=report)

    @functools.wraps(function)
    def fused(*args, **kwargs):
        closed, arrays, result_of = traced(function, args, kwargs)
        entries: list[Entry] = []
        outputs = rewritten(closed, arrays, entries)
        if report:
            print(table(entries))
        return result_of(outputs)

    return fused
