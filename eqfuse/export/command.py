"""The command `eqfuse export RUN FILE`."""

import argparse
from pathlib import Path

from eqfuse.export.program import RADIAL, export
from eqfuse.train.run.stopping import exit_code


def main(arguments: list[str]) -> int:
    """Write the program of a network, and print what it is.

    Args:
      arguments: of the command.
    Returns:
      0 done; 1 no readable network; 2 a file that cannot be written.
    """
    options = _parser().parse_args(arguments)

    def write():
        kinds = {"which": options.which, "dtype": options.dtype, "radial": options.radial}
        metadata = export(options.run, options.file, **kinds)
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
    parser.add_argument(
        "--radial",
        choices=RADIAL,
        default="network",
        help="network; or table, which is faster: functions of lengths are read from tables, and "
        "the networks that compute them are not in the file",
    )
    return parser
