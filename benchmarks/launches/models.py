"""A training step of each model on energies and forces, for `benchmarks.launches`.

    python -m benchmarks.launches models [NAME ...]

The steps of `benchmarks.gpu.steps`, at two sizes.
"""

import functools

import jax
import numpy as np

from benchmarks import record
from benchmarks.gpu.steps import MODELS, loss, potential_of, shapes_of, training_step
from benchmarks.networks import molecules, normal
from tests import interpreter  # noqa: F401  (runs the kernels on a CPU)

SIZES = ((135, 2_700), (3_000, 160_000))
SIDES = {
    "e3nn-jax": ("e3nn", "network"),
    "eqfuse": ("triton", "network"),
    "eqfuse with tables": ("triton", "table"),
}
"""Backend, and how functions of lengths are computed, by label."""


@functools.cache
def _difference(name: str) -> float:
    graph, rng = molecules(1, atoms=4, cutoff=3.0), np.random.default_rng(0)
    potentials = [potential_of(name, backend) for backend in ("e3nn", "triton")]
    shapes = shapes_of(potentials[0], graph)
    params = jax.tree.map(lambda s: normal(rng, *s.shape), shapes)
    args = params, graph, normal(rng, 1), normal(rng, *graph.positions.shape)
    with jax.default_matmul_precision("highest"):
        sides = [
            jax.jit(jax.value_and_grad(functools.partial(loss, potential)))(*args)
            for potential in potentials
        ]
    # three layers of products of products, each with the roundings of its sums
    return record.parity(*sides, tolerance=1e-4)


def parity(name: str) -> float:
    """Return the difference of loss and gradient from e3nn-jax's, interpreted, on four atoms."""
    return _difference(name.split(",")[0])


CASES = {
    f"{name}, {size[0]} nodes, {size[1]} edges, {label}": (
        lambda name=name, backend=backend, radial=radial, size=size: training_step(
            name, backend, *size, radial=radial
        )
    )
    for name in MODELS
    for size in SIZES
    for label, (backend, radial) in SIDES.items()
}
