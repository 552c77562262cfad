"""Counts and predictions as Markdown."""

from __future__ import annotations

from benchmarks.launches.account import KINDS
from benchmarks.predictions.counts import Counts
from benchmarks.predictions.model import Prediction
from benchmarks.predictions.steps import Item, breakdown

_PIPES = ("fp32", "fp64", "matrix", "integer", "special", "shuffle", "memory", "other")

COUNTED = (
    "case",
    "order",
    "kernel",
    "instructions",
    "by pipe",
    "wavefronts",
    "sectors",
    "unique, MB",
    "missed, MB",
    "walks",
    "chain / loop",
    "barriers",
    "registers",
    "blocks at a time",
    "waves",
    "idle",
)
PREDICTED = ("case", "order", "kernel")


def head(columns) -> str:
    """Return the head of a table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def counted(case: str, order: str, counts: Counts, prediction: Prediction) -> str:
    """Return the line of a kernel in the table of counts.

    Instructions are those of one warp for one edge, of one block of channels; of a warp in all
    where no edges are walked. Wavefronts and sectors are of all warps, for each edge or block.
    """
    per_block = counts.blocks if not counts.edges else counts.edges
    warps = counts.warps * (counts.blocks if not counts.edges else counts.edges)
    if counts.edges:
        warps *= counts.channel_blocks
    pipes = [f"{p} {counts.pipes[p] / warps:.0f}" for p in _PIPES if counts.pipes.get(p, 0) > 0]
    wavefronts = [
        f"{space} {name} {n / per_block:.0f}"
        for (space, name), n in sorted(counts.wavefronts.items())
    ]
    cells = [
        case,
        order,
        stem(counts.kernel.entry),
        f"{counts.instructions / warps:.0f}" + (" *" if counts.method != "loops" else ""),
        ", ".join(pipes),
        ", ".join(wavefronts),
        f"{counts.requested_bytes / 32 / per_block:.0f}",
        f"{counts.unique_bytes / 1e6:.2f}",
        f"{counts.missed_bytes / 1e6:.2f}",
        f"{counts.walks:.1f}" if counts.edges else "",
        f"{counts.chain} / {counts.loop}",
        f"{counts.barriers:.0f}",
        counts.kernel.registers,
        prediction.resident,
        f"{prediction.waves:.2f}",
        prediction.idle,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def predicted(case: str, order: str, kernel: str, predictions: list[Prediction]) -> str:
    """Return the line of a kernel in the table of predictions."""
    cells = [f"{p.seconds * 1e6:.1f} ({p.bound})" for p in predictions]
    return f"| {case} | {order} | {stem(kernel)} | {' | '.join(cells)} |"


def stem(kernel: str) -> str:
    """Return the name of a kernel without its hash."""
    return kernel.rsplit("_", 1)[0]


def step(title: str, items: list[Item], host_launch: float, rows: int = 20) -> str:
    """Return the breakdown of a training step: sums by kind, and the largest items by time."""
    total = sum(item.seconds for item in items)
    host = len(items) * host_launch
    lower, cold = sum(item.lower for item in items), sum(item.cold for item in items)
    lines = [
        f"{title}: predicted {total * 1e3:.3g} ms in {len(items)} launches, of which "
        f"{cold * 1e3:.2g} are for cold code; lower bound {lower * 1e3:.3g} ms. Outside command "
        f"buffers the host takes at least {host * 1e3:.2g} ms.",
        "",
        head(("what", "launches", "predicted, µs", "share")),
    ]
    for kind, words in KINDS.items():
        group = [item.seconds for item in items if item.kind == kind]
        share = f"{100 * sum(group) / total:.0f}%"
        lines.append(f"| {words} | {len(group)} | {sum(group) * 1e6:.0f} | {share} |")
    lines += ["", head(("kind", "where from", "launches", "predicted, µs", "bound"))]
    found = breakdown(items)
    for kind, name, launches, seconds, bound in found[:rows]:
        lines.append(
            f"| {kind} | {name.replace('|', '/')} | {launches} | {seconds * 1e6:.1f} | {bound} |"
        )
    if rest := found[rows:]:
        seconds = sum(row[3] for row in rest)
        lines.append(
            f"| | {len(rest)} others | {sum(row[2] for row in rest)} | {seconds * 1e6:.1f} | |"
        )
    return "\n".join(lines)
