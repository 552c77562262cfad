"""The command `eqfuse predict RUN FILE [OUT]`: what a run predicts for a file."""

import argparse
import time
from pathlib import Path

from eqfuse import data
from eqfuse.data.readers import stem
from eqfuse.data.structures import counted
from eqfuse.inference.arguments import add_backend, add_keys, count_of, label_keys, run
from eqfuse.inference.output import atoms_of, format_of, write_atoms
from eqfuse.inference.predict import load_networks, predict


def main(arguments: list[str]) -> int:
    """Predict the frames of a file, and write them to another.

    Args:
      arguments: of the command.
    Returns:
      0 done; 2 a run or file that cannot be used.
    """
    return run(_parser(), arguments, _predict)


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
    add_keys(parser)
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint (the best there is)")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="as trained if not given")
    parser.add_argument("--batch-size", type=count_of, help="frames at once (16, fewer large ones)")
    add_backend(parser)
    return parser


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
    done = f"{counted(len(frames), 'frame')} of {counted(atoms, 'atom')} predicted"
    print(f"{done} in {seconds:.1f} s; they are in {out}")
    if len(networks) > 1:
        worst = max(range(len(frames)), key=lambda k: predicted[k].spread.forces.max())
        spread = predicted[worst].spread.forces
        print(
            f"largest spread of a force: {1e3 * spread.max():.0f} meV/Å, frame {worst}, atom "
            f"{spread.argmax()}"
        )
