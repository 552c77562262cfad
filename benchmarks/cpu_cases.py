"""What `benchmarks.cpu` measures: ops of `benchmarks.problems`, and steps of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import BOTH2, BOTH3, CASES, SH2, SH3, Case, times
from benchmarks.problems import (
    Problem,
    channelwise_rows,
    derivative,
    graph_product,
    linear,
    random_edges,
    row_product,
)
from benchmarks.step_work import step_work
from eqfuse import models, ops
from eqfuse.graph import Graph

NODES, EDGES = 135, 2700
"""Of a batch of five molecules of 3BPA with a cutoff of 5 Å."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """One computation, by backend.

    Attributes:
      function: backend -> a function of `args`.
      bytes, operations: the least that it moves and computes, counted from the form; 0 if unknown.
    """

    function: Callable
    args: tuple
    bytes: int = 0
    operations: int = 0


def timed(problem: Problem, backward: bool) -> Timed:
    """Make what is timed of an op: its value, or its gradients along with it."""
    order = "backward" if backward else "forward"
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda a: normal(rng, *a.shape), problem.arguments(order, "float32"))

    def function(backend):
        computed = derivative(problem.function(backend), order)
        return lambda *args: computed(args, problem.integers)

    if not problem.forms:
        return Timed(function, args)
    moved = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((args, problem.results(order))))
    return Timed(function, args, moved, problem.forms[order].counts(problem.rows).operations)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def molecules(count: int = 5, atoms: int = 27, cutoff: float = 5.0) -> Graph:
    """Return random molecules of the size and density of 3BPA."""
    rng = np.random.default_rng(0)
    positions, senders, receivers = [], [], []
    for n in range(count):
        grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)
        r = 1.9 * grid[:atoms] + rng.normal(size=(atoms, 3)) * 0.2
        distance = np.linalg.norm(r[:, None] - r, axis=-1)
        found = np.nonzero((distance < cutoff) & (distance > 0))
        positions.append(r)
        senders.append(found[0] + n * atoms)
        receivers.append(found[1] + n * atoms)
    nodes = count * atoms
    edges = ops.Edges.from_arrays(np.concatenate(senders), np.concatenate(receivers), nodes)
    return Graph(
        positions=jnp.asarray(np.concatenate(positions), jnp.float32),
        species=jnp.asarray(rng.integers(0, 4, nodes), jnp.int32),
        edges=edges,
        shifts=jnp.zeros((edges.num_edges, 3), jnp.float32),
        graph_index=jnp.asarray(np.repeat(np.arange(count), atoms), jnp.int32),
        cells=jnp.zeros((count, 3, 3), jnp.float32),
        node_mask=jnp.ones(nodes, bool),
        graph_mask=jnp.ones(count, bool),
    )


def random_graph(num_edges: int, neighbours: int = 20) -> Graph:
    """Return one graph of `num_edges / neighbours` atoms, with edges between any two of them."""
    rng = np.random.default_rng(0)
    nodes = max(num_edges // neighbours, 2)
    return Graph(
        positions=2 * normal(rng, nodes, 3),
        species=jnp.asarray(rng.integers(0, 4, nodes), jnp.int32),
        edges=random_edges(nodes, num_edges, grouped=False),
        shifts=jnp.zeros((num_edges, 3), jnp.float32),
        graph_index=jnp.zeros(nodes, jnp.int32),
        cells=jnp.zeros((1, 3, 3), jnp.float32),
        node_mask=jnp.ones(nodes, bool),
        graph_mask=jnp.ones(1, bool),
    )


def training_step(
    name: str = "nequip",
    channels: int = 64,
    num_molecules: int = 5,
    layers: int = 3,
    counted: bool = False,
) -> Timed:
    """Return the gradient of a loss on energies and forces of molecules of 27 atoms.

    Args:
      name: of the model; l <= 2, else the defaults.
      channels, layers: of it.
      num_molecules: in the batch.
      counted: see `step_on`.
    """
    graph = molecules(num_molecules)
    return step_on(graph, name, counted, channels=channels, layers=layers)


def potential_on(graph: Graph, name: str, **fields):
    """Return a model for a batch, as a function of the backend, and parameters of it.

    Parameters are normal numbers, as most of e3nn-jax's are, for which nothing is compiled.
    """

    def potential(backend):
        neighbours = graph.edges.num_edges / graph.positions.shape[0]
        common = {"irreps_out": "0e", "num_species": 4, "avg_num_neighbors": neighbours}
        model = models.build(name, **common, **fields, backend=backend)
        return models.Potential(model=model, scale=(1.0,) * 4, shift=(0.0,) * 4)

    arguments = (graph.vectors, graph.species, graph.edges)
    shapes = jax.eval_shape(potential("e3nn").init, jax.random.key(0), *arguments)
    rng = np.random.default_rng(2)
    return potential, jax.tree.map(lambda s: normal(rng, *s.shape), shapes)


def step_on(graph: Graph, name: str, counted: bool = False, **fields) -> Timed:
    """Return the gradient of a loss on energies and forces.

    Args:
      graph: a batch.
      counted: whether its work is counted, by `step_work`.
      name, fields: of the model.
    """
    targets = normal(np.random.default_rng(1), graph.positions.shape[0], 3)
    potential, params = potential_on(graph, name, **fields)

    def function(backend):
        def loss(params, graph, targets):
            prediction = models.predict(potential(backend), params, graph)
            return jnp.sum(prediction.energy**2) + jnp.sum((prediction.forces - targets) ** 2)

        return jax.value_and_grad(loss)

    args = (params, graph, targets)
    moved, operations = step_work(function("llvm"), args) if counted else (0, 0)
    return Timed(function, args, moved, operations)


def _scaled(mul: int) -> dict[str, Case]:
    return {
        f"NequIP l<=2, {mul}": Case(times(mul, BOTH2), SH2, BOTH2),
        f"MACE-large, {mul}": Case(times(mul, "0e+1o+2e"), SH3, SH3),
        f"NequIP l<=3, {mul}": Case(times(mul, BOTH3), SH3, BOTH3),
    }


def _on_graph(case: Case, nodes: int = NODES, edges: int = EDGES) -> Problem:
    return graph_product(case, nodes, edges, grouped=False)


def _of_rows(irreps_x: str, irreps_y: str, rows: int, batch: int = 0) -> Problem:
    return row_product("tensor_product", irreps_x, irreps_y, 0, rows, batch)


PRODUCTS = {
    f"{name}, {order}": (lambda case=case, order=order: timed(_on_graph(case), order != "forward"))
    for mul in (64, 128)
    for name, case in _scaled(mul).items()
    for order in ("forward", "forward + backward")
}

MODELS = ("NequIP", "Allegro", "MACE")
STEPS = {
    f"{title} training step, 64": (lambda title=title: training_step(title.lower(), counted=True))
    for title in MODELS
}

LARGE = {
    f"{title} training step, 64, {27 * count} atoms": (
        lambda title=title, count=count: training_step(title.lower(), num_molecules=count)
    )
    for count in (37, 111)
    for title in MODELS
}

LINEAR = "64x0e+64x1o+64x2e"
OTHERS = {
    f"{name}{', backward' if backward else ''}": (
        lambda make=make, backward=backward: timed(make(), backward)
    )
    for name, make in {
        "one row, 8x0e+8x1o (x) 1o": lambda: _of_rows("8x0e+8x1o", "1o", 1),
        "tiny graph, 4x0e+4x1o, 5 nodes": lambda: _on_graph(
            Case("4x0e+4x1o", "0e+1o", "0e+1o"), 5, 8
        ),
        "scalars, 128x0e (x) 0e, 2000 rows": lambda: _of_rows("128x0e", "0e", 2000),
        "scalars on a graph, 64x0e": lambda: _on_graph(Case("64x0e", "0e", "0e")),
        "multiplicity 1, 0e+1o (x) 0e+1o, 5000 rows": lambda: _of_rows("0e+1o", "0e+1o", 5000),
        "16x0e+16x1o (x) 16x0e+16x1o, 200 rows": lambda: _of_rows(
            "16x0e+16x1o", "16x0e+16x1o", 200
        ),
        "64x0e (x) 64x0e, 500 rows": lambda: _of_rows("64x0e", "64x0e", 500),
        "vmap of 16, 16x0e+16x1o (x) 0e+1o, 50 rows": lambda: _of_rows(
            "16x0e+16x1o", "0e+1o", 50, 16
        ),
        "Linear, 8x0e+8x1o, one row": lambda: linear("8x0e+8x1o", 1),
        "Linear, 64 each to l=2, 135 rows": lambda: linear(LINEAR, 135),
        "Linear of 4 sets, 64 each to l=2, 135 rows": lambda: linear(LINEAR, 135, num_sets=4),
        "Linear, 64 each to l=2, 3000 rows": lambda: linear(LINEAR, 3000),
        "Linear, 512x0e, 2000 rows": lambda: linear("512x0e", 2000),
        "product and Linear, 8 each to l=1, 4 rows": lambda: channelwise_rows("8x0e+8x1o", 0, 4),
        "product and Linear, 8 each to l=1, 256 rows": lambda: channelwise_rows(
            "8x0e+8x1o", 0, 256
        ),
        "product and Linear, 64 each to l=2, 256 rows": lambda: channelwise_rows(LINEAR, 0, 256),
        "product and Linear, 64 each to l=2, 3000 rows": lambda: channelwise_rows(LINEAR, 0, 3000),
        "Tetris network": lambda: _on_graph(CASES["tetris-2"], 32, 100),
    }.items()
    for backward in (False, True)
}
