"""Time the candidates of the ops of a function on this device, and keep which of them won."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.primitives import choice, forms, layer, measured
from eqfuse.ops.primitives.measured import MARGIN, Problem, Result

CACHE = 1 << 27
"""Bytes of operands that calls go through by turns: more than a level-2 cache, so that a call finds
there what a network's loop would leave."""
MOST_SETS, TURNS, SECONDS_OF_A_TURN, MOST_CALLS = 8, 7, 0.002, 64


class Measurement(NamedTuple):
    """A problem of a function, and what was measured of it; `is_new` if it was measured now."""

    problem: Problem
    result: Result | None
    is_new: bool


def measure(function: Callable, *args, timer: Callable | None = None) -> list[Measurement]:
    """Time the kernels that could compute the ops of a function, here and now, and keep the winners.

    The function is traced, not computed. For each `TensorProductLinear` and `TensorProductLinearGate`
    in it that may be one kernel or several, arrays of its shape are made, the candidates are compared
    with the rule's choice, and those that agree are timed in turns, with the derivatives that the
    function takes. What is traced from then on, in this process or another, takes the winners.
    `EQFUSE_MEASURE=0` and `fused=` of an op leave them aside. An op inside of `jax.vmap` or
    `jax.shard_map` is not measured.

    Args:
      function: of JAX arrays, jitted or not, such as a training step; one that has been traced
        before calls no op, and is traced anew only if it is jitted anew.
      args: its arguments, arrays or jax.ShapeDtypeStructs in any pytree.
      timer: takes functions without arguments by name, and returns the seconds of each; to test
        with. None times on the device.
    Returns:
      A measurement for each op and shape, also of those that were measured before.
    Raises:
      ValueError: EQFUSE_MEASURE is 0, or neither 0 nor 1.

    Example:
      >>> module = ops.TensorProductLinear("4x0e")
      >>> x, y = e3nn.normal("4x0e", leading_shape=(512,)), e3nn.normal("1x0e", leading_shape=(512,))
      >>> ops.measure(lambda x, y: module.init_with_output(jax.random.key(0), x, y)[0], x, y)
    """
    if not measured.is_on():
        raise ValueError(f"{measured.VARIABLE} is 0: nothing is measured")
    found = []
    for problem, order in measured.collect(function, *args).items():
        known = measured.lookup(problem)
        is_new = known is None or known.order < order
        if is_new:
            known = _winner(problem, order, timer or in_turns)
            measured.keep(problem, known)
        found.append(Measurement(problem, known, is_new))
    return found


def _winner(problem: Problem, order: int, timer: Callable) -> Result:
    """Return the fastest of the candidates that run and agree with the first, the rule's choice."""
    ready, left_out, expected = {}, {}, None
    for name, run in _candidates(problem, order):
        try:
            results = jax.block_until_ready(run())
            if expected is None:
                expected = results
            elif (apart := _difference(expected, results)) > (most := _rounding(problem)):
                raise ArithmeticError(f"results differ by {apart:.1e}, and by rounding {most:.1e}")
            ready[name] = run
        except Exception as error:  # a compiler's, the device's memory's, or that above
            left_out[name] = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            if expected is None:
                raise
    seconds = timer(ready)
    rule, best = next(iter(ready)), min(seconds, key=seconds.get)
    if seconds[best] >= (1 - MARGIN) * seconds[rule]:
        best = rule
    return Result(best, order, {n: round(1e3 * s, 6) for n, s in seconds.items()}, left_out)


def _candidates(problem: Problem, order: int) -> Iterator[tuple[str, Callable]]:
    """Yield the name of each candidate and its call, on the same arrays; the rule's comes first."""
    op, rows, nodes, backend = problem.op, problem.num_rows, problem.num_nodes, problem.backend
    dtype = jnp.dtype(problem.dtype)
    if isinstance(op, Fused):
        shapes = _shapes_of_layer(op, rows, nodes)
        functions = {
            kernels.name: functools.partial(_derivative, op, rows, nodes, backend, kernels, order)
            for kernels in choice.candidates(op, rows, nodes, backend, dtype)
        }
    else:
        shapes = [op.shape(o, rows, nodes) for o in op.inputs]
        functions = {
            str(plan): functools.partial(forms.by_plan, problem, plan)
            for plan in forms.plans(problem)
        }
    sets = _operands(op, shapes, problem)
    for name, function in functions.items():
        yield name, functools.partial(jax.jit(functools.partial(_each, function)), sets)


def _each(function: Callable, sets: list) -> list:
    """Return the results for each set of operands, computed one after the other."""
    results = []
    for operands in sets:
        operands, results = jax.lax.optimization_barrier((operands, results))
        results = [*results, function(*operands)]
    return results


def _derivative(fused, rows, nodes, backend, kernels, order, floats, cotangents, integers):
    """Return the value of an op, with its gradients, and the gradients of these, by the order."""
    call = layer.Call(fused, rows, nodes, backend, kernels)

    def value(floats):
        return layer.evaluate(call, floats, integers)

    def gradient(floats, cotangent):
        out, transposed = jax.vjp(value, floats)
        return transposed(cotangent)[0], out

    if order == 0:
        return value(floats)
    if order == 1:
        return gradient(floats, cotangents[0])
    results, transposed, out = jax.vjp(gradient, floats, cotangents[0], has_aux=True)
    return out, results, transposed(cotangents[1])


def _shapes_of_layer(fused: Fused, rows: int, nodes: int) -> list[tuple[int, ...]]:
    linear, count = fused.linear.linear_form, nodes if fused.summed else rows
    shapes = [fused.form.shape(o, rows, nodes) for o in fused.form.inputs]
    shapes += [linear.shape(o, rows) for o in linear.inputs[1:]]
    return [*shapes, *[(count, fused.linear.size_out)] * fused.skip]


def _operands(op: Fused | Form, shapes, problem: Problem) -> list[tuple]:
    """Return sets of random operands: (floats, cotangents, integers) of an op."""
    dtype = jnp.dtype(problem.dtype)
    rng = np.random.default_rng(0)
    integers, rows, nodes = [], problem.num_rows, problem.num_nodes
    if isinstance(op, Fused):
        count = nodes if op.summed else rows
        cotangents = [(count, op.sizes[0]), shapes]
    else:
        count, cotangents = rows, []
    num_sets = op.num_sets
    if num_sets:
        integers.append(jnp.asarray(rng.integers(0, num_sets, count), jnp.int32))
    if nodes:
        edges = _edges_of_a_graph(rng, rows, nodes)
        integers += [jnp.asarray(getattr(edges, name)) for name in INDEX_ARRAYS]
    size = sum(map(math.prod, shapes)) * dtype.itemsize
    keys = iter(jax.random.split(jax.random.key(0), MOST_SETS * (2 * len(shapes) + 1)))

    def made(shapes):
        if isinstance(shapes, tuple):
            return jax.random.normal(next(keys), shapes, dtype)
        return [made(shape) for shape in shapes]

    count = max(1, min(MOST_SETS, CACHE // max(1, size)))
    return [(made(list(shapes)), made(cotangents), integers) for _ in range(count)]


def _edges_of_a_graph(rng, num_edges: int, num_nodes: int) -> Edges:
    """Return edges like those of atoms: nodes have equally many, from nodes near them in memory."""
    receivers = np.arange(num_edges) * num_nodes // max(1, num_edges)
    near = max(1, 2 * num_edges // num_nodes)
    senders = (receivers + rng.integers(-near, near + 1, num_edges)) % num_nodes
    return Edges.from_arrays(senders, receivers, num_nodes)


def in_turns(calls: dict[str, Callable]) -> dict[str, float]:
    """Return the median seconds of each call, timed in turns of a few milliseconds."""
    repeats, times = {}, {name: [] for name in calls}
    for name, call in calls.items():
        jax.block_until_ready(call())
        repeats[name] = max(1, min(MOST_CALLS, math.ceil(SECONDS_OF_A_TURN / _seconds(call, 1))))
    for _ in range(TURNS):
        for name, call in calls.items():
            times[name].append(_seconds(call, repeats[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def _seconds(call: Callable, repeats: int) -> float:
    start, result = time.perf_counter(), None
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def _difference(expected, actual) -> float:
    """Return the largest |actual - expected| of an array, by its largest |expected|."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        wide = jnp.promote_types(a.dtype, jnp.float32)
        scale = float(jnp.max(jnp.abs(a.astype(wide)), initial=0))
        error = float(jnp.max(jnp.abs(a.astype(wide) - b.astype(wide)), initial=0))
        worst = max(worst, error / (scale or 1.0) if math.isfinite(error) else math.inf)
    return worst


EPS = {"tf32": 2.0**-10, "tf32x3": 2.0**-21}


def _rounding(problem: Problem) -> float:
    """Return how far rounding may take two results apart, by the largest element.

    Errors of a sum of n products are a random walk of n steps, of which eight times its length is
    for the difference of two. The longest sums are gradients of parameters, over all rows.
    """
    op = problem.op
    linear = op.linear.linear_form if isinstance(op, Fused) else op
    eps = max(float(jnp.finfo(problem.dtype).eps), EPS.get(linear.input_precision, 0.0))
    operands = (*op.form.operands, *linear.operands) if isinstance(op, Fused) else op.operands
    largest = max(s.dim for o in operands for s in o.segments)
    return 8 * eps * math.sqrt(problem.num_rows * largest + max(o.size for o in operands))
