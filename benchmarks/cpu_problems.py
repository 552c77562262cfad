"""What `benchmarks.cpu` measures: each problem as e3nn-jax and as eqfuse compute it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import BOTH2, BOTH3, CASES, SH2, SH3, Case, times
from benchmarks.step_work import step_work
from eqfuse import models, ops
from eqfuse.graph import Graph

NODES, EDGES = 135, 2700
"""Of a batch of five molecules of 3BPA with a cutoff of 5 Å."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One computation, by backend.

    Attributes:
      function: backend -> a function of `args`.
      bytes, operations: the least that it moves and computes, counted from the form; 0 if unknown.
    """

    function: Callable
    args: tuple
    bytes: int = 0
    operations: int = 0


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _random_edges(rng, nodes, edges) -> ops.Edges:
    return ops.Edges.from_arrays(*rng.integers(0, nodes, (2, edges)), nodes)


def graph_product(case: Case, backward: bool, nodes: int = NODES, edges: int = EDGES) -> Problem:
    """A weighted product on a graph, or its gradients along with it; e3nn-jax by its definition."""
    rng = np.random.default_rng(0)
    graph = _random_edges(rng, nodes, edges)
    irreps = e3nn.tensor_product(case.irreps_x, case.irreps_y, filter_ir_out=case.filter_ir_out)
    x = normal(rng, nodes, e3nn.Irreps(case.irreps_x).dim)
    y = normal(rng, edges, e3nn.Irreps(case.irreps_y).dim)
    w, cotangent = normal(rng, edges, irreps.num_irreps), normal(rng, nodes, irreps.dim)

    def function(backend):
        def product(x, y, w):
            xs, ys = e3nn.IrrepsArray(case.irreps_x, x), e3nn.IrrepsArray(case.irreps_y, y)
            if backend != "e3nn":
                options = {"filter_ir_out": case.filter_ir_out, "backend": backend}
                return ops.graph_tensor_product(xs, ys, w, graph, **options).array
            messages = e3nn.tensor_product(xs[graph.senders], ys, filter_ir_out=case.filter_ir_out)
            return jax.ops.segment_sum((messages * w).array, graph.receivers, nodes)

        if not backward:
            return product
        return lambda *args: jax.vjp(product, *args[:3])[1](args[3])

    forms = case.forms()
    counts = [forms["backward" if backward else "forward"].counts(edges, nodes)]
    work = {n: sum(getattr(c, n) for c in counts) for n in ("bytes", "operations")}
    return Problem(function, (x, y, w, cotangent) if backward else (x, y, w), **work)


def row_product(irreps_x: str, irreps_y: str, rows: int, backward: bool, batch: int = 0) -> Problem:
    """A product of rows, under `vmap` where there is a batch."""
    rng = np.random.default_rng(0)
    irreps = e3nn.tensor_product(irreps_x, irreps_y)
    shape = (batch, rows) if batch else (rows,)
    sizes = (e3nn.Irreps(irreps_x).dim, e3nn.Irreps(irreps_y).dim, irreps.dim)
    x, y, cotangent = (normal(rng, *shape, size) for size in sizes)

    def function(backend):
        def product(x, y):
            xs, ys = e3nn.IrrepsArray(irreps_x, x), e3nn.IrrepsArray(irreps_y, y)
            if backend == "e3nn":
                return e3nn.tensor_product(xs, ys).array
            return ops.tensor_product(xs, ys, backend=backend).array

        mapped = jax.vmap(product) if batch else product
        if not backward:
            return mapped
        return lambda *args: jax.vjp(mapped, *args[:2])[1](args[2])

    return Problem(function, (x, y, cotangent) if backward else (x, y))


def linear(irreps: str, rows: int, backward: bool, num_sets: int = 0) -> Problem:
    """A Linear to the same irreps; with sets of weights, rows choose one each."""
    rng = np.random.default_rng(0)
    size = e3nn.Irreps(irreps).dim
    x, cotangent = (normal(rng, rows, size) for _ in range(2))
    index = (jnp.asarray(rng.integers(0, num_sets, rows), jnp.int32),) if num_sets else ()
    fields = {"num_indexed_weights": num_sets or None}
    reference = e3nn.flax.Linear(irreps, **fields)
    params = reference.init(jax.random.key(0), *index, e3nn.IrrepsArray(irreps, x))

    def function(backend):
        module = reference if backend == "e3nn" else ops.Linear(irreps, **fields, backend=backend)

        def mixed(params, x):
            return module.apply(params, *index, e3nn.IrrepsArray(irreps, x)).array

        if not backward:
            return mixed
        return lambda params, x, cotangent: jax.vjp(mixed, params, x)[1](cotangent)

    return Problem(function, (params, x, cotangent) if backward else (params, x))


def product_linear(irreps: str, rows: int, backward: bool) -> Problem:
    """A Linear to the same irreps of the product, channel by channel, with another such row."""
    rng = np.random.default_rng(0)
    size = e3nn.Irreps(irreps).dim
    x, y, cotangent = (normal(rng, rows, size) for _ in range(3))

    keep = sorted({ir for _, ir in e3nn.Irreps(irreps)})  # e3nn-jax computes no others either

    def module(backend):
        return ops.TensorProductLinear(
            irreps, channelwise=True, filter_ir_out=keep, backend=backend
        )

    arrays = [e3nn.IrrepsArray(irreps, a) for a in (x, y)]
    params = module("e3nn").init(jax.random.key(0), *arrays)

    def function(backend):
        def product(params, x, y):
            x, y = (e3nn.IrrepsArray(irreps, a) for a in (x, y))
            return module(backend).apply(params, x, y).array

        if not backward:
            return product
        return lambda *args: jax.vjp(product, *args[:3])[1](args[3])

    return Problem(function, (params, x, y, cotangent) if backward else (params, x, y))


def molecules(count: int = 5, atoms: int = 27, cutoff: float = 5.0) -> Graph:
    """Random molecules of the size and density of 3BPA."""
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
    """One graph of `num_edges / neighbours` atoms, with edges between any two of them."""
    rng = np.random.default_rng(0)
    nodes = max(num_edges // neighbours, 2)
    return Graph(
        positions=2 * normal(rng, nodes, 3),
        species=jnp.asarray(rng.integers(0, 4, nodes), jnp.int32),
        edges=_random_edges(rng, nodes, num_edges),
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
) -> Problem:
    """The gradient of a loss on energies and forces of molecules of 27 atoms.

    Args:
      name: of the model; l <= 2, else the defaults.
      channels, layers: of it.
      num_molecules: in the batch.
      counted: see `step_on`.
    """
    graph = molecules(num_molecules)
    return step_on(graph, name, counted, channels=channels, layers=layers)


def step_on(graph: Graph, name: str, counted: bool = False, **fields) -> Problem:
    """The gradient of a loss on energies and forces.

    Parameters are normal numbers, as most of e3nn-jax's are, for which nothing is compiled.

    Args:
      graph: a batch.
      counted: whether its work is counted, by `step_work`.
      name, fields: of the model.
    """
    targets = normal(np.random.default_rng(1), graph.positions.shape[0], 3)

    def potential(backend):
        neighbours = graph.edges.num_edges / graph.positions.shape[0]
        common = {"irreps_out": "0e", "num_species": 4, "avg_num_neighbors": neighbours}
        model = models.build(name, **common, **fields, backend=backend)
        return models.Potential(model=model, scale=(1.0,) * 4, shift=(0.0,) * 4)

    arguments = (graph.vectors, graph.species, graph.edges)
    shapes = jax.eval_shape(potential("e3nn").init, jax.random.key(0), *arguments)
    rng = np.random.default_rng(2)
    params = jax.tree.map(lambda s: normal(rng, *s.shape), shapes)

    def function(backend):
        def loss(params, graph, targets):
            prediction = models.predict(potential(backend), params, graph)
            return jnp.sum(prediction.energy**2) + jnp.sum((prediction.forces - targets) ** 2)

        return jax.value_and_grad(loss)

    args = (params, graph, targets)
    moved, operations = step_work(function("llvm"), args) if counted else (0, 0)
    return Problem(function, args, moved, operations)


def _scaled(mul: int) -> dict[str, Case]:
    return {
        f"NequIP l<=2, {mul}": Case(times(mul, BOTH2), SH2, BOTH2),
        f"MACE-large, {mul}": Case(times(mul, "0e+1o+2e"), SH3, SH3),
        f"NequIP l<=3, {mul}": Case(times(mul, BOTH3), SH3, BOTH3),
    }


PRODUCTS = {
    f"{name}, {order}": (lambda case=case, order=order: graph_product(case, order != "forward"))
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
        lambda make=make, backward=backward: make(backward)
    )
    for name, make in {
        "one row, 8x0e+8x1o (x) 1o": lambda b: row_product("8x0e+8x1o", "1o", 1, b),
        "tiny graph, 4x0e+4x1o, 5 nodes": lambda b: graph_product(
            Case("4x0e+4x1o", "0e+1o", "0e+1o"), b, 5, 8
        ),
        "scalars, 128x0e (x) 0e, 2000 rows": lambda b: row_product("128x0e", "0e", 2000, b),
        "scalars on a graph, 64x0e": lambda b: graph_product(Case("64x0e", "0e", "0e"), b),
        "multiplicity 1, 0e+1o (x) 0e+1o, 5000 rows": lambda b: row_product(
            "0e+1o", "0e+1o", 5000, b
        ),
        "16x0e+16x1o (x) 16x0e+16x1o, 200 rows": lambda b: row_product(
            "16x0e+16x1o", "16x0e+16x1o", 200, b
        ),
        "64x0e (x) 64x0e, 500 rows": lambda b: row_product("64x0e", "64x0e", 500, b),
        "vmap of 16, 16x0e+16x1o (x) 0e+1o, 50 rows": lambda b: row_product(
            "16x0e+16x1o", "0e+1o", 50, b, 16
        ),
        "Linear, 8x0e+8x1o, one row": lambda b: linear("8x0e+8x1o", 1, b),
        "Linear, 64 each to l=2, 135 rows": lambda b: linear(LINEAR, 135, b),
        "Linear of 4 sets, 64 each to l=2, 135 rows": lambda b: linear(LINEAR, 135, b, 4),
        "Linear, 64 each to l=2, 3000 rows": lambda b: linear(LINEAR, 3000, b),
        "Linear, 512x0e, 2000 rows": lambda b: linear("512x0e", 2000, b),
        "product and Linear, 8 each to l=1, 4 rows": lambda b: product_linear("8x0e+8x1o", 4, b),
        "product and Linear, 8 each to l=1, 256 rows": lambda b: product_linear(
            "8x0e+8x1o", 256, b
        ),
        "product and Linear, 64 each to l=2, 256 rows": lambda b: product_linear(LINEAR, 256, b),
        "product and Linear, 64 each to l=2, 3000 rows": lambda b: product_linear(LINEAR, 3000, b),
        "Tetris network": lambda b: graph_product(CASES["tetris-2"], b, 32, 100),
    }.items()
    for backward in (False, True)
}
