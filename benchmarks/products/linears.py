"""Time Linears of 16 bits beside float32, by kernels and by XLA, in turns on one thread.

    python -m benchmarks.products.linears [--turns 30]

Times are those of the processor: other programs may run. Each cell is the median, forward and then
with the gradients of parameters and input, in ms.
"""

import argparse
import os
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops

IRREPS = ("128x0e", "64x0e+64x1o+64x2e")
ROWS = (256, 2700)
KINDS = (("float32", "llvm"), *((d, b) for d in ("bfloat16", "float16") for b in ("llvm", "xla")))


def compiled(irreps: str, rows: int, dtype: str, backend: str, backward: bool):
    """Return a function without arguments that computes a Linear, or its gradients."""
    linear = ops.Linear(irreps, backend=backend)
    x = np.random.default_rng(0).normal(size=(rows, e3nn.Irreps(irreps).dim))
    x = e3nn.IrrepsArray(irreps, jnp.asarray(x, dtype))
    params = jax.tree.map(lambda p: p.astype(dtype), linear.init(jax.random.key(0), x))

    def value(params, x):
        return linear.apply(params, x).array

    def gradients(params, x):
        out, pull = jax.vjp(value, params, x)
        return pull(out)

    program = jax.jit(gradients if backward else value).lower(params, x).compile()
    return lambda: jax.block_until_ready(program(params, x))


def main() -> None:
    """Print a row for each Linear."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=30)
    turns = parser.parse_args().turns
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    print("| Linear, rows | " + " | ".join(", ".join(kind) for kind in KINDS) + " |")
    print("|---|" + "---:|" * len(KINDS))
    for irreps in IRREPS:
        for rows in ROWS:
            sides = [compiled(irreps, rows, *kind, b) for kind in KINDS for b in (False, True)]
            times = np.empty((turns, len(sides)))
            for turn in range(-1, turns):
                for k, side in enumerate(sides):
                    start = time.process_time()
                    side()
                    times[turn, k] = 1e3 * (time.process_time() - start)
            cells = [f"{a:.3g}, {b:.3g}" for a, b in np.median(times, axis=0).reshape(-1, 2)]
            print(f"| {irreps}, {rows} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
