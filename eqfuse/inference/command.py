"""The command `eqfuse predict RUN FILE [OUT]`: what a run predicts for a file."""

import argparse
import sys
import time
from pathlib import Path

from eqfuse import data, ops
from eqfuse.data.readers import stem
from eqfuse.inference.output import atoms_of, format_of, write_atoms
from eqfuse.inference.predict import load_networks, predict
from eqfuse.train import CheckpointError
from eqfuse.train.device.programs import keep_programs


def main(arguments: list[str]) -> int:
    """Predict the frames of a file, and write them to another.

    Args:
      arguments: of the command.
    Returns:
      0 done; 2 a run or file that cannot be used.
    """
    options = _parser().parse_args(arguments)
    keep_programs()
    try:
        ops.resolve_here(options.backend)
    except ValueError as error:
        print(f"error: --backend: {error}", file=sys.stderr)
        return 2
    try:
        _predict(options)
    except (CheckpointError, data.DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    what = "Write energies, forces and stress of the frames of a file, as a trained run predicts."
    parser = argparse.ArgumentParser(prog="eqfuse predict", description=what)
    parser.add_argument(
        "run",
        help="folder of the run, or file of its network; a committee, whose mean and spread are "
        "written: a folder that holds runs, or a pattern in quotes ('runs/seed*')",
    )
    parser.add_argument("file", type=Path, help="frames, with or without labels")
    parser.add_argument(
        "out",
        type=Path,
        nargs="?",
        help="file to write: .xyz (extended XYZ), .traj, .db or what else ASE writes (by default "
        "<file>-predicted.xyz, here)",
    )
    for name, unit in (("energy", "eV"), ("forces", "eV/Å"), ("stress", "eV/Å^3")):
        help = f"name in the file, {unit}; as in the training if not given"
        parser.add_argument(f"--{name}-key", help=help)
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint (the best there is)")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="as trained if not given")
    parser.add_argument("--batch-size", type=count_of, help="frames at once (16, fewer large ones)")
    parser.add_argument(
        "--backend",
        help="implementation of the ops, such as xla or triton,linear=xla; by device if not given",
    )
    return parser


def count_of(text: str) -> int:
    """Return the number of frames that an argument is."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of frames, 1 or more")
    return int(text)


def _predict(options):
    out = options.out or Path(f"{stem(options.file)}-predicted.xyz")
    if out.is_dir():
        raise data.DataError(f"{out} is a folder; give the name of a file in it")
    if out.exists() and options.file.exists() and out.samefile(options.file):
        raise data.DataError(f"{out} is the file that is read; give another name to write to")
    if not out.parent.is_dir():
        raise data.DataError(f"there is no folder {out.parent}; make it first")
    networks = load_networks(
        options.run, which=options.which, dtype=options.dtype, backend=options.backend
    )
    if len(networks) > 1:
        print(f"a committee of {len(networks)} networks: mean and spread")
    keys = label_keys(options, networks[0].metadata["config"]["data"])
    structures = data.read_structures(options.file, keys=keys, require_labels=False)
    format = format_of(out, len(structures))
    start = time.perf_counter()
    predicted = predict(networks, structures, batch_size=options.batch_size)
    seconds = time.perf_counter() - start
    frames = [atoms_of(s, p) for s, p in zip(structures, predicted, strict=True)]
    write_atoms(out, frames, format)
    atoms = sum(structure.num_atoms for structure in structures)
    print(f"{len(frames)} frames of {atoms} atoms predicted in {seconds:.1f} s; they are in {out}")
    if len(networks) > 1:
        worst = max(range(len(frames)), key=lambda k: predicted[k].spread.forces.max())
        spread = predicted[worst].spread.forces
        print(
            f"largest spread of a force: {1e3 * spread.max():.0f} meV/Å, frame {worst}, atom "
            f"{spread.argmax()}"
        )


def label_keys(options, trained_on: dict) -> data.Keys:
    """Return the names of the labels in a file, by default those of the training.

    Args:
      options: of the command.
      trained_on: the settings of the data of the run.
    """
    keys = {}
    for name, usual in data.Keys()._asdict().items():
        given = getattr(options, f"{name}_key")
        keys[name] = given or trained_on.get(f"{name}_key", usual)
        if keys[name] != usual:
            print(f"{name} under the key {keys[name]!r}")
    return data.Keys(**keys)
