"""The Triton kernels of fused ops over rows.

They stay in this layer since their backward composes what no kernel computes from `definitions`.
"""

import dataclasses
import functools

from eqfuse.ops.backends.triton.emit import fused_backward, fused_forward
from eqfuse.ops.backends.triton.launch import launch
from eqfuse.ops.ir.fused import Fused, backward_form, together
from eqfuse.ops.primitives import blocks
from eqfuse.ops.primitives.definitions import Call
from eqfuse.ops.primitives.fused import backward_p

forward_kernel = functools.lru_cache(maxsize=256)(fused_forward.forward)
backward_kernel = functools.lru_cache(maxsize=256)(fused_backward.backward)


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

    One kernel for those of the product's inputs, or one for each where they are many. Those of
    nodes it writes for each row, and another sums them. The gradients of parameters are the
    Linear's, from the product, computed again.
    """
    fused = call.fused
    of_inputs, of_parameters, of_skip = fused.operands(wanted)
    if not any(of_inputs):
        arrays = [*floats, z, *cotangents, *integers]
        return blocks.run(backward_p, arrays, call, wanted=wanted, given=given)
    writes_dz = fused.gate is not None and bool(any(of_parameters) or of_skip)
    named = fused.named(floats, integers)
    named |= {"z": z} | dict(zip(fused.cotangents(given), cotangents, strict=True))
    dinputs, dz = [], [] if writes_dz else cotangents
    for some in together(fused.form, tuple(of_inputs)):
        writes_now = writes_dz and not dz
        kernel = backward_kernel(fused, some, given, floats[0].dtype.name, writes_now)
        outputs = backward_form(fused.form, some).outputs
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * writes_now
        results = _launch(call, kernel, named, sizes)
        pairs = zip(outputs, results, strict=False)
        dinputs += [
            blocks.of_nodes(call, o.index, rows, integers) if o.index.is_node else rows
            for o, rows in pairs
        ]
        dz = dz or results[len(outputs) :]
    gradients = _gradients(call, of_parameters, floats, dz, integers) if any(of_parameters) else []
    return [*dinputs, *gradients, *(dz if of_skip else [])]


def _gradients(call: Call, wanted, floats, dz, integers):
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    fused = call.fused
    plain = Fused.build(fused.form, fused.linear, None, False)
    inputs, parameters, _ = fused.operands(floats)
    wanted = (*(False for _ in inputs), *wanted)
    call = dataclasses.replace(call, fused=plain)
    arrays = [*inputs, *parameters, dz[0], *dz, *integers]
    return blocks.run(backward_p, arrays, call, wanted=wanted, given=(True,) * len(dz))
