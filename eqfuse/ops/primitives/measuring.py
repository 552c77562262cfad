"""Time the candidates of the ops of a function on this device, and keep which of them won."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from eqfuse.ops._backend import has_gpu
from eqfuse.ops._edges import Edges
from eqfuse.ops.ir.form import INDEX_ARRAYS
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.primitives import choice, forms, layer, lowering, measured
from eqfuse.ops.primitives.measured import MARGIN, Problem, Result

CACHE = {"triton": 1 << 27, "llvm": 1 << 22}
"""Bytes of operands that calls go through by turns: more than a level-2 cache, so that a call finds
there what a network's loop would leave."""
MOST_SETS, MOST_CALLS = 8, 64
TURNS, LEAST_TURNS, SECONDS, SECONDS_OF_A_TURN = 7, 3, 0.2, 0.002
"""All turns are taken within these seconds, and the least number of them in any case."""


class Measurement(NamedTuple):
    """A problem of a function, and what was measured of it; `is_new` if that was now.

    There is no result where what the rule chooses fails by itself, which is a warning.
    """

    problem: Problem
    result: Result | None
    is_new: bool


def measure(function: Callable, *args, timer: Callable | None = None) -> list[Measurement]:
    """Time the kernels that could compute the ops of a function on this device; keep the winners.

    The function is traced, not computed. For each `TensorProductLinear` and
    `TensorProductLinearGate` in it that may be one kernel or several, arrays of its shape are made,
    the candidates are compared with the rule's choice, and those that agree are timed in turns,
    with the derivatives that the function takes. On a GPU the plans of products and Linears are
    timed, too. What is traced from then on, in this process or another, takes the winners.
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
      >>> x = e3nn.IrrepsArray("4x0e", jnp.ones((512, 4)))
      >>> module = ops.TensorProductLinear("4x0e", backend="llvm")
      >>> found = ops.measure(lambda x: module.init_with_output(jax.random.key(0), x, x)[0], x)
      >>> [sorted(m.result.ms) for m in found]
      [['APART', 'NATIVE']]
    """
    if not measured.is_on():
        raise ValueError(f"{measured.VARIABLE} is 0: nothing is measured")
    return _in_parts(function, args, timer or in_turns, list)


def _in_parts(function: Callable, args, timer: Callable, agreed: Callable) -> list[Measurement]:
    """Measure the fused ops, agree on the results, and measure the plans of what was chosen."""
    found = agreed(_measured(lowering.ops_of(function, *args), timer))
    return found + agreed(_measured(lowering.plans_of(function, *args), timer))


def measure_on_gpu(function: Callable, *args, together: bool = True) -> list[Measurement]:
    """Measure as `measure` does where JAX's device is a GPU, and say so before and after.

    eqfuse's own programs call it before they compile. Elsewhere, or with `EQFUSE_MEASURE=0`, it
    returns an empty list. Processes of one program (`jax.distributed`) take the results of the
    first, since they must run the same kernels: all call it with the same function. With
    `together=False`, each measures a function of its own.

    Example:
      >>> ops.measure_on_gpu(lambda x: x, 1.0)  # nothing in it has kernels to choose from
      []
    """
    if not (has_gpu() and measured.is_on()):
        return []
    start = time.perf_counter()
    if together and jax.process_count() > 1:
        found = _in_parts(function, args, in_turns, _agreed)
    else:
        found = measure(function, *args)
    if count := sum(m.is_new for m in found):
        seconds = time.perf_counter() - start
        print(
            f"eqfuse: the kernels of {count} op{'s' if count > 1 else ''} were timed on this GPU "
            f"in {seconds:.1f} s, once for all ({measured.VARIABLE}=0 leaves that out)",
            file=sys.stderr,
        )
    return found


def _agreed(found: list[Measurement]) -> list[Measurement]:
    """Return the first process's results, which replace those of this one."""
    if not found:  # in no process
        return found
    text = np.frombuffer(json.dumps([m.result for m in found]).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    text = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    results = [fields and Result(*fields) for fields in json.loads(bytes(text))]
    for m, result in zip(found, results, strict=True):
        measured.replace(m.problem, result)
    return [m._replace(result=r) for m, r in zip(found, results, strict=True)]


def _measured(problems: dict[Problem, int], timer: Callable) -> list[Measurement]:
    found = []
    if has_gpu() and (new := _not_known(problems)):
        with measured.alone("triton"):  # another process may have compiled or timed them, meanwhile
            _compile_all(_not_known(new))
    for problem, order in problems.items():
        if not (is_known := _is_known(problem, order)):
            with measured.alone(problem.backend):
                if not (is_known := _is_known(problem, order)):  # by another process, meanwhile
                    try:
                        measured.keep(problem, _winner(problem, order, timer))
                    except Exception as error:  # of what the rule chooses: memory, a compiler
                        warnings.warn(
                            f"the kernels of {problem} could not be timed, and are chosen by rule: "
                            f"{_first_line(error)}",
                            UserWarning,
                            stacklevel=4,
                        )
        found.append(Measurement(problem, measured.lookup(problem), not is_known))
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _not_known(problems: dict[Problem, int]) -> dict[Problem, int]:
    """Return the problems with kernels to compile that are not measured yet."""
    return {p: n for p, n in problems.items() if p.backend == "triton" and not _is_known(p, n)}


def _is_known(problem: Problem, order: int) -> bool:
    result = measured.lookup(problem)
    return result is not None and result.order >= order


def _winner(problem: Problem, order: int, timer: Callable) -> Result:
    """Return the fastest of the candidates that run and agree with the first, the rule's choice.

    Rounding errors of a sum of n products are a random walk of n steps; eight times that is for the
    difference of two. A step is what the results move by when the operands are rounded.
    """
    ready, left_out, expected = {}, {}, None
    operands, nudged = _operands(problem, order)
    for name, run in _candidates(problem, order):
        try:
            if has_gpu():
                _compile(run, operands, is_rule=expected is None)
            results = jax.block_until_ready(run(operands))
            if expected is None:
                expected, moved = results, _difference(results, run(nudged))
                nudged = None
                most = 8 * math.sqrt(_longest_sum(problem)) * max(moved, _eps(problem))
            elif (apart := _difference(expected, results)) > most:
                raise ArithmeticError(f"results differ by {apart:.1e}, and by rounding {most:.1e}")
            ready[name] = functools.partial(run, operands)
        except Exception as error:  # a compiler's, the device's memory's, or that above
            if expected is None:
                raise
            left_out[name] = _first_line(error)
        results = None
    expected = None  # whose memory the next candidate, or what is timed, may need
    seconds = timer(ready)
    rule, best = next(iter(ready)), min(seconds, key=seconds.get)
    if seconds[best] >= (1 - MARGIN) * seconds[rule]:
        best = rule
    return Result(best, order, {n: round(1e3 * s, 6) for n, s in seconds.items()}, left_out)


def _compile_all(problems: dict[Problem, int]):
    """Compile the kernels of all candidates in parallel; what fails does so again in its turn."""
    if count := len(problems):
        ops = f"{count} op{'s' if count > 1 else ''}"
        print(f"eqfuse: compiling kernels of {ops}, to time them", file=sys.stderr, flush=True)
    for is_rule in (True, False):
        runs, sets = [], []
        with contextlib.suppress(Exception):
            for problem, order in problems.items():
                [operands, *_], _ = jax.eval_shape(functools.partial(_operands, problem, order))
                candidates = [run for _, run in _candidates(problem, order)]
                candidates = candidates[:1] if is_rule else candidates[1:]
                runs += candidates
                sets += [[operands]] * len(candidates)
            _compile(functools.partial(_run_all, runs), sets, is_rule)


def _run_all(runs: list[Callable], sets: list) -> list:
    return [run(operands) for run, operands in zip(runs, sets, strict=True)]


def _compile(run: Callable, operands, is_rule: bool):
    """Compile kernels in parallel; refuse those of a candidate that spill, which it need not."""
    with warnings.catch_warnings():
        warnings.simplefilter("default" if is_rule else "ignore", RuntimeWarning)
        kernels = lowering.compile_ahead(run, operands)
    spilled = [k.spilled_bytes for k in kernels if k.target.startswith("sm_")]  # see `compile`
    if not is_rule and any(spilled):
        raise ArithmeticError(f"{max(spilled)} bytes of each thread's registers are spilled")


def _candidates(problem: Problem, order: int) -> Iterator[tuple[str, Callable]]:
    """Yield the name of each candidate and its function of operands; the rule's comes first."""
    if isinstance(problem.op, Fused):
        functions = {
            kernels.name: functools.partial(_derivative, problem, kernels, order)
            for kernels in choice.candidates(problem)
        }
    else:
        functions = {
            " ".join(map(str, plan)): functools.partial(_by_plan, problem, plan)
            for plan in forms.plans(problem)
        }
    for name, function in functions.items():
        yield name, jax.jit(functools.partial(_each, function))


def _each(function: Callable, sets: list) -> list:
    """Return the results for each set of operands, computed one after the other."""
    results = []
    for operands in sets:
        operands, results = jax.lax.optimization_barrier((operands, results))
        results = [*results, function(*operands)]
    return results


def _by_plan(problem: Problem, plan, arrays, _, integers):
    sizes = problem.num_rows, problem.num_nodes
    return forms.by_plan(problem.op, *sizes, plan, arrays, integers)


def _derivative(problem: Problem, kernels, order: int, floats, cotangents, integers):
    """Return the value of an op, with its gradients, and the gradients of these, by the order."""
    call = layer.Call(problem.op, problem.num_rows, problem.num_nodes, problem.backend, kernels)

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


def _operands(problem: Problem, order: int) -> tuple[list, list]:
    """Return sets of random operands, (floats, cotangents, integers), and the same but rounded."""
    op, rows, nodes = problem.op, problem.num_rows, problem.num_nodes
    rng, integers = np.random.default_rng(0), []
    if isinstance(op, Fused):
        array = functools.partial(jax.ShapeDtypeStruct, dtype=problem.dtype)
        count, linear = nodes if op.summed else rows, op.linear.linear_form
        floats = [array(op.form.shape(o, rows, nodes)) for o in op.form.inputs]
        floats += [array(linear.shape(o, rows)) for o in linear.inputs[1:]]
        floats += [array((count, linear.outputs[0].size))] * op.skip
        arrays = floats, [array((count, op.sizes[0])), floats][:order]
    else:
        dtypes = [op.dtype(o, problem.dtype) for o in op.inputs]
        shapes = [op.shape(o, rows, nodes) for o in op.inputs]
        arrays = list(map(jax.ShapeDtypeStruct, shapes, dtypes)), []
        if op.num_sets:
            integers.append(jnp.asarray(rng.integers(0, op.num_sets, rows), jnp.int32))
    if nodes:
        edges = _edges_of_a_graph(rng, rows, nodes)
        integers += [jnp.asarray(getattr(edges, name)) for name in INDEX_ARRAYS]
    leaves, tree = jax.tree.flatten(arrays)
    size = sum(a.size * a.dtype.itemsize for a in leaves)
    count = max(1, min(MOST_SETS, CACHE[problem.backend] // max(1, size)))
    keys = iter(jax.random.split(jax.random.key(0), count * len(leaves)))
    sets = [[jax.random.normal(next(keys), a.shape, a.dtype) for a in leaves] for _ in range(count)]

    def nudged(array):
        sign = jax.random.rademacher(jax.random.key(1), array.shape, array.dtype)
        return array * (1 + _eps(problem) * sign)

    def whole(arrays):
        return *jax.tree.unflatten(tree, arrays), integers

    return [whole(s) for s in sets], [whole(map(nudged, s)) for s in sets]


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
    end = time.perf_counter() + SECONDS
    for turn in range(TURNS):
        if turn >= LEAST_TURNS and time.perf_counter() > end:
            break
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


def _eps(problem: Problem) -> float:
    op = problem.op
    linear = op.linear.linear_form if isinstance(op, Fused) else op
    of_matmuls = {"tf32": 2.0**-10, "tf32x3": 2.0**-21}.get(linear.input_precision, 0.0)
    dtypes = [problem.dtype, *(linear.dtype(o, problem.dtype) for o in linear.outputs)]
    return max(of_matmuls, *(float(jnp.finfo(t).eps) for t in dtypes))


def _longest_sum(problem: Problem) -> int:
    """Return the most products that are summed into one number: over rows, or components of one."""
    op = problem.op
    operands = op.form.operands + op.linear.linear_form.operands if isinstance(op, Fused) else ()
    operands = operands or op.operands
    largest = max((s.dim for o in operands for s in o.segments), default=1)
    return problem.num_rows * largest + max(o.size for o in operands)
