"""Measure ops, training steps and forces on a GPU, from a clone.

    python -m benchmarks.gpu prebuild FOLDER   compile all, on this GPU or for an H100 elsewhere
    python -m benchmarks.gpu measure FOLDER    parity, then times; needs JAX alone
    python -m benchmarks.gpu live FOLDER       a calculator and dynamics, with CUDA graphs or not
    python -m benchmarks.gpu peers FOLDER      products beside cuEquivariance and OpenEquivariance
    python -m benchmarks.gpu page FOLDER       write benchmarks/results/gpu.md

`--only TEXT` takes the cases that hold it, `--minutes` ends `measure`, `--tiny` is a dry run of few
small cases on a CPU, in which no number means anything.
"""

import argparse
import importlib
import pathlib

TAKES = {"prebuild": ("only", "tiny"), "measure": ("only", "minutes"), "live": ("tiny",)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["prebuild", "measure", "live", "peers", "page"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    module = importlib.import_module(
        "benchmarks.peers" if options.part == "peers" else f"benchmarks.gpu.{options.part}"
    )
    module.run(options.folder, **{n: getattr(options, n) for n in TAKES.get(options.part, ())})


if __name__ == "__main__":
    main()
