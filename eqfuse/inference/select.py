"""The command `eqfuse select RUNS FILE [OUT]`: frames that a committee disagrees on, for labels."""

import argparse
from pathlib import Path

import numpy as np

from eqfuse import data
from eqfuse.data.readers import stem
from eqfuse.data.structures import counted
from eqfuse.inference.arguments import count_of, run
from eqfuse.inference.output import atoms_of, format_of, write_atoms
from eqfuse.inference.predict import load_networks, predict
from eqfuse.inference.predicted import Predicted


def main(arguments: list[str]) -> int:
    """Select frames of a file, and write them to another.

    Args:
      arguments: of the command.
    Returns:
      0 done; 2 runs or a file that cannot be used.
    """
    return run(_parser(), arguments, _select)


def _parser() -> argparse.ArgumentParser:
    what = "Write the frames of a file on whose forces a committee disagrees most, to be labelled."
    parser = argparse.ArgumentParser(prog="eqfuse select", description=what)
    parser.add_argument("runs", help="folder that holds runs, or a pattern in quotes")
    parser.add_argument("file", type=Path, help="frames, with or without labels")
    parser.add_argument(
        "out", type=Path, nargs="?", help="file to write (<file>-selected.xyz, here)"
    )
    parser.add_argument("--number", type=count_of, default=50, help="of frames (50)")
    parser.add_argument(
        "--most",
        type=float,
        default=np.inf,
        help="leave out frames with a spread above this, eV/Å: they may be unphysical",
    )
    return parser


def _select(options):
    out = options.out or Path(f"{stem(options.file)}-selected.xyz")
    networks = load_networks(options.runs)
    if len(networks) < 2:
        raise data.DataError(
            f"{options.runs} is one network, and a spread needs several; train others with seeds=4"
        )
    structures = data.read_structures(options.file, require_labels=False)
    predicted = predict(networks, structures)
    numbers = largest_spreads(predicted, options.number, options.most)
    if not len(numbers):
        raise data.DataError(f"the spread of all frames is above --most {options.most} eV/Å")
    format = format_of(out, len(numbers))
    frames = [atoms_of(structures[k], predicted[k]) for k in numbers]
    for atoms, k in zip(frames, numbers, strict=True):
        atoms.info["frame"] = k
    write_atoms(out, frames, format)
    spreads = [1e3 * predicted[k].spread.forces.max() for k in (numbers[0], numbers[-1])]
    print(
        f"{len(frames)} of {counted(len(structures), 'frame')}, with spreads of the forces from "
        f"{spreads[0]:.0f} to {spreads[1]:.0f} meV/Å, are in {out}"
    )


def largest_spreads(predicted: list[Predicted], number: int, most: float = np.inf) -> list[int]:
    """Return the numbers of the frames with the largest spread of a force, the largest first.

    Args:
      predicted: by a committee.
      number: how many are returned, at most.
      most: eV/Å; frames with a larger spread are left out.
    """
    spreads = np.array([p.spread.forces.max() for p in predicted])
    order = np.argsort(-spreads, kind="stable")
    return order[spreads[order] <= most][:number].tolist()
