"""Time tensor products on graphs on this CPU, forward and backward, against e3nn-jax.

    python -m benchmarks.products [--threads 2 4] [--only TEXT] [--json FILE]

The products are those of NequIP and MACE with 64 and 128 channels, on a graph of the size of five
molecules of 3BPA with a cutoff of 5 Å, and that of MACE-MP-0 small for 25 and 100 atoms of a
crystal, with edges in the order of receivers. Options and columns: `benchmarks.cpu_timing`.
"""

import jax
import numpy as np

from benchmarks import cpu_timing
from benchmarks.gpu.cases import BOTH2, BOTH3, SH2, SH3, Case, times
from benchmarks.gpu.problems import Problem, derivative, graph_product
from benchmarks.networks import Timed, normal

NODES, EDGES = 135, 2700


def timed(problem: Problem, backward: bool) -> Timed:
    """Return the value of an op, or its gradients along with it, as a function to time."""
    order = "backward" if backward else "forward"
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda a: normal(rng, *a.shape), problem.arguments(order, "float32"))

    def function(backend):
        computed = derivative(problem.function(backend), order)
        return lambda *args: computed(args, problem.integers)

    results = jax.eval_shape(derivative(problem.function("e3nn"), order), args, problem.integers)
    moved = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((args, results)))
    return Timed(function, args, moved, problem.forms[order].counts(problem.rows).operations)


def _products(mul: int) -> dict[str, Case]:
    return {
        f"NequIP l<=2, {mul}": Case(times(mul, BOTH2), SH2, BOTH2),
        f"MACE-large, {mul}": Case(times(mul, "0e+1o+2e"), SH3, SH3),
        f"NequIP l<=3, {mul}": Case(times(mul, BOTH3), SH3, BOTH3),
    }


CASES = {
    f"{name}, {order}": (
        lambda case=case, order=order: timed(
            graph_product(case, NODES, EDGES, grouped=False), order != "forward"
        )
    )
    for mul in (64, 128)
    for name, case in _products(mul).items()
    for order in ("forward", "forward + backward")
} | {
    f"MP-0 small, {nodes} atoms, {order}": (
        lambda nodes=nodes, order=order: timed(
            graph_product(Case("128x0e", SH3, SH3), nodes, 74 * nodes), order != "forward"
        )
    )
    for nodes in (25, 100)
    for order in ("forward", "forward + backward")
}

if __name__ == "__main__":
    cpu_timing.main("benchmarks.products", CASES, __doc__)
