"""Print the main rows of the stored predictions, as `results/predictions.md` shows them.

    python -m benchmarks.predictions.page [FILE.json]

FILE.json is what `python -m benchmarks.predictions --json` wrote; the default is the file in
`results/`.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys

FILE = pathlib.Path(__file__).parents[1] / "results" / "predictions.json"
MODELS = {"nequip": "NequIP", "mace": "MACE", "allegro": "Allegro"}
CASES = (
    "nequip-64-l2",
    "mace-large",
    "allegro-64-l2",
    "mace-contraction-l2",
    "fused-gate-64-l2",
    "fused-linear-128",
    "fused-rows-32-l2",
    "linear-64-l2",
)
ORDERS = ("forward", "backward", "double")
SIZES = ((135, 2_700), (3_000, 160_000))


def steps(results: list[dict]) -> list[str]:
    """Return the table of training steps."""
    lines = [
        "| training step | nodes, edges | launches | H100, ms | H200, ms | kernels of eqfuse |",
        "|---|---|---:|---:|---:|---:|",
    ]
    found = collections.defaultdict(dict)
    for result in results:
        if result["order"] == "step":
            [(device, seconds)] = result["predicted_seconds"].items()
            found[result["case"], tuple(result["size"])][device.split()[0]] = seconds, result
    for (case, size), devices in found.items():
        rows = devices["H100"][1]["breakdown"]  # kind, module, launches, seconds, bound
        ours = sum(row[3] for row in rows if row[0] == "eqfuse") / devices["H100"][0]
        times = " | ".join(f"{1e3 * devices[name][0]:.3g}" for name in ("H100", "H200"))
        lines.append(
            f"| {MODELS[case]} | {size[0]:,}, {size[1]:,} | {sum(row[2] for row in rows)} | "
            f"{times} | {100 * ours:.0f} % |"
        )
    return lines


def ops(results: list[dict]) -> list[str]:
    """Return the table of ops on an H100: the kernels of an order, added."""
    total = collections.Counter()
    for result in results:
        if "kernel" in result:
            key = result["case"], result["order"], tuple(result["size"])
            total[key] += 1e6 * result["predicted_seconds"]["H100 SXM"]
    titles = [f"{order}, {nodes:,} nodes" for nodes, _ in SIZES for order in ORDERS]
    lines = [f"| op, µs on an H100 | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    for case in CASES:
        cells = [f"{total[case, order, size]:,.0f}" for size in SIZES for order in ORDERS]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def main(file: pathlib.Path = FILE) -> None:
    """Print both tables in Markdown."""
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    print("\n".join([*steps(results), "", *ops(results)]))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
