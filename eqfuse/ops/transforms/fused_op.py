"""A fused op of rows, or a derivative of it, in one native call: its definition as a program."""

import functools
from itertools import compress

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import sum_form
from eqfuse.ops.ir.program import Array, Elementwise, FormStep, Program
from eqfuse.ops.primitives import layer, lowering, native, rules
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.transforms.conversion import Converter, NoStepError
from eqfuse.ops.transforms.trace import Trace


def _over_rows(converter: Converter, inputs, outputs, num_rows: int) -> Program:
    """Return the program over rows that computes the steps of a converter.

    The steps must be forms and sums of rows; other steps raise NoStepError. Rows that a Linear
    reads or writes have its blocks.
    """
    blocks, steps, arrays = {}, [], {}
    for step in converter.steps:
        if isinstance(step, FormStep) and isinstance(step.form, Form) and step.form.has_matrices:
            pairs = zip((*step.operands, *step.writes), step.form.operands, strict=True)
            blocks |= {n: rows.segments for n, rows in pairs if not rows.matrix}
    numbers = {
        n: k for k, n in enumerate((*inputs, *(n for s in converter.steps for n in s.writes)))
    }
    if converter.views:
        raise NoStepError("parts of rows")
    for step in converter.steps:
        if isinstance(step, FormStep):
            form, operands = step.form, (*step.operands, *step.writes)
        elif isinstance(step, Elementwise) and step.function == "add":
            operands = (*step.reads, step.write)
            known = {blocks[n] for n in operands if n in blocks}
            sizes = {converter.arrays[n].size if isinstance(n, int) else 0 for n in operands}
            if len(known) > 1 or len(sizes) > 1:
                raise NoStepError("a sum of different rows")
            form = sum_form(sizes.pop() // num_rows, *known)
        else:
            raise NoStepError("a step that is not of rows")
        operands = [numbers[n] for n in operands]
        for n, operand in zip(operands, form.operands, strict=True):
            array = Array(operand.size, converter.dtype, operand.index)
            if arrays.setdefault(n, array) != array:
                raise NoStepError("a sum of weights")
        count = len(form.inputs)
        steps.append(FormStep(form, tuple(operands[:count]), tuple(operands[count:])))
    if len(arrays) < len(numbers):
        raise NoStepError("an input that no step reads")
    described = tuple(array for _, array in sorted(arrays.items()))
    read, written = (tuple(numbers[n] for n in side) for side in (inputs, outputs))
    return Program(described, read, written, tuple(steps))


def _lower_on_cpu(*arrays, call: layer.Call) -> list:
    if call.kernels is not Kernels.NATIVE or call.is_tangent:
        return lowering.lowerings[layer.fused_p](*arrays, call=call)
    function, dtype = functools.partial(layer.definition, call=call), arrays[0].dtype
    closed = jax.make_jaxpr(function)(*map(jax.typeof, arrays))
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    trace = Trace(ClosedJaxpr(jaxpr, closed.consts), {})
    env = dict(zip(trace.inputs, compress(arrays, used), strict=True))
    converter = Converter(trace, dtype.name)
    known = {converter.read(v): a for v, a in env.items() if a.dtype == dtype}
    try:
        for node in trace.nodes:
            converter.convert(node)
        of_outputs = [converter.numbers[v] for v in trace.outputs]
        outputs = [n for n in of_outputs if isinstance(n, int) and n not in known]
        program = _over_rows(converter, list(known), outputs, call.num_rows)
    except NoStepError:
        return function(*arrays)
    indices = {name: env[value] for name, value, *_ in converter.index_arrays}
    if not program.runs_by_rows or len(indices) < len(converter.index_arrays):
        return function(*arrays)
    results = native.run_rows(program, list(known.values()), indices, call.num_rows, call.num_nodes)
    known |= dict(zip(outputs, results, strict=True))
    avals = [trace.avals[v] for v in trace.outputs]
    return [
        known[n] if isinstance(n, int) else jnp.full(aval.shape, n.value if n else 0, aval.dtype)
        for n, aval in zip(of_outputs, avals, strict=True)
    ]


mlir.register_lowering(layer.fused_p, rules.lowering_by(_lower_on_cpu), platform="cpu")
