"""Print the main rows of predictions, as `results/predictions.md` shows them.

    python -m benchmarks.predictions.page FILE.json

FILE.json is what `python -m benchmarks.predictions --json FILE.json` wrote.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib

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


RADIALS = {"network": "networks", "table": "tables"}


def _of(results: list[dict], precision: str) -> list[dict]:
    """Return the results in a precision of matmuls."""
    return [result for result in results if precision in result["precisions"]]


def steps(results: list[dict]) -> list[str]:
    """Return the table of training steps, in the precision in which training multiplies."""
    lines = [
        "| training step | nodes, edges | radial functions | launches | H100, ms: lower bound | "
        "predicted | H200, ms: predicted | kernels of eqfuse |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    found = collections.defaultdict(dict)
    for result in _of(results, "tf32x3"):
        if result["order"] == "step":
            [device] = result["predicted_seconds"]
            key = result["case"], tuple(result["size"]), result["radial"]
            found[key][device.split()[0]] = result
    for (case, size, radial), devices in found.items():
        rows = devices["H100"]["breakdown"]  # kind, module, launches, seconds, bound
        lower, h100 = (
            sum(devices["H100"][f"{name}_seconds"].values()) for name in ("lower", "predicted")
        )
        [h200] = devices["H200"]["predicted_seconds"].values()
        ours = sum(row[3] for row in rows if row[0] == "eqfuse") / h100
        times = " | ".join(f"{1e3 * t:.3g}" for t in (lower, h100, h200))
        lines.append(
            f"| {MODELS[case]} | {size[0]:,}, {size[1]:,} | {RADIALS[radial]} | "
            f"{sum(row[2] for row in rows)} | {times} | {100 * ours:.0f}% |"
        )
    return lines


def ops(results: list[dict], precision: str = "tf32x3") -> list[str]:
    """Return the table of ops on an H100: the kernels of an order, added.

    Args:
      precision: of matmuls; in "ieee" those cases only that are others in it.
    """
    total, lower, own = collections.Counter(), collections.Counter(), set()
    for result in _of(results, precision):
        if "kernel" in result:
            key = result["case"], result["order"], tuple(result["size"])
            total[key] += 1e6 * result["predicted_seconds"]["H100 SXM"]
            lower[key] += 1e6 * result["lower_seconds"]["H100 SXM"]
            if len(result["precisions"]) == 1:
                own.add(result["case"])
    titles = [f"{order}, {nodes:,} nodes" for nodes, _ in SIZES for order in ORDERS]
    lines = [
        f"| {precision}, µs on an H100: predicted (lower bound) | {' | '.join(titles)} |",
        "|---|" + "---:|" * len(titles),
    ]
    for case in CASES:
        if precision == "ieee" and case not in own:
            continue
        keys = [(case, order, size) for size in SIZES for order in ORDERS]
        cells = [f"{total[key]:,.0f} ({lower[key]:,.0f})" if key in total else "" for key in keys]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def main(file: pathlib.Path) -> None:
    """Print the tables in Markdown."""
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    print("\n".join([*steps(results), "", *ops(results), "", *ops(results, "ieee")]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", metavar="FILE.json", type=pathlib.Path)
    main(parser.parse_args().file)
