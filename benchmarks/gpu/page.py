"""Write benchmarks/results/gpu.md: what was measured on a GPU, with device, versions and spread."""

from __future__ import annotations

import itertools
import pathlib

from benchmarks.gpu.measure import results

PAGE = pathlib.Path(__file__).parents[1] / "results" / "gpu.md"
NAMES = "case", "side", "ms (quartiles)", "of the first", "kernels, µs", "launches"
NAMES += ("scratch, MB", "differs by")


def run(folder: pathlib.Path) -> None:
    """Write the page of a folder's results; without those of `measure`, it is an error."""
    found = results(folder)
    machine = next((result["machine"] for result in found if "machine" in result), None)
    if machine is None or not any("sides" in result for result in found):
        raise SystemExit(f"{folder} has no results: run `python -m benchmarks.gpu measure` first")
    lines = [
        "# Measured on a GPU",
        "",
        "{date}; {device}, driver {driver}; jax {jax}.".format(**machine),
        "",
        "    python -m benchmarks.gpu prebuild FOLDER && python -m benchmarks.gpu measure FOLDER",
        "",
        "Sides of a case are timed in turns, in one process, after their results were compared.",
        "A side whose results differ by more than the case allows is not timed.",
    ]
    for group, cases in itertools.groupby(found, lambda result: result.get("group")):
        if group is not None:
            lines += ["", f"## {group.capitalize()}", "", _row(*NAMES), "|---" * len(NAMES) + "|"]
            lines += [row for case in cases for row in rows(case)]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


def rows(result: dict) -> list[str]:
    """Return the rows of a case, one for each side; what was not timed says why."""
    if "error" in result:
        return [_row(result["case"], "", result["error"])]
    return [_row(result["case"], side["side"], *_cells(side)) for side in result["sides"]]


def _cells(side: dict) -> list[str]:
    if "error" in side:
        return [side["error"]]
    low, median, high = (f"{ms:.3g}" for ms in side["ms"])
    numbers = side.get("device_us"), side.get("launches"), side["scratch"] / 1e6
    shown = ["" if number is None else f"{number:.4g}" for number in numbers]
    apart = f"{side['difference']:.0e}" if "difference" in side else "judges"
    ratio = f"{side['ratio'][1]:.2f}"
    return [f"{median} ({low} to {high})", ratio, *shown, apart]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |{' |' * (len(NAMES) - len(cells))}"
