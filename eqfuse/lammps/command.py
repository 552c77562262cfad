"""The command `eqfuse lammps RUN INPUT`: run a LAMMPS input with a trained network."""

import dataclasses
import os
import re
import tempfile
from pathlib import Path
from typing import Literal

from eqfuse.lammps.mpi import import_lammps, load_mpi, share_cores
from eqfuse.runs import command
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.schema import BACKEND, setting, word
from eqfuse.runs.stopping import exit_code

_FIX = re.compile(r"^\s*fix\s+(\S+)\s+all\s+external\s+pf/callback\s+1\s+1\s*(#.*)?$", re.M)
_RADIAL = "functions of lengths; null: tables, wherever they are close to the networks"
_OURS = re.compile(r"^\s*(neighbor|neigh_modify|comm_modify)\b.*$", re.M)


@dataclasses.dataclass
class Lammps:
    """Run a LAMMPS input with a trained network, on one rank, or on several.

      mpirun -n 4 eqfuse lammps RUN INPUT types=Si,O

    The input has 'units metal', no pair style, and where one would be, after the atoms, the line

      fix NAME all external pf/callback 1 1

    at which the network takes over the forces. It sets neighbor, neigh_modify and comm_modify.
    Forces on ghosts are returned to their ranks.
    """

    run: Path = word("folder of the run, or file of its network")
    input: Path = word("LAMMPS input")
    types: tuple[str, ...] = setting((), "elements of LAMMPS's types 1, 2, ...; always needed")
    skin: float = setting(1.0, "of lists of neighbours, Å")
    which: Literal["best", "last"] | None = setting(None, "checkpoint; null: the best there is")
    dtype: Literal["float32", "float64"] | None = setting(None, "null: that of the run")
    backend: str | None = setting(None, BACKEND)
    radial: Literal["auto", "network", "table"] | None = setting(None, _RADIAL)
    dispersion: Literal["none"] | None = setting(None, "none leaves out that of the run")
    log: str = setting("log.lammps", "LAMMPS's log file, or none")


@command.of(Lammps, refused=(ImportError,))
def main(options: Lammps) -> int:
    """Run the input; return 1 if LAMMPS or the network failed."""
    if not options.types:
        raise ConfigError("name the elements of LAMMPS's types 1, 2, ..., such as types=Si,O")
    mpi, lammps = load_mpi(), import_lammps()
    code = exit_code(lambda: _run(options, mpi, lammps), failures=(OSError,))
    if code and mpi.COMM_WORLD.size > 1:
        mpi.COMM_WORLD.Abort(code)  # the other ranks may wait for this one
    return code


def _run(options: Lammps, mpi, lammps):
    head, fix, rest = split(options.input)
    share_cores(mpi.COMM_WORLD)
    from eqfuse.lammps.fix import attach

    lmp = lammps.lammps(cmdargs=["-log", options.log], comm=mpi.COMM_WORLD)
    try:
        lmp.commands_string(head)
        names = ("skin", "which", "dtype", "backend", "radial", "dispersion")
        kinds = {name: getattr(options, name) for name in names}
        attached = attach(lmp, options.run, options.types, fix=fix, **kinds)
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
            "needs; remove this line, and set the skin by skin="
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
