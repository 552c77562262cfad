"""Count what kernels and training steps do, and predict what they take, without a GPU.

    python -m benchmarks.predictions [--cases NAME ...] [--steps NAME ...] [--sizes small large]
        [--orders forward backward double] [--devices A100 H100 H200]
        [--precisions ieee tf32x3] [--radials auto network table] [--json FILE]

Prints tables in Markdown: of each kernel what the emulator and the machine code of ptxas count, and
the predicted time with what bounds it; of each training step the sum over XLA's schedule with its
breakdown. Matmuls are those of training on a GPU, three products of TF32, unless `--precisions`
names others. No number is measured. `model` says how a time is predicted, `devices` from which
constants, `graphs` on which atoms (EQFUSE_TEST_DATA names the folder of published data sets).
Steps need jax's CUDA plug-in (`pip install -e ".[launches]"`) and are for an H100 or H200.
"""

from __future__ import annotations

import argparse
import itertools

import jax

from benchmarks import record
from benchmarks.predictions import cases, devices, graphs, model, steps, tables

SIZES = {"small": graphs.SMALL, "large": graphs.LARGE}
DEVICES = {device.name.split()[0]: device for device in devices.DEVICES}
STEPS = ("nequip", "mace", "allegro")
RADIALS = ("auto", "network", "table")


def options_of(arguments=None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="*", choices=cases.NAMES, default=list(cases.NAMES))
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--orders", nargs="+", choices=cases.ORDERS, default=list(cases.ORDERS))
    parser.add_argument("--precisions", nargs="+", choices=cases.PRECISIONS, default=["tf32x3"])
    parser.add_argument("--radials", nargs="+", choices=RADIALS, default=["auto"])
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=list(DEVICES))
    record.add_json_option(parser)
    return parser.parse_args(arguments)


def main(arguments=None) -> None:
    """Print the tables, and keep the numbers in a file."""
    options = options_of(arguments)
    jax.config.update("jax_platforms", "cpu")
    kept = record.Record(options.json)
    chosen = [DEVICES[name] for name in options.devices]
    for label in options.sizes:
        size = SIZES[label]
        title = f"{size[0]:,} nodes, {size[1]:,} edges"
        if options.cases:
            print(f"\n### Counts, {title}\n\n{tables.head(tables.COUNTED)}", flush=True)
            columns = (*tables.PREDICTED, *(f"{d.name}, µs" for d in chosen))
            lines = [line for n in options.cases for line in _case(n, size, options, chosen, kept)]
            print(f"\n### Predicted times, {title}\n\n{tables.head(columns)}")
            print("\n".join(lines), flush=True)
        for name, radial, precision in itertools.product(
            options.steps, options.radials, options.precisions
        ):
            _steps(name, size, radial, precision, chosen, kept)
    kept.finish()


def _case(name: str, size, options, chosen, kept):
    """Print the counts of a case; yield the lines of its predictions."""
    for order in options.orders:
        for precisions, launches in _by_precision(name, order, size, options.precisions).items():
            for launch in launches:
                predictions = []
                for device in chosen:
                    counts = cases.counted(launch, size, device)
                    predictions.append(model.predict(counts, device))
                    if device is chosen[-1]:
                        line = tables.counted(name, order, counts, predictions[-1])
                        print(line, flush=True)
                found = {d.name: p for d, p in zip(chosen, predictions, strict=True)}
                kept.add(
                    {
                        "case": name,
                        "order": order,
                        "size": list(size),
                        "precisions": precisions,
                        "kernel": launch.spec.name,
                        "predicted_seconds": {d: p.seconds for d, p in found.items()},
                        "lower_seconds": {d: p.lower for d, p in found.items()},
                        "bounds": {d: p.bounds for d, p in found.items()},
                    }
                )
                kernel = f"{launch.spec.name}, {' and '.join(precisions)}"
                yield tables.predicted(name, order, kernel, predictions)


def _by_precision(name: str, order: str, size, precisions) -> dict[tuple, list]:
    """Return the launches of a case by the precisions in which they are the same."""
    found: dict[tuple, list] = {}
    for precision in precisions:
        with cases.multiplied_in(precision):
            launches = cases.launches_of(name, order, size)
        kernels = [launch.spec.name for launch in launches]
        same = [p for p, others in found.items() if [n.spec.name for n in others] == kernels]
        found[(*(same[0] if same else ()), precision)] = found.pop(same[0]) if same else launches
    return found


def _steps(name: str, size, radial: str, precision: str, chosen, kept) -> None:
    """Print the breakdown of a training step on each device that its schedule is for."""
    for device in chosen:
        if device.target != "sm_90":
            continue
        items = steps.predict(name, size, device, radial, precision)
        title = f"{name}, radial={radial}, matmuls in {precision}, {size[0]:,} nodes, "
        title += f"{size[1]:,} edges, {device.name}"
        print(f"\n#### {title}\n\n{tables.step(title, items, device.host_launch)}", flush=True)
        kept.add(
            {
                "case": name,
                "order": "step",
                "size": list(size),
                "radial": radial,
                "precisions": [precision],
                "predicted_seconds": {device.name: sum(item.seconds for item in items)},
                "lower_seconds": {device.name: sum(item.lower for item in items)},
                "cold_seconds": {device.name: sum(item.cold for item in items)},
                "breakdown": steps.breakdown(items),
            }
        )


if __name__ == "__main__":
    main()
