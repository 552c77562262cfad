"""Measure on this CPU what `fused="auto"` rests on, and what measuring itself costs.

    python -m benchmarks.products.fused_modes

The op is a product, a Linear and e3nn's gate, of 32x0e+32x1o+32x2e and 0e+1o+2e, in float32; timed
is its gradient by operands and parameters, as one native call each way and part by part, in turns.
"""

import argparse
import os
import tempfile
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse import ops

X, Y, OUT = "32x0e+32x1o+32x2e", "0e+1o+2e", "32x0e+64x0e+32x1o+32x2e"
ROWS = 64, 128, 256, 1024, 16_384
ACTS = {"even_act": jax.nn.silu, "even_gate_act": jax.nn.sigmoid}


def measured(rows: int):
    """Return what was measured of the gradient of the op, and the seconds that it took."""
    x, y = (e3nn.normal(i, jax.random.key(0), (rows,)) for i in (X, Y))
    module = ops.TensorProductLinearGate(OUT, backend="llvm", **ACTS)
    params = jax.eval_shape(module.init, jax.random.key(0), x, y)

    def energy(params, x, y):
        return jnp.sum(module.apply(params, x, y).array ** 2)

    start = time.perf_counter()
    [found] = ops.measure(jax.grad(energy, (0, 1, 2)), params, x, y)
    return found, time.perf_counter() - start


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print("| rows | one call, ms | part by part, ms | ratio | chosen | measuring took |")
    print("|---|---|---|---|---|---|")
    for rows in ROWS:
        found, seconds = measured(rows)
        one, parts = found.result.ms["NATIVE"], found.result.ms["APART"]
        chosen = "one call" if found.result.chosen == "NATIVE" else "part by part"
        print(
            f"| {rows} | {one:.2f} | {parts:.2f} | {one / parts:.2f} | {chosen} | {seconds:.1f} s |"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # nothing that was measured before counts
        os.environ["EQFUSE_CACHE_DIR"] = folder
        main()
