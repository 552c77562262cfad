"""The Triton kernels of fused ops over rows.

They stay in this layer since their backward composes what no kernel computes from `definitions`.
"""

import functools

from eqfuse.ops.backends.triton import linear_forms
from eqfuse.ops.backends.triton.emit import fused_backward, fused_forward, fused_gradients
from eqfuse.ops.backends.triton.launch import launch
from eqfuse.ops.ir.fused import backward_form
from eqfuse.ops.primitives import blocks
from eqfuse.ops.primitives.definitions import Call

ROWS_OF_A_PART = 256
"""The fewest rows that a program walks for its sum of gradients of parameters."""
MOST_PARTS = 64
"""The most such sums: each is an array of the size of all parameters."""

forward_kernel = functools.lru_cache(maxsize=256)(fused_forward.forward)
backward_kernel = functools.lru_cache(maxsize=256)(fused_backward.backward)
gradients_kernel = functools.lru_cache(maxsize=256)(fused_gradients.gradients)


def runs(call: Call) -> bool:
    """Return whether there are kernels of the whole op, and work for them."""
    if call.by_rows:
        return not call.in_blocks
    matrices = any(term.x is not None for term in call.fused.linear.linear_form.terms)
    rows = call.num_rows and call.num_output_rows
    has_kernel = call.keeps_sums or call.mixes_rows
    return bool(has_kernel and rows and call.fused.form.paths and matrices)


def _launch(call: Call, kernel, named: dict, sizes) -> list:
    return launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [(call.num_rows, size) for size in sizes],
        (call.num_rows,),
        (-(-call.num_rows // kernel.rows) * kernel.shares,),
        call.backend,
    )


def forward(call: Call, floats, integers):
    """Return the outputs, from one kernel."""
    kernel = forward_kernel(call.fused, floats[0].dtype.name)
    return _launch(call, kernel, call.fused.named(floats, integers), call.fused.sizes)


def backward(call: Call, wanted, given, floats, z, cotangents, integers):
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
        kernel = backward_kernel(fused, tuple(of_inputs), given, floats[0].dtype.name)
        outputs = backward_form(fused.form, tuple(of_inputs)).outputs if any(of_inputs) else ()
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * gated
        results = _launch(call, kernel, named, sizes)
        dinputs = [
            blocks.of_nodes(call, o.index, rows, integers) if o.index.is_node else rows
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
    return results if parts == 1 else linear_forms.reduced(weights, results, dtype, call.backend)
