"""Draw the figures of RESULTS.md from the JSON files of the benchmarks.

    python -m benchmarks.plots [--steps JSON ...] [--launches JSON] [--to FOLDER]

The files are those of `benchmarks.steps` and of `benchmarks.launches models`.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

COLOURS = {"e3nn": "#8c8c8c", "llvm": "#1f6fb4", "triton": "#d1731f"}
LABELS = {"e3nn": "e3nn-jax", "llvm": "eqfuse (llvm)", "triton": "eqfuse (triton)"}


def steps(results: list[dict], path) -> None:
    """Draw time and scratch memory of training steps on a CPU, by model and size.

    Args:
      results: of `benchmarks.steps`; the last of each training step counts.
      path: of the figure.
    """
    last = {r["case"]: r for r in results if "case" in r}
    results = [result for result in last.values() if "error" not in result]
    results.sort(key=lambda r: (_atoms(r["case"]), r["case"]))
    names = [f"{r['case'].split(',')[0]}\n{_atoms(r['case'])} atoms" for r in results]
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
    """Return the atoms of a case such as "NequIP, 999 atoms"."""
    return int(case.rpartition(", ")[2].removesuffix(" atoms"))


def launches(results: list[dict], path) -> None:
    """Draw launches and scratch memory of training steps compiled for an H100.

    Args:
      results: of `benchmarks.launches models`.
      path: of the figure.
    """
    cases: dict[str, dict] = {}
    for result in results:
        model, nodes, _, side = result["case"].split(", ")
        key = {"e3nn-jax": "e3nn", "eqfuse": "triton"}.get(side)
        if "error" not in result and key is not None:
            label = f"{model}\n{int(nodes.split()[0]):,} atoms"
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
    """Draw a panel for each quantity, bars side by side for the backends."""
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
    """Draw the figures of the files given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for draw in (steps, launches):
        parser.add_argument(f"--{draw.__name__}", nargs="+", type=pathlib.Path, metavar="JSON")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("benchmarks/pictures"))
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for draw in (steps, launches):
        if files := getattr(options, draw.__name__):
            draw(_results(files), options.to / f"{draw.__name__}.png")


if __name__ == "__main__":
    main()
