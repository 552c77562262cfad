"""One op, its backward pass and the backward pass of that, timed against e3nn-jax and the peers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.bench.errors import first_line
from eqfuse.bench.peers import PEERS, Side
from eqfuse.bench.problem import ORDERS, Problem, derivative
from eqfuse.bench.problems import PROBLEMS
from eqfuse.bench.record import ParityError
from eqfuse.bench.timing import compile_all, interleaved_batches, precision

OURS, REFERENCE, EXACT = "eqfuse", "e3nn-jax", "e3nn-jax in float32"


@dataclasses.dataclass(frozen=True)
class Request:
    """What to time.

    Attributes:
      name: of `PROBLEMS`.
      size: nodes and edges.
      dtype: "float32", "float64" or "bfloat16".
      backend: of eqfuse.
      peers: names of `PEERS`, with options.
      seconds: to time each order.
      machine: as `timing.gpu_rates` gives it.
    """

    name: str
    size: tuple[int, int]
    dtype: str
    backend: str
    peers: dict[str, dict]
    seconds: float
    machine: dict


def measure(request: Request) -> Iterator[dict]:
    """Time one op against e3nn-jax and the peers: one result for each order of derivative.

    Every side is compared with e3nn-jax on the same numbers, on the device, and not timed where its
    results differ; nothing is timed where those of eqfuse do. A side that fails has "error" in the
    place of times, and the others go on.
    """
    problem = PROBLEMS[request.name](*request.size)
    with precision(request.dtype):
        sides, errors = _sides(problem, request)
        shapes = problem.arguments("double", request.dtype)
        integers = jax.tree.map(jnp.asarray, problem.integers)
        ahead = _compile_ahead(sides[OURS].function, request.backend, shapes, integers)
        arguments = random_arrays(shapes)
        for number, order in enumerate(ORDERS, 1):
            compiled = _compiled(problem, sides, request.dtype, order, shapes[:number], integers)
            run = _Order(problem, request, order, arguments[:number], integers, sides, dict(errors))
            yield run.measure(compiled) | {"kernels_compile_s": ahead}


def _sides(problem: Problem, request: Request) -> tuple[dict[str, Side], dict[str, str]]:
    """Return the sides by name, and why others are missing."""
    sides = {REFERENCE: Side(problem.function("e3nn"))}
    errors = {}
    for name, options in request.peers.items():
        try:
            sides[name] = PEERS[name](problem, request.dtype, **options)
        except Exception as error:
            errors[name] = first_line(error)
    sides[OURS] = Side(problem.function(request.backend))
    return sides, errors


def _compile_ahead(function, backend: str, shapes, integers) -> float | None:
    """Return seconds to compile the kernels of all orders in parallel, or None."""
    if backend != "triton":
        return None
    start = time.perf_counter()

    def everything(arguments, integers):
        return [
            derivative(function, order)(arguments[:n], integers)
            for n, order in enumerate(ORDERS, 1)
        ]

    with contextlib.suppress(RuntimeError):  # the order that does not compile says so itself
        ops.compile_ahead(everything, shapes, integers)
    return time.perf_counter() - start


def _compiled(problem, sides, dtype, order: str, shapes, integers) -> dict:
    """Compile every side of an order, and the exact reference of bfloat16."""
    functions = {}
    for name, side in sides.items():
        inputs = jax.eval_shape(functools.partial(side.arguments, order), shapes)
        functions[name] = derivative(side.function, order), (inputs, integers)
    if dtype == "bfloat16":
        wide = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, "float32"), shapes)
        functions[EXACT] = derivative(problem.function("e3nn"), order), (wide, integers)
    return {EXACT: None} | compile_all(functions, dtype)


def random_arrays(shapes):
    """Return normal random numbers of these shapes, made on the device."""
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    normal = jax.jit(jax.random.normal, static_argnums=(1, 2))
    arrays = [normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, arrays)


@dataclasses.dataclass
class _Order:
    """One order of derivative on all sides."""

    problem: Problem
    request: Request
    order: str
    arguments: tuple
    integers: object
    sides: dict[str, Side]
    errors: dict[str, str]

    def measure(self, compiled: dict) -> dict:
        """Return the result of this order: times of all sides that are right."""
        calls, numbers, checked = self._checked(compiled)
        row = {
            "group": "kernels",
            "case": self.request.name,
            "size": list(self.request.size),
            "order": self.order,
            "dtype": self.request.dtype,
            "checked_against": checked,
            "bytes": self.bytes(),
            "operations": self.operations(),
        }
        if OURS in self.errors:  # a case that is not right has no times
            return row | {"error": f"{OURS}: {self.errors[OURS]}"}
        calls = {OURS: calls.pop(OURS), **calls}
        sides = {name: {"error": error} for name, error in self.errors.items()}
        for name, times in interleaved_batches(calls, self.request.seconds).items():
            sides[name] = numbers[name] | times | self._shares(times["ms"].median)
        return row | {"sides": sides}

    def _checked(self, compiled: dict):
        """Return calls of the sides whose results are right, their notes, and the judge."""
        judge = expected = None
        if compiled[EXACT] is not None:
            try:
                wide = jax.tree.map(lambda a: a.astype(jnp.float32), self.arguments)
                expected = jax.block_until_ready(_function(compiled[EXACT])(wide, self.integers))
                judge = EXACT
            except Exception as error:
                self.errors[EXACT] = first_line(error)
        calls, numbers = {}, {}
        for name, side in self.sides.items():
            try:
                function, seconds = _function(compiled[name]), compiled[name][1]
                inputs = side.arguments(self.order, self.arguments)
                call = functools.partial(function, inputs, self.integers)
                results = side.results(self.order, jax.block_until_ready(call()))
                numbers[name] = {"compile_s": seconds, "scratch_bytes": scratch(function)}
                if judge is None:
                    judge, expected = name, results
                elif not (judge == EXACT and name == REFERENCE):  # the definition rounds as it does
                    error = largest_difference(expected, results)
                    numbers[name]["difference"] = error
                    if not error <= self.tolerance():
                        raise ParityError(f"results differ by {error:.1e} from {judge}")
                calls[name] = call
            except Exception as error:
                self.errors[name] = first_line(error)
        return calls, numbers, judge if judge != OURS else "itself in a reduced size"

    def tolerance(self) -> float:
        """Return how much two results may differ, by the largest element.

        Rounding errors of a sum of n products are a random walk of n steps; eight times that for
        the difference of two. In bfloat16, of the roundings of results and of what lies between.
        """
        if self.request.dtype == "bfloat16":
            return (16 if self.problem.composed else 4) * float(jnp.finfo(jnp.bfloat16).eps) / 2
        eps = float(np.finfo(self.request.dtype).eps)
        return 8 * eps * math.sqrt(max(self.problem.products(self.order)))

    def bytes(self) -> int:
        """Return the least that moves: every operand read and every result written once."""
        results = self.problem.results(self.order, self.request.dtype)
        return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((self.arguments, results)))

    def operations(self) -> int:
        """Return the operations as `Form.counts` counts them; 0 for what is more than a form."""
        if not self.problem.forms:
            return 0
        return self.problem.forms[self.order].counts(self.problem.rows).operations

    def _shares(self, ms: float) -> dict:
        """Return bytes and operations per second by what was measured on this machine."""
        machine, seconds = self.request.machine, ms / 1e3
        if not machine:
            return {}
        arithmetic = "float64" if self.request.dtype == "float64" else "float32"
        return {
            "bandwidth_share": self.bytes() / seconds / machine["copy_bytes_per_s"],
            "rate_share": self.operations() / seconds / machine[f"{arithmetic}_per_s"],
        }


def _function(compiled):
    """Return the function of what `compile_all` gives; its exception is raised."""
    if isinstance(compiled, Exception):
        raise compiled
    return compiled[0]


def scratch(function) -> int | None:
    """Return bytes that XLA allocates for intermediates."""
    analysis = function.memory_analysis()
    return None if analysis is None else analysis.temp_size_in_bytes


@jax.jit
def _differences(expected, actual):
    def one(a, b):
        wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
        a, b = a.astype(wide), b.astype(wide)
        return jnp.max(jnp.abs(a - b), initial=0), jnp.max(jnp.abs(a), initial=0)

    return jax.tree.map(one, expected, actual)


def largest_difference(expected, actual) -> float:
    """Return |actual - expected| by the largest |expected| of each array, computed on the device.

    Raises:
      ParityError: the results are not alike.
    """
    shapes = [[a.shape for a in jax.tree.leaves(side)] for side in (expected, actual)]
    if shapes[0] != shapes[1]:
        raise ParityError(f"results are not alike: {shapes[0]} and {shapes[1]}")
    pairs = _differences(jax.tree.leaves(expected), jax.tree.leaves(actual))
    errors = [float(d) / float(s) if float(s) else float(d) for d, s in pairs]
    return max((math.inf if math.isnan(e) else e for e in errors), default=0.0)
