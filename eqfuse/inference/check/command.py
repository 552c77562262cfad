"""The command `eqfuse check RUN [FILE]`: certify a trained network on this machine."""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from ase.data import covalent_radii

from eqfuse import ops
from eqfuse.data import DataError, Structure, neighbor_list, read_structures
from eqfuse.inference.check.checks import CHECKS, RATTLE, check
from eqfuse.inference.examples import example_structures
from eqfuse.train import CheckpointError, read_metadata
from eqfuse.train.device.process import keep_programs
from eqfuse.train.run.stopping import fail


def main(arguments: list[str]) -> int:
    """Check a network, and print a table and a verdict.

    Args:
      arguments: of the command.
    Returns:
      0 all passed; 1 a check failed; 2 a run or file that cannot be used.
    """
    options = _parser().parse_args(arguments)
    keep_programs()
    try:
        for backend in options.backends or ():
            ops.resolve_here(backend)
        structures = _structures(options)
        print(f"{options.run}: {len(structures)} structures, atoms moved at random by {RATTLE} Å")
        print(f"{'check':<34}{'error':>9}{'limit':>9}")
        rows = []
        for row in check(
            options.run,
            structures,
            which=options.which,
            steps=options.steps if options.file else None,
            temperature=options.temperature,
            backends=options.backends,
        ):
            print(row, flush=True)
            rows.append(row)
    except BrokenPipeError:  # of what reads the output, see `eqfuse.cli.main`
        raise
    except (CheckpointError, DataError, ValueError, OSError) as error:
        return fail(2, error)
    failed = [CHECKS[row.name][0] for row in rows if not row.passed]
    left_out = sum(row.error is None for row in rows)
    print("errors are relative to the largest force, stress or energy per atom, except the drift")
    if failed:
        print(f"verdict: FAILED: {'; '.join(failed)}")
        return 1
    print(f"verdict: passed, {len(rows) - left_out} checks; not checked: {left_out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    what = (
        "Certify a trained network on this machine: forces, stress, symmetries, smoothness, "
        "backends, precision and the energy in dynamics. Exit code 0 if all checks pass, 1 if not."
    )
    parser = argparse.ArgumentParser(prog="eqfuse check", description=what)
    parser.add_argument("run", type=Path, help="folder of the run, or file of its network")
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="structures to check it on, without labels too; if not given, a disordered crystal "
        "and a molecule of its elements, which are too far from what networks are trained on for "
        "dynamics",
    )
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint; the best there is")
    parser.add_argument(
        "--frames", type=int, default=3, help="frames of the file, evenly spaced [%(default)s]"
    )
    parser.add_argument(
        "--steps", type=int, default=1000, help="of dynamics; 0 for none [%(default)s]"
    )
    parser.add_argument(
        "--temperature", type=float, default=300.0, help="K, of dynamics [%(default)s]"
    )
    parser.add_argument(
        "--backends",
        nargs="*",
        help="to compare with the one chosen by device; all that run here if not given",
    )
    return parser


def _structures(options) -> list[Structure]:
    """Return the structures to check.

    Raises:
      DataError: no structures of several atoms in the file, or fewer than one frame asked for.
    """
    if options.file is None:
        species = read_metadata(options.run, which=options.which)["species"]
        examples = zip(("crystal", "molecule"), example_structures(species), strict=True)
        return [_apart(atoms, name) for name, atoms in examples]
    if options.frames < 1:
        raise DataError(f"--frames must be at least 1, got {options.frames}")
    structures = read_structures(options.file, require_labels=False)
    structures = [s for s in structures if not s.is_isolated_atom]
    if not structures:
        raise DataError(f"{options.file} has isolated atoms only; give one with structures")
    chosen = np.linspace(0, len(structures) - 1, min(options.frames, len(structures)))
    return [structures[k] for k in chosen.round().astype(int)]


def _apart(atoms, name: str) -> Structure:
    """Return a structure that is expanded until no atoms are nearer than their radii add up to."""
    structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, origin=name)
    radii = covalent_radii[structure.numbers]
    reach = 2 * radii.max()
    senders, receivers, shifts = neighbor_list(
        structure.positions, structure.cell, structure.pbc, reach
    )
    vectors = structure.positions[senders] + shifts - structure.positions[receivers]
    ratios = (radii[senders] + radii[receivers]) / np.linalg.norm(vectors, axis=1)
    factor = ratios.max(initial=1.0)
    return dataclasses.replace(
        structure, positions=factor * structure.positions, cell=factor * structure.cell
    )
