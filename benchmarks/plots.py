"""The pictures of RESULTS.md, drawn from what the benchmarks have recorded.

    python -m benchmarks.plots [--growth JSON] [--steps JSON ...] [--launches JSON] [--to FOLDER]

The files are those of `benchmarks.growth`, of `benchmarks.cpu` for training steps, and of
`benchmarks.launches` for those of the models.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

COLOURS = {"e3nn": "#8c8c8c", "llvm": "#1f6fb4", "triton": "#d1731f"}
LABELS = {"e3nn": "e3nn-jax", "llvm": "eqfuse (llvm)", "triton": "eqfuse (triton)"}
QUANTITIES = {
    "time of a step, ms": lambda r: r["ms"] and r["ms"]["median"],
    "scratch memory, MB": lambda r: r["scratch_bytes"] / 1e6,
    "to compile, processor s": lambda r: r["compile_cpu_s"],
}


def growth(results: list[dict], path) -> None:
    """Time, memory and compile time against each of the sweeps of `benchmarks.growth`.

    Args:
      results: of `benchmarks.growth`; of a point that was measured again, the last.
      path: of the picture.
    """
    last = {(r["sweep"], r["value"], r["backend"]): r for r in results}
    results = [result for result in last.values() if "error" not in result]
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
                axis.set_xscale("log")
            if sweep != "edges":
                axis.set_xticks(sorted({result["value"] for result in here}))
                axis.xaxis.set_major_formatter("{x:g}")
                axis.xaxis.set_minor_formatter(NullFormatter())
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            if column == 0:
                axis.set_ylabel(title)
        axes[-1, column].set_xlabel(sweep)
    axes[0, 0].legend(frameon=False)
    figure.suptitle(f"A training step of {results[0]['model']} on a CPU")
    _save(figure, path)


def _lines(axis, results, value) -> None:
    """Return a line for each backend."""
    for backend, colour in COLOURS.items():
        points = [(r["value"], value(r)) for r in results if r["backend"] == backend]
        points = [(x, y) for x, y in points if y]
        if points:
            axis.plot(*zip(*points, strict=True), "o-", color=colour, label=LABELS[backend], ms=4)
    axis.grid(color="#e5e5e5")
    axis.spines[["top", "right"]].set_visible(False)


def steps(results: list[dict], path) -> None:
    """Time and scratch memory of training steps on the CPU, by model and size.

    Args:
      results: of `benchmarks.cpu`; of a training step that was measured again, the last.
      path: of the picture.
    """
    last = {r["case"]: r for r in results if "training step" in r.get("case", "")}
    results = [result for result in last.values() if "error" not in result]
    results.sort(key=lambda r: (_atoms(r["case"]), r["case"]))
    names = [f"{r['case'].split()[0]}\n{_atoms(r['case'])} atoms" for r in results]
    values = {
        "time of a step, ms": [
            {name: spread["median"] for name, spread in r["ms"].items()} for r in results
        ],
        "scratch memory, MB": [
            {name: size / 1e6 for name, size in r["scratch"].items()} for r in results
        ],
    }
    threads = {r["threads"] for r in results}
    title = f"Training steps on {' and '.join(map(str, sorted(threads)))} threads of a CPU"
    _bars(values, names, title, path)


def _atoms(case: str) -> int:
    """Return the atoms of "NequIP training step, 64, 999 atoms"; five times 27 if it
    does not say.
    """
    size = case.rpartition(", ")[2]
    return int(size.removesuffix(" atoms")) if size.endswith(" atoms") else 135


def launches(results: list[dict], path) -> None:
    """Return launches and scratch memory of training steps compiled for an H100.

    Args:
      results: of `benchmarks.launches` for `model_launches.py`.
      path: of the picture.
    """
    cases: dict[str, dict] = {}
    for result in results:
        if "error" not in result:
            model, nodes, _, backend = result["case"].split(", ")
            label = f"{model}\n{int(nodes.split()[0]):,} atoms"
            key = "e3nn" if backend == "e3nn-jax" else "triton"
            cases.setdefault(label, {})[key] = result
    values = {
        "launches of a step": [
            {key: r["launches"] for key, r in case.items()} for case in cases.values()
        ],
        "scratch memory, MB": [
            {key: r["temp_bytes"] / 1e6 for key, r in case.items()} for case in cases.values()
        ],
    }
    title = "Training steps compiled for an H100, ahead of time"
    _bars(values, list(cases), title, path, logarithmic=(False, True))


def _bars(values: dict, names: list[str], title: str, path, logarithmic=(True, True)) -> None:
    """Return a panel for each quantity, bars side by side for the backends."""
    figure, axes = plt.subplots(len(values), 1, figsize=(len(names) + 1.5, 6), layout="constrained")
    for axis, (label, bars), log in zip(axes, values.items(), logarithmic, strict=True):
        backends = [b for b in COLOURS if any(b in bar for bar in bars)]
        for k, backend in enumerate(backends):
            at = [i + 0.4 * (k - 0.5) for i, bar in enumerate(bars) if backend in bar]
            heights = [bar[backend] for bar in bars if backend in bar]
            drawn = axis.bar(at, heights, 0.38, color=COLOURS[backend], label=LABELS[backend])
            axis.bar_label(drawn, [f"{h:,.0f}" for h in heights], fontsize=7)
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_ylabel(label)
        axis.set_yscale("log" if log else "linear")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    _save(figure, path)


def _save(figure, path) -> None:
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _results(files) -> list[dict]:
    return [r for file in files for r in json.loads(file.read_text(encoding="utf-8"))["results"]]


def main() -> None:
    """Draw the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for draw in (growth, steps, launches):
        parser.add_argument(f"--{draw.__name__}", nargs="+", type=pathlib.Path, metavar="JSON")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("benchmarks/pictures"))
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for draw in (growth, steps, launches):
        if files := getattr(options, draw.__name__):
            draw(_results(files), options.to / f"{draw.__name__}.png")


if __name__ == "__main__":
    main()
