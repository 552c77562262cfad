"""Find the sequence that a function computes, in what JAX makes of it."""

import jax
from jax.interpreters import partial_eval as pe

from eqfuse.ops.ir.sequence import Step, StepSequence


def traced(function, arrays, num_integers: int) -> tuple[StepSequence, tuple[int, ...]] | None:
    """Return the sequence that a function computes, and which arrays it reads; None if it is
    anything else.

    Args:
      function: of arrays; returns a list of arrays.
      arrays: its arguments, of which the last `num_integers` are index arrays, which go to every
        form on a graph unchanged.
    """
    closed = jax.make_jaxpr(function)(*(jax.typeof(a) for a in arrays))
    num_floats = len(arrays) - num_integers
    indices = closed.jaxpr.invars[num_floats:]
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = tuple(n for n in range(num_floats) if used[n])
    numbers = {v: n for n, v in enumerate(jaxpr.invars[: len(read)])}
    steps = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name not in ("eqfuse_form", "eqfuse_linear_form"):
            return None
        what = eqn.params.get("form") or eqn.params["linear_form"]
        reads, rest = eqn.invars[: len(what.inputs)], eqn.invars[len(what.inputs) :]
        if any(v not in numbers for v in reads) or (rest and rest != indices):
            return None
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        steps.append(
            Step(what, tuple(numbers[v] for v in reads), tuple(numbers[v] for v in eqn.outvars))
        )
    if any(v not in numbers for v in jaxpr.outvars):
        return None
    return StepSequence(tuple(steps), len(read), tuple(numbers[v] for v in jaxpr.outvars)), read
