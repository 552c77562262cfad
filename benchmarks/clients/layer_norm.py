"""What the layer norm before the gates of a network in the form of Nequix costs.

    python -m benchmarks.clients.layer_norm [--seconds 10]

The same NequIP with and without `layer_norm`, in turns in one process, on a batch of molecules:
energy and forces, and the gradient of a loss on both. With the norm, gates are no part of native
calls.
"""

import argparse

import jax

from benchmarks import networks
from benchmarks.turns import interleaved
from eqfuse import models

NEQUIX = {
    "hidden": "128x0e+64x1o+32x2e+32x3o",
    "lmax": 3,
    "layers": 4,
    "num_bessel": 8,
    "radial_layers": 1,
    "cutoff": 5.0,
    "keep_irreps": True,
    "one_hot": True,
    "skip": "linear",
}


def functions(graph, layer_norm: bool) -> dict:
    """Return compiled functions of nothing, by task."""
    fields = NEQUIX | {"layer_norm": layer_norm}
    potential, params = networks.potential_on(graph, "nequip", **fields)
    step = networks.step_on(graph, "nequip", **fields)

    def forces(params, graph):
        return models.predict(potential("llvm"), params, graph)

    tasks = {"forces": (forces, (params, graph)), "training": (step.function("llvm"), step.args)}
    found = {}
    for task, (function, args) in tasks.items():
        compiled = jax.jit(function).lower(*args).compile()
        found[task] = lambda compiled=compiled, args=args: compiled(*args)
    return found


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each comparison")
    options = parser.parse_args()
    graph = networks.molecules(2)
    sides = {name: functions(graph, name == "with") for name in ("without", "with")}
    print("| task | without, ms | with, ms | with / without (quartiles) |\n|---|---:|---:|---|")
    for task in ("forces", "training"):
        found = interleaved({n: f[task] for n, f in sides.items()}, (), options.seconds)
        times, ratio = found["ms"], found["ratio"]["with"]
        spread = f"{1 / ratio.median:.2f} ({1 / ratio.high:.2f} to {1 / ratio.low:.2f})"
        print(
            f"| {task} | {times['without'].median:.1f} | {times['with'].median:.1f} | {spread} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
