"""The Triton kernels of fused ops over rows.

They stay in this layer since their backward composes what no kernel computes from `definitions`.
"""

import functools

from eqfuse.ops.backends.triton import form, node, primitive
from eqfuse.ops.backends.triton import rows as row_kernel
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.ir.fused import backward_form
from eqfuse.ops.primitives import layer
from eqfuse.ops.primitives.layer import Call

ROWS_OF_A_PART = 256
"""The fewest rows that a program walks for its sum of gradients of parameters."""
MOST_PARTS = 64
"""The most such sums: each is an array of the size of all parameters."""

rows_forward_kernel = functools.lru_cache(maxsize=256)(row_kernel.forward)
rows_backward_kernel = functools.lru_cache(maxsize=256)(row_kernel.backward)
gradients_kernel = functools.lru_cache(maxsize=256)(row_kernel.gradients)


def runs(call: Call) -> bool:
    """Return whether there are kernels of the whole op, and work for them."""
    if call.by_rows:
        return not call.in_blocks
    matrices = any(term.x is not None for term in call.fused.linear.linear_form.terms)
    rows = call.num_rows and call.num_output_rows
    has_kernel = call.keeps_sums or call.mixes_rows
    return bool(has_kernel and rows and call.fused.form.paths and matrices)


def _launch_rows(call: Call, kernel, named: dict, sizes) -> list:
    return launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [(call.num_rows, size) for size in sizes],
        (call.num_rows,),
        (-(-call.num_rows // kernel.rows) * kernel.shares,),
        call.backend,
    )


def rows_forward(call: Call, floats, integers):
    """Return the outputs, from one kernel."""
    kernel = rows_forward_kernel(call.fused, floats[0].dtype.name)
    return _launch_rows(call, kernel, call.fused.named(floats, integers), call.fused.sizes)


def rows_backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Return cotangents of the wanted operands.

    One kernel for those of the product's inputs; those of nodes it writes for each row, and another
    sums them. One more, or two, for the gradients of the parameters.
    """
    fused = call.fused
    of_inputs, of_parameters, of_skip = fused.operands(wanted)
    names = fused.cotangents(given)
    named = fused.named(floats, integers)
    named |= {"z": z} | dict(zip(names, cotangents, strict=True))
    gated = "ct_out" in names
    dinputs, dz = [], list(cotangents)
    if any(of_inputs) or gated:
        kernel = rows_backward_kernel(fused, tuple(of_inputs), given, floats[0].dtype.name)
        outputs = backward_form(fused.form, tuple(of_inputs)).outputs if any(of_inputs) else ()
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * gated
        results = _launch_rows(call, kernel, named, sizes)
        dinputs = [
            layer.of_nodes(call, o.index, rows, integers) if o.index.is_node else rows
            for o, rows in zip(outputs, results, strict=False)
        ]
        dz = results[len(outputs) :] if gated else dz
    gradients = []
    if any(of_parameters):
        dz_named = named | {f"dz_{a}": d for a, d in zip(fused.arrays, dz, strict=True)}
        gradients = _gradients(call, tuple(of_parameters), dz_named, floats[0].dtype.name)
    return [*dinputs, *gradients, *(dz if of_skip else [])]


def _gradients(call: Call, wanted, named: dict, dtype: str) -> list:
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    linear_form = call.fused.linear.linear_form
    weights = [w for w, is_wanted in zip(linear_form.inputs[1:], wanted, strict=True) if is_wanted]
    parts = max(1, min(MOST_PARTS, call.num_rows // ROWS_OF_A_PART))
    kernel = gradients_kernel(call.fused, wanted, dtype, parts > 1)
    shapes = [linear_form.shape(w, call.num_rows) for w in weights]
    results = launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [(parts, *shape) for shape in shapes] if parts > 1 else shapes,
        (call.num_rows, parts),
        (parts * kernel.shares,),
        call.backend,
    )
    return results if parts == 1 else primitive.reduced(weights, results, dtype, call.backend)


node_forward_kernel = functools.lru_cache(maxsize=256)(node.forward)
node_backward_kernel = functools.lru_cache(maxsize=256)(node.backward)


def _launch_nodes(call: Call, kernel, named: dict, num_nodes: int, sizes) -> list:
    arrays = [named[name] for name in kernel.inputs]
    shapes = [(num_nodes, size) for size in sizes]
    return launch(kernel.spec, arrays, shapes, (), (num_nodes,), call.backend)


def node_forward(call: Call, floats, integers):
    """Return the outputs and the sums of nodes, from one kernel."""
    dtype = floats[0].dtype.name
    lanes = form.edge_lanes(call.fused.form, dtype, call.num_rows, call.num_nodes)
    kernel = node_forward_kernel(call.fused, dtype, lanes)
    named = call.fused.named(floats, integers)
    return _launch_nodes(call, kernel, named, call.num_nodes, call.sizes)


def node_backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Return cotangents of the wanted operands of what follows the sums; see `Fused.mixed`.

    One kernel for that of the sums, which writes that of the pre-activation too; the gradients of
    parameters are the Linear's.
    """
    fused = call.fused
    [of_sums], of_parameters, of_skip = fused.operands(wanted)
    if not of_sums:
        return layer.backward(call, wanted, given, floats, z, cotangents, integers)
    names = fused.cotangents(given)
    gated = "ct_out" in names
    named = fused.named(floats, integers)
    named |= {"z": z} | dict(zip(names, cotangents, strict=True))
    kernel = node_backward_kernel(fused, given, floats[0].dtype.name, 4)
    sizes = [floats[0].shape[1], *[fused.linear.size_out] * gated]
    dm, *dz = _launch_nodes(call, kernel, named, call.num_rows, sizes)
    dz = dz or list(cotangents)
    gradients = []
    if any(of_parameters):
        gradients = layer.gradients(call, of_parameters, floats, dz, integers)
    return [dm, *gradients, *(dz if of_skip else [])]
