"""The pictures of RESULTS.md, drawn from what benchmarks have recorded."""

from __future__ import annotations

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import ScalarFormatter

COLOURS = {"e3nn": "#8c8c8c", "numba": "#1f6fb4"}
LABELS = {"e3nn": "e3nn-jax", "numba": "eqfuse (numba)"}
QUANTITIES = {
    "time of a step, ms": lambda r: r["ms"] and r["ms"]["median"],
    "scratch memory, MB": lambda r: r["scratch_bytes"] / 1e6,
    "processor time to compile, s": lambda r: r["compile_cpu_s"],
}


def growth(results: list[dict], path) -> None:
    """Time, memory and compile time against each of the sweeps of `benchmarks.growth`.

    Args:
      results: of `benchmarks.growth`.
      path: of the picture.
    """
    results = [result for result in results if "error" not in result]
    sweeps = list(dict.fromkeys(result["sweep"] for result in results))
    shape = len(QUANTITIES), len(sweeps)
    figure, axes = plt.subplots(
        *shape, figsize=(3.1 * shape[1] + 0.6, 7.6), squeeze=False, layout="constrained"
    )
    for column, sweep in enumerate(sweeps):
        here = [result for result in results if result["sweep"] == sweep]
        for axis, (title, value) in zip(axes[:, column], QUANTITIES.items(), strict=True):
            _lines(axis, here, value)
            axis.set_yscale("log")
            if sweep != "lmax":
                axis.set_xscale("log", base=10 if sweep == "edges" else 2)
            if sweep in ("channels", "layers"):
                axis.xaxis.set_major_formatter(ScalarFormatter())
            if column == 0:
                axis.set_ylabel(title)
        axes[-1, column].set_xlabel(sweep)
    axes[0, 0].legend(frameon=False)
    figure.suptitle(f"A training step of {results[0]['model']} on this CPU")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _lines(axis, results, value) -> None:
    """A line for each backend."""
    for backend, colour in COLOURS.items():
        points = [(r["value"], value(r)) for r in results if r["backend"] == backend]
        points = [(x, y) for x, y in points if y]
        if points:
            axis.plot(*zip(*points, strict=True), "o-", color=colour, label=LABELS[backend], ms=4)
    axis.grid(color="#e5e5e5")
    axis.spines[["top", "right"]].set_visible(False)
