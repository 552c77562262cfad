"""Time the gradient by senders of MACE's second product: what its rate depends on.

    python -m benchmarks.products.senders [--atoms 25 100 500] [--turns 15]

It is in float64, of the shape of MACE-MP-0 small on rattled SrTiO3, on one thread. Each edge reads
16 components of every channel of its receiver's gradient, and four weights: its own, or those that
all edges share. "32 channels" are a quarter of the channels: four such calls are the whole product
in blocks of channels. Times are those of the processor, in turns.
"""

import argparse
import os
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from ase.neighborlist import neighbor_list

from benchmarks.clients.side_by_side import CELLS, rattled
from eqfuse import ops

CASES = ((128, True), (32, True), (128, False), (32, False))
"""Channels, and whether all edges share weights."""
FLOPS = 2 * (16 + 4)
"""Operations of a channel of an edge."""


def compiled(atoms, channels: int, shared: bool):
    """Return the number of edges, and a function without arguments that computes the gradient."""
    senders, receivers, vectors = neighbor_list("jiD", atoms, 6.0)
    edges = ops.Edges.from_arrays(senders, receivers, len(atoms))
    y = e3nn.spherical_harmonics("0e+1o+2e+3o", jnp.asarray(vectors), True)
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.normal(size=(1 if shared else len(senders), 4 * channels)))
    x, gradient = (jnp.asarray(rng.normal(size=(len(atoms), n * channels))) for n in (1, 16))

    def pulled(x, y, weights, gradient):
        def value(x):
            x = e3nn.IrrepsArray(f"{channels}x0e", x)
            return ops.graph_tensor_product(x, y, weights, edges).array

        return jax.vjp(value, x)[1](gradient)

    program = jax.jit(pulled).lower(x, y, weights, gradient).compile()
    return len(senders), lambda: jax.block_until_ready(program(x, y, weights, gradient))


def main() -> None:
    """Print a row for each number of atoms."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--atoms", nargs="+", type=int, default=[25, 100, 500], choices=CELLS)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    names = (f"{c} channels, {'shared' if s else 'own'} weights" for c, s in CASES)
    print("| atoms | " + " | ".join(names) + " |\n|---|" + "---|" * len(CASES))
    with jax.enable_x64(True):
        for count in options.atoms:
            sides = [compiled(rattled(count), *case) for case in CASES]
            times = np.empty((options.turns, len(sides)))
            for turn in range(-1, options.turns):
                for k, (_, side) in enumerate(sides):
                    start = time.process_time()
                    side()
                    times[turn, k] = 1e3 * (time.process_time() - start)
            cells = []
            for (edges, _), (channels, _), own in zip(sides, CASES, times.T, strict=True):
                middle, low, high = np.percentile(own, [50, 25, 75])
                rate = FLOPS * channels * edges / middle / 1e6
                cells.append(f"{middle:.3g} ms ({low:.3g} to {high:.3g}), {rate:.0f} GFLOP/s")
            print(f"| {count} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
