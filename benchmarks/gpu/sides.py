"""What is measured on a GPU: cases, the most valuable first, each with sides that compute the same.

Only `prebuild` imports this: it needs eqfuse, Triton and e3nn-jax, which `measure` does not.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu import problems, steps
from benchmarks.gpu.problems import ORDERS, PROBLEMS, derivative
from eqfuse import models, ops

SMALL, MIDDLE, LARGE = (135, 2_700), (750, 40_000), (3_000, 160_000)
"""Nodes and edges."""
REDUCED, TINY = (24, 400), (6, 40)
PRODUCTS = {"NequIP 64 l=2": "nequip-64-l2", "MACE 128 l=3": "mace-large"}
LAYERS = {
    "gated layer, NequIP 64 l=2": (problems.NEQUIP, {"gate": True}),
    "gated rows, 32 l=2": (problems.GATED_ROWS, {"on_graph": False, "gate": True}),
    "layer, MACE 128 l=3": (("128x0e+128x1o", problems.SH3, problems.times(128, problems.SH3)), {}),
}
MODELS = ("nequip", "mace", "allegro")
FORCES = (("mace-mp-l", LARGE), ("mace-mp-m", LARGE), ("mace-off-m", (1_205, 48_200)))
PRECISIONS = {"float32": "highest", "TF32x3": ops.TF32X3, "TF32": None}
"""Of matmuls of float32, as JAX calls them; TF32 is what JAX takes by itself."""
OURS, THEIRS = "eqfuse", "e3nn-jax"


@dataclasses.dataclass(frozen=True)
class Side:
    """One way to compute a case; `build` returns a function and its arguments, numpy or shapes."""

    name: str
    build: Callable
    matmuls: str | None = "highest"
    x64: bool = False  # whether operands are widened to float64 before, and the results are so


@dataclasses.dataclass(frozen=True)
class Case:
    """Sides of the same results; the first that runs judges the others.

    Attributes:
      tolerance: largest difference, by the largest element of each result; a side beyond it is not
        timed. None for the parity with e3nn-jax in float64: no error may be more than twice that of
        e3nn-jax in float32 or, for a sum of n products, than sqrt(n) roundings (Higham and Mary
        2019: rounding errors of a sum are a random walk).
      products: the most products that are summed into one number, for each result.
    """

    name: str
    sides: tuple[Side, ...]
    tolerance: float | None = 1e-4
    products: tuple[int, ...] = ()


def _op(problem_of: Callable, order: str, dtype: str, backend: str):
    problem = problem_of()
    function = derivative(problem.function(backend), order)
    return function, (problem.arguments(order, dtype), problem.integers)


def op_cases(size, dtype: str = "float32", e3nn: bool = True) -> Iterator[Case]:
    """Yield products and layers in all orders, by what may compute them, beside e3nn-jax."""
    made = {title: {None: functools.partial(PROBLEMS[n], *size)} for title, n in PRODUCTS.items()}
    for title, (irreps, fields) in LAYERS.items():
        build = functools.partial(problems.fused, irreps, *size, **fields)
        made[title] = {mode: functools.partial(build, fused=mode) for mode in ("never", "always")}
    for title, order in itertools.product(made, ORDERS):
        sides = []
        for mode, problem in made[title].items():
            # products have no matmuls, whose precision differs
            words = ["float32"] if mode is None or dtype != "float32" else list(PRECISIONS)
            for word in words:
                build = functools.partial(_op, problem, order, dtype, "triton")
                name = ", ".join([OURS, *([f"fused={mode}"] if mode else []), word])
                sides.append(Side(name, build, PRECISIONS[word]))
        for word in ("float32", "TF32") if e3nn and dtype == "float32" else ():
            build = functools.partial(_op, problem, order, dtype, "e3nn")
            sides.append(Side(f"{THEIRS}, {word}", build, PRECISIONS[word]))
        tolerance = 2e-2 if dtype == "bfloat16" else 2e-3  # TF32 has 10 bits
        yield Case(f"{title}, {order}, {size[1]:,} edges, {dtype}", tuple(sides), tolerance)


def parity_cases(size=REDUCED, names=tuple(PROBLEMS), backend: str = "triton") -> Iterator[Case]:
    """Yield every op and its derivatives against e3nn-jax in float64."""
    for name in names:
        problem_of = functools.partial(PROBLEMS[name], *size)
        for order in ORDERS:
            build = functools.partial(functools.partial, _op, problem_of, order, "float32")
            sides = (
                Side(f"{THEIRS}, float64", build("e3nn"), x64=True),
                Side(f"{THEIRS}, float32", build("e3nn")),
                Side(OURS, build(backend)),
            )
            yield Case(f"{name}, {order}", sides, None, tuple(problem_of().products(order)))


def _step(model: str, size, backend: str):
    step, (params, state, _, *labels) = steps.training_step(model, backend, *size)
    graph = jax.tree.map(np.asarray, steps.batch(*size))
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)

    def function(params, state, graph, *labels):
        found = step(params, state, graph, *labels)
        return found[2], found[1][0].mu  # the loss, and its gradient by the first moment of Adam

    return function, (params, state, graph, *labels)


def _forces(name: str, size, backend: str):
    model, fields = ("mace", steps.PUBLISHED[name]) if name in steps.PUBLISHED else (name, {})
    graph = jax.tree.map(np.asarray, steps.batch(*size, graphs=1))
    potential = steps.potential_of(model, backend, **fields)

    def function(params, graph):
        found = models.predict(potential, params, graph)
        return found.energy, found.forces

    return function, (steps.shapes_of(potential, graph), graph)


def network_cases(
    build: Callable, kind: str, named, backend: str = "triton", words=("float32", "TF32x3")
) -> Iterator[Case]:
    for name, size in named:
        made = functools.partial(build, name, size, backend)
        sides = [Side(f"{OURS}, {word}", made, PRECISIONS[word]) for word in words]
        made = functools.partial(build, name, size, "e3nn")
        sides += [Side(f"{THEIRS}, {word}", made, PRECISIONS[word]) for word in ("float32", "TF32")]
        yield Case(f"{kind} of {name}, {size[1]:,} edges", tuple(sides), 1e-3)


def ceiling_cases(count: int = 2**28, words=tuple(PRECISIONS)) -> Iterator[Case]:
    """Yield what the device can do: a canary, a copy, and matmuls."""

    def one(name, function, *shapes, dtype="float32", matmuls="highest"):
        args = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
        return Case(name, (Side("XLA", lambda: (function, args), matmuls),))

    yield one("canary", lambda x: x + 1, (1024,))
    yield one(f"copy of {4 * count / 1e9:.2g} GB", lambda x: x + 1, (count,))
    side = math.isqrt(count) // 2
    for word in words:
        name, both = f"matmul of {side}, {word}", [(side, side)] * 2
        yield one(name, jnp.matmul, *both, matmuls=PRECISIONS[word])


def groups(tiny: bool = False) -> dict[str, list[Case]]:
    """Return the cases by group; those of a dry run on a CPU are few and small, and by XLA."""
    if tiny:
        sizes = [(name, (20, 40)) for name in MODELS[:1]]
        return {
            "ceilings": list(ceiling_cases(2**12, ("float32",))),
            "parity": list(parity_cases(TINY, ("tetris-1",), "xla")),
            "steps": list(network_cases(_step, "training step", sizes, "xla", ("float32",))),
        }
    few = [(name, SMALL) for name in MODELS]
    many = [(name, LARGE) for name in MODELS]
    return {
        "ceilings": list(ceiling_cases()),
        "parity": list(parity_cases()),
        "ops": list(op_cases(LARGE)),
        "steps": list(network_cases(_step, "training step", [*few, *many])),
        "small ops": list(op_cases(SMALL)),
        "forces": list(network_cases(_forces, "energy and forces", FORCES)),
        "bfloat16": list(op_cases(LARGE, "bfloat16")),
        "middle ops": list(op_cases(MIDDLE, e3nn=False)),
    }
