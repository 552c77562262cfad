"""How a fused op runs on a GPU: its kernels over rows, and the one of nodes, which is forward."""

from itertools import compress

from eqfuse.ops.backends.triton import form, fused_rows, node, primitive
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.ir.form import backward_form, rows_of_nodes
from eqfuse.ops.primitives import layer
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.layer import Call

# the fewest that a program walks for its sum of gradients of parameters: the errors of a chain of
# 400 rows of 5 components passed the bound of a sum in float32 that is not in one chain
ROWS_OF_A_PART = 64
MOST_PARTS = 64  # such sums: each is an array of the size of all parameters


def _launch(call: Call, kernel, named: dict, shapes, programs: int, **scalars: int) -> list:
    """Return the outputs of a kernel of these shapes, by so many programs."""
    scalars |= {"num_rows": call.num_rows, "num_nodes": call.num_nodes}
    arrays = [named[name] for name in kernel.inputs]
    values = [scalars[name] for name in kernel.spec.scalars]
    return launch(kernel.spec, arrays, shapes, values, (programs * kernel.shares,))


def _launch_over(count: int, call: Call, kernel, named: dict, sizes) -> list:
    """Return the outputs [count, size] of a kernel over so many rows or nodes."""
    shapes = [(count, size) for size in sizes]
    return _launch(call, kernel, named, shapes, -(-count // kernel.rows))


def forward(*arrays, call: Call):
    """Return the outputs, and the sums of nodes if they are kept, from one kernel."""
    floats, _, integers = call.split(arrays)
    fused, dtype = call.fused, floats[0].dtype.name
    if fused.summed:
        lanes = form.edge_lanes(fused.form, dtype, call.num_rows, call.num_nodes)
        kernel = node.forward(fused, dtype, lanes)
    else:
        kernel = fused_rows.forward(fused, dtype)
    named = fused.named(floats, integers)
    return _launch_over(call.num_output_rows, call, kernel, named, call.sizes)


def rows_backward(*arrays, call: Call):
    """Return cotangents of the wanted operands.

    One kernel for those of the product's inputs; those of nodes it writes for each row, and another
    sums them. One more, or two, for the gradients of the parameters.
    """
    fused, ([*wanted, _], given) = call.fused, call.derivatives
    [*floats, z], dz, integers = call.split(arrays)
    named = fused.named(floats, integers) | {"z": z}
    named |= dict(zip(fused.cotangents(given), dz, strict=True))
    of_inputs, of_parameters, of_skip = fused.operands(wanted)
    gated, dtype = "ct_out" in named, floats[0].dtype.name
    dinputs, gradients = [], []
    if any(of_inputs) or gated:
        kernel = fused_rows.backward(fused, tuple(of_inputs), given, dtype)
        outputs = backward_form(fused.form, tuple(of_inputs)).outputs if any(of_inputs) else ()
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * gated
        results = _launch_over(call.num_rows, call, kernel, named, sizes)
        for o, rows in zip(outputs, results, strict=False):
            if o.index.is_node:
                sums = rows_of_nodes(rows.shape[1], o.index, True)
                [rows] = layer.product(call, sums, [rows], integers)
            dinputs.append(rows)
        dz = results[len(outputs) :] if gated else dz
    if any(of_parameters):
        gradients = _gradients(call, tuple(of_parameters), named | {"dz_z": dz[0]}, dtype)
    return [*dinputs, *gradients, *(dz if of_skip else [])]


def _gradients(call: Call, wanted, named: dict, dtype: str) -> list:
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    linear_form = call.fused.linear.linear_form
    weights = list(compress(linear_form.inputs[1:], wanted))
    parts = max(1, min(MOST_PARTS, call.num_rows // ROWS_OF_A_PART))
    kernel = fused_rows.gradients(call.fused, wanted, dtype, parts > 1)
    shapes = [linear_form.shape(w, call.num_rows) for w in weights]
    shapes = [(parts, *shape) for shape in shapes] if parts > 1 else shapes
    results = _launch(call, kernel, named, shapes, parts, num_parts=parts)
    return results if parts == 1 else primitive.reduced(weights, results, dtype)


KERNELS = {
    (Kernels.VALUE, 0): forward,
    (Kernels.ROWS, 0): forward,
    (Kernels.ROWS, 2): rows_backward,
}
"""By what computes an op and how often it is derived: tangents and transposes."""
