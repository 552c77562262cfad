"""Count what the order of nodes does, and what three designs that are not written would do.

    python -m benchmarks.predictions.designs [--size small|large] [NAME ...]

order          Nodes in a random order, and along the space-filling curve of the batcher.
second-order   The second order by receivers: of what it gives, the rows of edges (dy, dw) go along
               with the sums over receivers, and only dx is summed over senders. Counted: the
               kernels that our generator makes of the parts, by a run of a sample of blocks.
layout         Features component-major between our layers: the same kernels, with the channels of
               a component side by side.
radial         The last radial layer inside the product, by blocks of edges: the bytes of every
               array of radial weights that a training step of NequIP has in memory, from XLA's
               schedule for an H100, and the operations to compute the weights again.

No number is measured. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import launches as compiled_launches
from benchmarks.predictions import cases, counts, devices, graphs, model
from benchmarks.predictions.__main__ import SIZES
from benchmarks.predictions.launches import launches_of
from eqfuse import ops
from eqfuse.bench.cases import CASES
from eqfuse.data.neighbors import spatial_order
from eqfuse.ops.ir.form import Form, Index, Operand, Segment
from eqfuse.ops.primitives import forms

H100 = next(d for d in devices.DEVICES if d.name.startswith("H100"))
CUTOFF = 5.0
"""Å, by which the batcher finds the cells of its curve."""
HIDDEN = 64
"""Channels of the radial network before its last layer."""


def counted(form: Form, size, edges=None) -> list:
    """Return the counts of the kernels of a form on a real structure, or on other edges."""
    edges = graphs.edges(size) if edges is None else edges
    nodes, rows = size[0], edges.num_edges
    count = {Index.ROW: rows, Index.SENDER: nodes, Index.RECEIVER: nodes, Index.SHARED: 1}
    shapes = [jax.ShapeDtypeStruct((count[o.index], o.size), jnp.float32) for o in form.inputs]

    def function(edges, *arrays):
        return forms.evaluate(form, arrays, edges, backend="triton")

    def resident(kernel, warps):
        return H100.processors * model.resident_blocks(H100, kernel, warps)

    found = launches_of(function, edges, *shapes)
    return [counts.count(launch, H100.target, H100.cache, resident, edges) for launch in found]


def component_major(form: Form) -> Form:
    """Return a form whose operands have the channels of each component side by side."""

    def turned(operand: Operand) -> Operand:
        if not operand.channels:
            return operand
        segments = tuple(Segment(s.offset, s.mul, s.dim, 1, s.mul) for s in operand.segments)
        whole = all(s.channel_stride == s.dim for s in operand.segments)
        return dataclasses.replace(operand, segments=segments) if whole else operand

    sides = (tuple(map(turned, side)) for side in (form.inputs, form.outputs))
    return Form(*sides, form.paths)


def line(label: str, found) -> str:
    """Return a line of a table: of some kernels, what they do together."""
    predicted = sum(model.predict(c, H100).seconds for c in found)
    edges = max(found[0].edges, 1)
    waves = sum(n for c in found for (space, _), n in c.wavefronts.items() if space == "global")
    return (
        f"| {label} | {len(found)} | {sum(c.missed_bytes for c in found) / 1e9:.2f} "
        f"| {sum(c.sector_bytes for c in found) / 1e9:.2f} | {waves / edges:.0f} "
        f"| {1e6 * predicted:.0f} |"
    )


HEAD = (
    "| design | kernels | missed, GB | through level 2, GB | wavefronts an edge | predicted, µs |"
)
RULE = "|---|---|---|---|---|---|"


def by_receivers(form: Form) -> list[Form]:
    """Return a second order in two parts: what goes along with receivers, and sums over senders."""
    is_sender = tuple(o.index is Index.SENDER for o in form.outputs)
    parts = form.restrict(tuple(not s for s in is_sender)), form.restrict(is_sender)
    return [part.drop_inputs(part.used_inputs()) for part in parts]


def second_order(name: str, size) -> None:
    """Print what the second order takes, by senders as it is, and by receivers."""
    form = CASES[name].forms()["double"]
    print(f"\n{name}, double\n\n{HEAD}\n{RULE}")
    print(line("as it is", counted(form, size)), flush=True)
    found = [c for part in by_receivers(form) for c in counted(part, size)]
    print(line("rows with the receivers", found), flush=True)


def layout(name: str, size) -> None:
    """Print what a case takes with either layout of features."""
    for order, form in CASES[name].forms().items():
        print(f"\n{name}, {order}\n\n{HEAD}\n{RULE}")
        print(line("mul_ir, as it is", counted(form, size)), flush=True)
        print(line("component-major", counted(component_major(form), size)), flush=True)


@functools.cache
def _schedule(size) -> str:
    function, args = cases.step("nequip", size, "network")
    return compiled_launches.compiled(function, args).text


def radial(_, size) -> None:
    """Print the traffic of radial weights in a training step of NequIP."""
    edges = graphs.edges(size).num_edges
    entry = _schedule(size).split("ENTRY", 1)[1]
    shape = re.compile(rf"f32\[{edges},(\d+)\]")
    # a definition: its result before "=", its operands by name behind
    widths, passes = {}, {}
    for text in entry.splitlines():
        match = re.match(r"\s*(?:ROOT )?%([\w.-]+) = (.*?) ([\w-]+)\((.*?)\)", text)
        if match is None or match[3] in ("tuple", "get-tuple-element", "bitcast", "parameter"):
            if match is not None:
                for width in shape.findall(match[2]):
                    widths[match[1]] = int(width)
            continue
        result = [int(w) for w in shape.findall(match[2])]
        if len(result) == 1:
            widths[match[1]] = result[0]
        reads = [widths[n] for n in re.findall(r"%([\w.-]+)", match[4]) if n in widths]
        for width in (*result, *reads):
            passes[width] = passes.get(width, 0) + 1
    print("\n| columns of an array of edges | times read or written | GB |\n|---|---|---|")
    wide = {w: n for w, n in passes.items() if w > 4 * HIDDEN}
    for width, times in sorted(wide.items(), reverse=True):
        print(f"| {width} | {times} | {4e-9 * edges * width * times:.2f} |")
    again = sum(2 * HIDDEN * width * edges for width in wide)
    print(f"\nTo compute each of them once more takes {1e-9 * again:.1f} GFLOP.")


def renumbered(edges, number) -> ops.Edges:
    """Return edges between nodes that have other numbers, in the order of a batch."""
    senders, receivers = (number[np.asarray(side)] for side in (edges.senders, edges.receivers))
    order = np.lexsort((senders, receivers))
    return ops.Edges.from_arrays(senders[order], receivers[order], len(number))


def order(name: str, size) -> None:
    """Print what a case takes with nodes in a random order, and along a space-filling curve."""
    atoms = graphs.solid()
    nodes = len(atoms)
    random = np.random.default_rng(0).permutation(nodes)
    along = np.empty(nodes, int)
    along[spatial_order(atoms.positions, atoms.cell.array, atoms.pbc, CUTOFF)] = np.arange(nodes)
    edges = graphs.edges(size)
    for case, form in CASES[name].forms().items():
        print(f"\n{name}, {case}\n\n{HEAD}\n{RULE}")
        for label, number in (("random order", random), ("along the curve", along)):
            print(line(label, counted(form, size, renumbered(edges, number))), flush=True)


DESIGNS = {"order": order, "second-order": second_order, "layout": layout, "radial": radial}
OF = {"order": "nequip-64-l2", "second-order": "nequip-64-l2", "layout": "mace-large", "radial": ""}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*DESIGNS, []], default=[])
    parser.add_argument("--size", choices=SIZES, default="large")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    for name in options.names or DESIGNS:
        print(f"\n## {name}")
        DESIGNS[name](OF[name], SIZES[options.size])


if __name__ == "__main__":
    main()
