"""How a fused op runs on a GPU: its kernels over rows and of nodes."""

import dataclasses
from itertools import compress

from eqfuse.ops.backends.triton import form, node, primitive
from eqfuse.ops.backends.triton import rows as row_kernels
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.ir.form import backward_form
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.primitives import layer
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.layer import Call

ROWS_OF_A_PART = 256  # the fewest that a program walks for its sum of gradients of parameters
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
        kernel = row_kernels.forward(fused, dtype)
    named = fused.named(floats, integers)
    return _launch_over(call.num_output_rows, call, kernel, named, call.sizes)


def _operands_of_backward(call: Call, arrays):
    """Return floats, cotangents and integers, and all by the names that kernels use."""
    fused, (_, given) = call.fused, call.derivatives
    [*floats, z], cotangents, integers = call.split(arrays)
    named = fused.named(floats, integers) | {"z": z}
    named |= dict(zip(fused.cotangents(given), cotangents, strict=True))
    return floats, cotangents, integers, named


def rows_backward(*arrays, call: Call):
    """Return cotangents of the wanted operands.

    One kernel for those of the product's inputs; those of nodes it writes for each row, and another
    sums them. One more, or two, for the gradients of the parameters.
    """
    fused, ([*wanted, _], given) = call.fused, call.derivatives
    floats, dz, integers, named = _operands_of_backward(call, arrays)
    of_inputs, of_parameters, of_skip = fused.operands(wanted)
    gated, dtype = "ct_out" in named, floats[0].dtype.name
    dinputs, gradients = [], []
    if any(of_inputs) or gated:
        kernel = row_kernels.backward(fused, tuple(of_inputs), given, dtype)
        outputs = backward_form(fused.form, tuple(of_inputs)).outputs if any(of_inputs) else ()
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * gated
        results = _launch_over(call.num_rows, call, kernel, named, sizes)
        for o, rows in zip(outputs, results, strict=False):
            if o.index.is_node:
                sums = layer.rows_of_nodes(rows.shape[1], o.index, True)
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
    kernel = row_kernels.gradients(call.fused, wanted, dtype, parts > 1)
    shapes = [linear_form.shape(w, call.num_rows) for w in weights]
    shapes = [(parts, *shape) for shape in shapes] if parts > 1 else shapes
    results = _launch(call, kernel, named, shapes, parts, num_parts=parts)
    return results if parts == 1 else primitive.reduced(weights, results, dtype)


def node_backward(*arrays, call: Call):
    """Return cotangents of the wanted operands of what follows the sums; see `Fused.epilogue`.

    One kernel for that of the sums, which writes that of the pre-activation too; the gradients of
    parameters are the Linear's.
    """
    fused, ([*wanted, _], given) = call.fused, call.derivatives
    [of_sums], of_parameters, of_skip = fused.operands(wanted)
    if not of_sums:
        return layer.definition(*arrays, call=call)
    floats, cotangents, integers, named = _operands_of_backward(call, arrays)
    kernel = node.backward(fused, given, floats[0].dtype.name, 4)
    sizes = [floats[0].shape[1], *[fused.linear.size_out] * ("ct_out" in named)]
    dm, *dz = _launch_over(call.num_rows, call, kernel, named, sizes)
    dz, gradients = dz or cotangents, []
    if any(of_parameters):
        plain = Fused.build(fused.form, fused.linear, None, False)
        linear = (False, *of_parameters, False), (True,) * len(dz)
        operands = [*floats[: plain.num_floats], dz[0], *dz, *integers]
        plain = dataclasses.replace(call, fused=plain, derivatives=linear)
        gradients = layer.definition(*operands, call=plain)
    return [dm, *gradients, *(dz if of_skip else [])]


KERNELS = {
    **{(whole, 0): forward for whole in (Kernels.ROWS, Kernels.NODES, Kernels.VALUE)},
    (Kernels.ROWS, 2): rows_backward,
    (Kernels.EPILOGUE, 2): node_backward,
}
"""By what computes an op and how often it is derived: tangents and transposes."""
