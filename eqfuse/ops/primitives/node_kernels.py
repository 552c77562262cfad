"""The Triton kernels of fused ops on a graph, of which each program has a node.

One computes the op, and one the cotangent of the sums of nodes, from which the product's own
backward goes on by senders: a program cannot wait for those of the other nodes.
"""

import functools

from eqfuse.ops.backends.triton.emit import node_kernel, plan
from eqfuse.ops.backends.triton.launch import launch
from eqfuse.ops.primitives import definitions
from eqfuse.ops.primitives.definitions import Call

forward_kernel = functools.lru_cache(maxsize=256)(node_kernel.forward)
backward_kernel = functools.lru_cache(maxsize=256)(node_kernel.backward)


def _launch(call: Call, kernel, named: dict, num_nodes: int, sizes) -> list:
    arrays = [named[name] for name in kernel.inputs]
    shapes = [(num_nodes, size) for size in sizes]
    return launch(kernel.spec, arrays, shapes, (), (num_nodes,), call.backend)


def forward(call: Call, floats, integers):
    """Return the outputs and the sums of nodes, from one kernel."""
    dtype = floats[0].dtype.name
    lanes = plan.edge_lanes(call.fused.form, dtype, call.num_rows, call.num_nodes)
    kernel = forward_kernel(call.fused, dtype, lanes)
    named = call.fused.named(floats, integers)
    return _launch(call, kernel, named, call.num_nodes, call.sizes)


def backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Return cotangents of the wanted operands of what follows the sums; see `Fused.mixed`.

    One kernel for that of the sums, which writes that of the pre-activation too; the gradients of
    parameters are the Linear's.
    """
    fused = call.fused
    [of_sums], of_parameters, of_skip = fused.operands(wanted)
    if not of_sums:
        return definitions.backward(call, wanted, given, floats, z, cotangents, integers)
    names = fused.cotangents(given)
    gated = "ct_out" in names
    named = fused.named(floats, integers)
    named |= {"z": z} | dict(zip(names, cotangents, strict=True))
    kernel = backward_kernel(fused, given, floats[0].dtype.name, 4)
    sizes = [floats[0].shape[1], *[fused.linear.size_out] * gated]
    dm, *dz = _launch(call, kernel, named, call.num_rows, sizes)
    dz = dz or list(cotangents)
    gradients = []
    if any(of_parameters):
        gradients = definitions.gradients(call, of_parameters, floats, dz, integers)
    return [dm, *gradients, *(dz if of_skip else [])]
