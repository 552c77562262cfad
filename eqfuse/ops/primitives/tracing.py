"""Find the program that a function computes, in what JAX makes of it."""

import jax
from jax.interpreters import partial_eval as pe

from eqfuse.ops.ir.program import Program
from eqfuse.ops.ir.steps import Array, Multilinear


def traced(function, arguments, num_integers: int) -> tuple[Program, tuple[int, ...]] | None:
    """Return the program of forms and linear forms that a function computes, and what it reads.

    Args:
      function: of arrays; returns a list of arrays.
      arguments: its arguments, of which the last `num_integers` are index arrays, which go to every
        form on a graph unchanged.
    Returns:
      The program, and the numbers of the arguments that are its inputs; None where the function
      computes anything else.
    """
    closed = jax.make_jaxpr(function)(*(jax.typeof(a) for a in arguments))
    num_floats = len(arguments) - num_integers
    indices = closed.jaxpr.invars[num_floats:]
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = tuple(n for n in range(num_floats) if used[n])
    numbers = {v: n for n, v in enumerate(jaxpr.invars[: len(read)])}
    arrays: dict[int, Array] = {}
    steps = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name not in ("eqfuse_form", "eqfuse_linear_form"):
            return None
        form = eqn.params.get("form") or eqn.params["linear_form"]
        reads, rest = eqn.invars[: len(form.inputs)], eqn.invars[len(form.inputs) :]
        if any(v not in numbers for v in reads) or (rest and rest != indices):
            return None
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        operands, writes = (tuple(numbers[v] for v in side) for side in (reads, eqn.outvars))
        steps.append(Multilinear(form, operands, writes))
        for v, operand in zip((*reads, *eqn.outvars), form.operands, strict=True):
            arrays[numbers[v]] = Array.of(operand, v.aval.dtype.name)
    if any(v not in numbers for v in jaxpr.outvars) or len(arrays) < len(numbers):
        return None
    described = tuple(array for _, array in sorted(arrays.items()))
    outputs = tuple(numbers[v] for v in jaxpr.outvars)
    return Program(described, tuple(range(len(read))), outputs, tuple(steps)), read
