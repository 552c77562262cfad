"""Find the program that a function computes, in what JAX makes of it."""

import dataclasses

import jax
import numpy as np
from jax.interpreters import partial_eval as pe

from eqfuse.ops.ir import activated
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm, Rows
from eqfuse.ops.ir.operands import INDEX_ARRAYS
from eqfuse.ops.ir.program import Program
from eqfuse.ops.ir.steps import Activate, Array, Extent, Multilinear

KERNELS = {"eqfuse_form": "form", "eqfuse_linear_form": "linear_form"}
KERNELS |= {"eqfuse_activation": "activated"}
SUMS = ("add", "add_any")


@dataclasses.dataclass(frozen=True)
class Traced:
    """The program that a function computes.

    Attributes:
      read: the numbers of the arguments that are its inputs.
      constants: the number that each output of the function is everywhere, or None.
      passed: the argument that each output of the function is, or None. The program computes, in
        order, what is neither.
    """

    program: Program
    read: tuple[int, ...]
    constants: tuple[float | None, ...]
    passed: tuple[int | None, ...]


def traced(function, arguments, num_integers: int, of_nodes: bool = False) -> Traced | None:
    """Return the program of forms and linear forms that a function computes, and what it reads.

    Sums of two arrays of rows are forms as well.

    Args:
      function: of arrays; returns a list of arrays.
      arguments: its arguments, of which the last `num_integers` are index arrays, which go to every
        form on a graph unchanged.
      of_nodes: whether the rows of what is not on the graph are nodes.
    Returns:
      None where the function computes anything else.
    """
    closed = jax.make_jaxpr(function)(*(jax.typeof(a) for a in arguments))
    num_floats = len(arguments) - num_integers
    indices = closed.jaxpr.invars[num_floats:]
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = tuple(n for n in range(num_floats) if used[n])
    numbers = {v: n for n, v in enumerate(jaxpr.invars[: len(read)])}
    arrays: dict[int, Array] = {}
    constants: dict = {}
    blocks = _blocks(jaxpr)
    steps = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "broadcast_in_dim" and not _is_variable(eqn.invars[0]):
            constants[eqn.outvars[0]] = np.asarray(eqn.invars[0].val).item()
            continue
        form = _form(eqn, blocks)
        if form is None:
            return None
        reads, rest = eqn.invars[: len(form.inputs)], eqn.invars[len(form.inputs) :]
        if any(not _is_variable(v) or v not in numbers for v in reads):
            return None
        if rest and rest != indices:
            return None
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        operands, writes = (tuple(numbers[v] for v in side) for side in (reads, eqn.outvars))
        kind = Activate if isinstance(form, activated.Activated) else Multilinear
        steps.append(kind(form, operands, writes))
        for v, operand in zip((*reads, *eqn.outvars), form.operands, strict=True):
            array = Array.of(operand, v.aval.dtype.name)
            if of_nodes and array.extent is Extent.ROWS and not getattr(form, "on_graph", False):
                array = dataclasses.replace(array, extent=Extent.NODES)
            if arrays.setdefault(numbers[v], array) != array:  # a sum of weights
                return None
    if not all(map(_is_variable, jaxpr.outvars)):
        return None
    passed = dict(zip(jaxpr.invars, read, strict=False))
    computed = [v for v in jaxpr.outvars if v not in constants and v not in passed]
    if any(v not in numbers for v in computed) or len(arrays) < len(numbers):
        return None
    described = tuple(array for _, array in sorted(arrays.items()))
    outputs = tuple(numbers[v] for v in computed)
    program = Program(described, tuple(range(len(read))), outputs, tuple(steps))
    known = (tuple(of.get(v) for v in jaxpr.outvars) for of in (constants, passed))
    return Traced(program, read, *known)


def as_whole(program: Program, num_rows: int, num_nodes: int) -> Program:
    """Return a program on a graph as one that runs whole: arrays in full, index arrays behind."""
    counts = {Extent.WHOLE: 1, Extent.ROWS: num_rows, Extent.NODES: num_nodes}
    places = {name: len(program.arrays) + k for k, name in enumerate(INDEX_ARRAYS)}
    steps = []
    for step in program.steps:
        if isinstance(step.form, Form) and step.form.on_graph:
            numbers = {"indices": tuple(places.items()), "num_nodes": num_nodes}
            steps.append(dataclasses.replace(step, num_rows=num_rows, **numbers))
        elif isinstance(step.form, LinearForm):  # one set of weights
            steps.append(dataclasses.replace(step, num_rows=num_nodes, num_nodes=1))
        else:
            steps.append(dataclasses.replace(step, num_rows=num_nodes))
    arrays = [Array(a.size * counts[a.extent], a.dtype) for a in program.arrays]
    arrays += [Array(num_nodes + 1 if n.endswith("_ptr") else num_rows, "int32") for n in places]
    limits = {n: num_rows if n.endswith(("_order", "_ptr")) else num_nodes for n in places}
    indices = tuple((n, name, limits[name]) for name, n in places.items())
    inputs = (*program.inputs, *places.values())
    return Program(tuple(arrays), inputs, program.outputs, tuple(steps), indices)


def _is_variable(v) -> bool:
    return not isinstance(v, jax.extend.core.Literal)


def _blocks(jaxpr) -> dict:
    """Return the blocks of the arrays that linear forms read or write as rows."""
    blocks = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "eqfuse_linear_form":
            form = eqn.params["linear_form"]
            arrays = (*eqn.invars[: len(form.inputs)], *eqn.outvars)
            rows = zip(arrays, form.operands, strict=True)
            blocks |= {v: o.blocks for v, o in rows if isinstance(o, Rows)}
    return blocks


def _form(eqn, blocks: dict):
    """Return what an equation computes, as a form; None where it is none.

    Args:
      blocks: see `_blocks`.
    """
    if eqn.primitive.name in KERNELS:
        return eqn.params[KERNELS[eqn.primitive.name]]
    operands = (*eqn.invars, *eqn.outvars)
    shapes = {v.aval.shape for v in operands}
    if eqn.primitive.name not in SUMS or len(shapes) > 1 or len(next(iter(shapes))) != 2:
        return None
    known = {blocks[v] for v in operands if _is_variable(v) and v in blocks}
    if len(known) > 1:
        return None
    return activated.sum_form(eqn.outvars[0].aval.shape[1], *known)
