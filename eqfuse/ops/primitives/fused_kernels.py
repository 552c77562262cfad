"""The kernels of fused ops inside a JAX computation."""

import functools
import math

from eqfuse.ops.algebra.form import Form, Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.algebra.fused import Fused
from eqfuse.ops.algebra.linear_form import Weights
from eqfuse.ops.primitives.definitions import Call, product
from eqfuse.ops.primitives.launch import launch
from eqfuse.ops.primitives.linear_kernels import reduced
from eqfuse.ops.triton.codegen import fused_backward, fused_forward, fused_operands
from eqfuse.ops.triton.codegen.fused_forward import FusedKernel

PROGRAMS = 512
"""Programs that share the rows of a backward pass, at most: as many as a large GPU runs at once."""
FEW = 32
"""Sums of the gradient of a parameter that may take more memory than the op reads."""
STEPS = 4
"""Blocks of rows that a program has, at least, if there are few."""

forward_kernel = functools.lru_cache(maxsize=256)(fused_forward.forward)
backward_kernel = functools.lru_cache(maxsize=256)(fused_backward.backward)


def _arrays(fused: Fused, floats, integers) -> dict:
    """Return the operands of a call by the names that kernels use."""
    inputs, parameters, skip = fused.operands(floats)
    index, arrays = fused.split(integers)
    named = dict(zip([o.name for o in fused.form.inputs], inputs, strict=True))
    named |= {f"p{n}": p for n, p in enumerate(parameters)}
    return named | {"skip": skip, "set_index": index} | arrays


def _of_nodes(call: Call, operand: Operand, rows, integers):
    """Return a gradient that the kernel wrote for each row, summed over the rows of a node if need
    be.
    """
    if operand.index is Index.ROW:
        return rows
    segment = (Segment(0, operand.size, 1, 1),)
    identity = (Path((SegmentRef(0, 0),), SegmentRef(0, 0), (((0, 0), 1.0),)),)
    source = Operand("rows", operand.size, segment, True)
    total = Operand("total", operand.size, segment, True, operand.index)
    return product(call, Form((source,), (total,), identity), [rows], integers)[0]


def forward(call: Call, floats, integers):
    """Return the outputs, from one kernel."""
    fused = call.fused
    kernel = forward_kernel(fused, floats[0].dtype.name)
    named = _arrays(fused, floats, integers)
    return launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [(call.rows, size) for size in fused.sizes],
        (call.rows,),
        (-(-call.rows // kernel.rows),),
        call.backend,
    )


def num_sums(call: Call, kernel: FusedKernel, wanted, inputs) -> int:
    """Return how many sums the gradient of a parameter consists of, one for each program that adds
    to it.

    Args:
      call, kernel: the op, and its backward.
      wanted: the parameters whose gradients are wanted, by number.
      inputs: the arrays of the product.
    """
    sizes = [math.prod(call.fused.linear.parameters[n].shape) for n in wanted]
    elements = sum(sizes) * max(call.fused.num_sets, 1)
    most = max(FEW, sum(a.size for a in inputs) // max(elements, 1))
    most = min(most, PROGRAMS // max(kernel.by_sum, 1))
    return max(1, min(most, -(-call.rows // (kernel.rows * STEPS))))


def backward(call: Call, wanted, given, floats, z, cotangents, integers):
    """Return cotangents of the wanted operands: one kernel, on a graph the product's own too, and a
    sum.

    Over rows: the kernel, and the sums of the parameters' gradients. On a graph: the kernel, which
    writes the cotangent of the summed product [num_nodes, size]; the product's own backward kernel,
    which sums over the edges of the senders; and the sums of the parameters' gradients. For rows
    that read nodes: as over rows, and the sums over the rows of a node.
    """
    fused, dtype = call.fused, floats[0].dtype
    if fused.skip and wanted[-1] and fused.gate is None:
        # the cotangent of a skip is that of the sum
        others = (*wanted[:-1], False)
        found = backward(call, others, given, floats, z, cotangents, integers)
        return [*found, *cotangents]
    if not any(wanted):
        return []
    kernel = backward_kernel(fused, wanted, given, dtype.name)
    _, parameters, skip = fused.operands(wanted)
    wanted_parameters = [n for n, want in enumerate(parameters) if want]
    sums = num_sums(call, kernel, wanted_parameters, fused.operands(floats)[0])
    form = fused_operands.backward_form(fused, wanted)
    sets = (fused.num_sets,) if fused.num_sets else ()
    shapes = {"dproduct": (call.rows, fused.form.outputs[0].size)}
    shapes["dskip"] = (call.rows, fused.linear.size_out)
    for n, parameter in enumerate(fused.linear.parameters):
        shapes[f"d{n}"] = (sums, *sets, *parameter.shape)
    if form is not None and not fused.summed:
        shapes |= {o.name: (call.num_rows, o.size) for o in form.outputs}
    named = _arrays(fused, floats, integers)
    named |= {"z": z} | dict(zip(fused.cotangents(given), cotangents, strict=True))
    results = launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [shapes[name] for name in kernel.outputs],
        (call.rows, sums),
        (kernel.by_row * -(-call.rows // kernel.rows) + kernel.by_sum * sums,),
        call.backend,
    )
    found = dict(zip(kernel.outputs, results, strict=True))
    operands = [Weights(fused.linear.parameters[n].shape) for n in wanted_parameters]
    parts = [found[f"d{n}"] for n in wanted_parameters]
    gradients = reduced(operands, parts, dtype.name, call.backend) if parts else []
    if "dproduct" in found:
        used = form.used_inputs()
        arrays = [*fused.operands(floats)[0], found["dproduct"]]
        arrays = [a for a, keep in zip(arrays, used, strict=True) if keep]
        dinputs = product(call, form.drop_inputs(used), arrays, integers)
    else:
        dinputs = (
            [_of_nodes(call, o, found[o.name], integers) for o in form.outputs] if form else []
        )
    return [*dinputs, *gradients, *([found["dskip"]] if skip else [])]
