"""The Triton kernels of fused ops over rows.

They stay in this layer since their backward composes what no kernel computes from `definitions`.
"""

import functools

from eqfuse.ops.backends.triton.emit import fused_backward, fused_forward
from eqfuse.ops.backends.triton.launch import launch
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.ir.fused import backward_form, together
from eqfuse.ops.primitives import definitions
from eqfuse.ops.primitives.definitions import Call, product

forward_kernel = functools.lru_cache(maxsize=256)(fused_forward.forward)
backward_kernel = functools.lru_cache(maxsize=256)(fused_backward.backward)


def has_kernels(call: Call) -> bool:
    """Return whether there are kernels, and work for them: rows, and matrices to multiply by."""
    fused = call.fused
    indices = {o.index for o in fused.form.inputs}
    matrices = any(term.x is not None for term in fused.linear.linear_form.terms)
    has_kernel = call.keeps_sums if fused.summed else Index.SENDER not in indices
    rows = call.num_rows and call.num_output_rows
    return bool(has_kernel and rows and fused.form.paths and matrices)


def _of_nodes(call: Call, operand: Operand, rows, integers):
    """Return a gradient that the kernel wrote by row, summed by node for an operand of nodes."""
    if operand.index is Index.ROW:
        return rows
    segment = (Segment(0, operand.size, 1, 1),)
    identity = (Path((SegmentRef(0, 0),), SegmentRef(0, 0), (((0, 0), 1.0),)),)
    source = Operand("rows", operand.size, segment, True)
    total = Operand("total", operand.size, segment, True, operand.index)
    return product(call, Form((source,), (total,), identity), [rows], integers)[0]


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
        return definitions.backward(call, wanted, given, floats, z, cotangents, integers)
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
        dinputs += [_of_nodes(call, operand, rows, integers) for operand, rows in pairs]
        dz = dz or results[len(outputs) :]
    dparameters = []
    if any(of_parameters):
        dparameters = definitions.gradients(call, of_parameters, floats, dz, integers)
    return [*dinputs, *dparameters, *(dz if of_skip else [])]
