"""Predict a training step of the Tetris network as it is written, and as a sequence.

    python -m benchmarks.predictions.sequences [--device H100] [--warps 4 8 16] [--shapes 8]

Launches are counted in the program that XLA compiles for an H100; times are predictions, as in
`benchmarks.predictions`. All numbers of the kernels are emulated. The functions of a sequence's
kernel are inlined, so that the cost of a call is left out. It needs jax's CUDA plug-in.
"""

from __future__ import annotations

import argparse
import math

import jax

from benchmarks import launches as compiled_launches
from benchmarks.predictions import counts, devices, model, steps
from benchmarks.steps.sequences import tetris
from eqfuse import ops
from eqfuse.ops.backends.triton import program as triton_program
from tests.emulator import functions

DEVICES = {device.name.split()[0]: device for device in devices.DEVICES}


def with_numbers(function, args, target: str) -> dict:
    """Return the launches of a function by kernel, with the numbers that they are given."""
    found = {}

    def run(launch):
        found.setdefault(launch.spec.name, launch)
        return functions.run_launch(launch, target)

    traced = jax.make_jaxpr(function)(*args)
    functions.evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args), run)
    return found


def predict(function, args, device):
    """Return what a function launches, as `steps.items` has it, and how many launches they are."""
    by_name = with_numbers(function, args, device.target)
    found = {}

    def counted(kernel: str):
        if kernel not in found:

            def resident(compiled, warps):
                return device.processors * model.resident_blocks(device, compiled, warps)

            launch = by_name[kernel]
            found[kernel] = counts.count(launch, device.target, device.cache, resident)
        return found[kernel]

    compiled = compiled_launches.compiled(function, args)
    return steps.items(compiled.text, counted, device), compiled.launches.launches


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="H100", choices=DEVICES)
    parser.add_argument("--warps", type=int, nargs="+", default=[triton_program.WARPS])
    about = "of the eight; of one it bounds what a block for each could reach"
    parser.add_argument("--shapes", type=int, default=8, help=about)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    device = DEVICES[options.device]
    step, args = tetris("triton", options.shapes)
    print("| Tetris step, Adam | launches | kernels of ours | predicted, µs | host, µs | bound |")
    print("|---|---|---|---|---|---|")
    row("as it is written", step, args, device)
    for warps in options.warps:
        triton_program.WARPS = warps
        row(f"sequence, {warps} warps", ops.sequence(step, most=math.inf), args, device)


def row(label: str, function, args, device) -> None:
    """Print a line."""
    items, launches = predict(function, args, device)
    ours = [item for item in items if item.kind == "eqfuse"]
    total, own = (1e6 * sum(item.seconds for item in part) for part in (items, ours))
    host = 1e6 * device.host_launch * launches
    bounds = ", ".join(sorted({item.bound for item in ours}))
    print(
        f"| {label} | {launches} | {len(ours)}, {own:.0f} µs "
        f"| {total:.0f} | {host:.0f} | {bounds} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
