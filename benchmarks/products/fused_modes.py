"""Time a gated op with `fused="always"` and "never" on this CPU, in turns: what "auto" rests on.

    python -m benchmarks.products.fused_modes

The op is a product, a Linear and e3nn's gate, of 32x0e+32x1o+32x2e and 0e+1o+2e, in float32; timed
is its gradient by operands and parameters.
"""

import argparse
import statistics
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops

X, Y, OUT = "32x0e+32x1o+32x2e", "0e+1o+2e", "32x0e+64x0e+32x1o+32x2e"
TURNS = 7
ROWS = 128, 1024, 20_000
ACTS = {"even_act": jax.nn.silu, "even_gate_act": jax.nn.sigmoid}


def gradient(rows: int, fused: str):
    """Return the compiled gradient of the op, and its arguments."""
    rng = np.random.default_rng(0)
    x, y = (
        e3nn.IrrepsArray(i, jnp.asarray(rng.normal(size=(rows, e3nn.Irreps(i).dim)), jnp.float32))
        for i in (X, Y)
    )
    module = ops.TensorProductLinearGate(OUT, backend="llvm", fused=fused, **ACTS)
    params = module.init(jax.random.key(0), x, y)

    def energy(params, x, y):
        return jnp.sum(module.apply(params, x, y).array ** 2)

    return jax.jit(jax.grad(energy, (0, 1, 2))), (params, x, y)


def milliseconds(cases: dict) -> dict[str, list[float]]:
    """Return the times of each case, in turns."""
    for function, args in cases.values():
        jax.block_until_ready(function(*args))
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(TURNS):
        for name, (function, args) in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*args))
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print("| rows | always, ms | never, ms | always / never |")
    print("|---|---|---|---|")
    for rows in ROWS:
        cases = {fused: gradient(rows, fused) for fused in ("always", "never")}
        times = milliseconds(cases)
        ratios = sorted(a / b for a, b in zip(times["always"], times["never"], strict=True))
        medians = " | ".join(f"{statistics.median(times[name]):.2f}" for name in cases)
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {rows} | {medians} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
