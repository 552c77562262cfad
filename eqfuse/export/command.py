"""The command `eqfuse export RUN FILE`."""

import argparse
from pathlib import Path

from eqfuse.export.program import export
from eqfuse.train.exit_code import exit_code


def main(arguments: list[str]) -> int:
    """Write the program of a network, and print what it is.

    Args:
      arguments: of the command.
    Returns:
      0 done; 1 no readable network; 2 a file that cannot be written.
    """
    options = _parser().parse_args(arguments)

    def write():
        metadata = export(options.run, options.file, which=options.which, dtype=options.dtype)
        size = options.file.stat().st_size / 1e6
        print(f"{options.file} is written ({size:.1f} MB): energies, forces and stress of")
        print(f"{metadata['elements']}, {metadata['dtype']}, cutoff {metadata['cutoff']} Å")

    return exit_code(write)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqfuse export",
        description="Write energies, forces and stress of a network as one program (StableHLO), "
        "with its weights, that runs by JAX without eqfuse. To give a network to mace-torch, see "
        "'eqfuse convert export'.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run, or file of its network")
    parser.add_argument("file", metavar="FILE", type=Path, help="to write, such as si.safetensors")
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint; the best there is")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="that of the run")
    return parser
