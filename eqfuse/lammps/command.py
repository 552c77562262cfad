"""The command `eqfuse lammps RUN INPUT`: run a LAMMPS input with a trained network."""

import argparse
import os
import re
import tempfile
from pathlib import Path

from eqfuse.lammps.mpi import import_lammps, load_mpi, share_cores
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.stopping import exit_code, fail

_FIX = re.compile(r"^\s*fix\s+(\S+)\s+all\s+external\s+pf/callback\s+1\s+1\s*(#.*)?$", re.M)
_OURS = re.compile(r"^\s*(neighbor|neigh_modify|comm_modify)\b.*$", re.M)

_HELP = """\
Run a LAMMPS input with a trained network, on one rank, or on several:

  mpirun -n 4 eqfuse lammps RUN INPUT --types Si O

The input has 'units metal', no pair style, and where one would be, after the atoms, the line

  fix NAME all external pf/callback 1 1

at which the network takes over the forces. It sets neighbor, neigh_modify and comm_modify."""


def main(arguments: list[str]) -> int:
    """Run the input; return 1 if LAMMPS or the network failed, 2 for what cannot be used."""
    parser = argparse.ArgumentParser(
        prog="eqfuse lammps",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="folder of the run, or file of its network")
    parser.add_argument("input", type=Path, help="LAMMPS input")
    parser.add_argument(
        "--types", nargs="+", required=True, help="elements of LAMMPS's types 1, 2, ..."
    )
    parser.add_argument(
        "--forces",
        choices=("returned", "complete"),
        default="returned",
        help="whether forces on ghosts are sent to their ranks, or all is computed where it is "
        "needed, with a wider layer of ghosts [%(default)s]",
    )
    parser.add_argument(
        "--skin", type=float, default=1.0, help="of lists of neighbours, Å [%(default)s]"
    )
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint; the best there is")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="that of the run")
    parser.add_argument("--backend", help="implementation of the ops; by device if not given")
    parser.add_argument(
        "--radial",
        choices=("auto", "network", "table"),
        help="how functions of lengths are computed; by default from tables, wherever they are "
        "close to the networks",
    )
    parser.add_argument(
        "--dispersion",
        choices=("none",),
        help="the network alone, of a run with data.dispersion",
    )
    parser.add_argument(
        "--log", default="log.lammps", help="LAMMPS's log file, or none [%(default)s]"
    )
    options = parser.parse_args(arguments)
    try:
        mpi, lammps = load_mpi(), import_lammps()
    except ImportError as error:
        return fail(2, error)
    code = exit_code(lambda: _run(options, mpi, lammps), failures=(OSError,))
    if code and mpi.COMM_WORLD.size > 1:
        mpi.COMM_WORLD.Abort(code)  # the other ranks may wait for this one
    return code


def _run(options, mpi, lammps):
    head, fix, rest = split(options.input)
    share_cores(mpi.COMM_WORLD)
    from eqfuse.lammps.fix import attach

    lmp = lammps.lammps(cmdargs=["-log", options.log], comm=mpi.COMM_WORLD)
    try:
        lmp.commands_string(head)
        attached = attach(
            lmp,
            options.run,
            options.types,
            fix=fix,
            forces=options.forces,
            skin=options.skin,
            which=options.which,
            dtype=options.dtype,
            backend=options.backend,
            radial=options.radial,
            dispersion=options.dispersion,
        )
        _run_file(lmp, mpi.COMM_WORLD, rest)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        if type(error) is not Exception and type(error).__name__ != "MPIAbortException":
            raise
        raise OSError(f"LAMMPS: {error}") from error
    for rank, text in enumerate(mpi.COMM_WORLD.gather(attached.counts()) or ()):
        print(f"eqfuse, rank {rank}: {text}")
    lmp.close()


def split(path: Path) -> tuple[str, str, str]:
    """Return the commands up to the fix of the network, its ID, and the commands after it."""
    text = path.read_text(encoding="utf-8")
    lines = list(_FIX.finditer(text))
    if len(lines) != 1:
        raise ConfigError(
            f"{path} has {len(lines)} lines 'fix NAME all external pf/callback 1 1'; it needs one, "
            "after the atoms and before the first run"
        )
    [line] = lines
    if changed := _OURS.search(text):
        raise ConfigError(
            f"{path}: '{changed[0].strip()}' is set by eqfuse, for the ghosts that the network "
            "needs; remove this line, and set the skin by --skin"
        )
    return text[: line.end()], line[1], text[line.end() :]


def _run_file(lmp, comm, text: str):
    """Run commands as a file, in which `jump SELF` works."""
    name = None
    if comm.rank == 0:
        with tempfile.NamedTemporaryFile("w", suffix=".lammps", delete=False) as file:
            file.write(text)
            name = file.name
    name = comm.bcast(name)
    try:
        lmp.file(name)
    finally:
        if comm.rank == 0:
            os.unlink(name)
