"""The console command `eqfuse`."""

import contextlib
import difflib
import importlib
import os
import sys

from eqfuse import __version__

_HELP = """\
usage: eqfuse COMMAND ...

Equivariant interatomic potentials in JAX with fused tensor products.

  eqfuse train [name=value ...]   train a network
  eqfuse predict RUN FILE [OUT]   write energies, forces and stress of the frames of a file
  eqfuse evaluate RUN FILE        print the errors of a trained run on a file
  eqfuse uncertainty RUN          fit the spread of one network, which predict then writes
  eqfuse select RUNS FILE [OUT]   write the frames of the largest spread
  eqfuse md RUN START [name=value ...]
                                  run molecular dynamics with a trained run
  eqfuse lammps RUN INPUT         run a LAMMPS input with a trained run, on MPI ranks
  eqfuse check CALCULATOR [FILE]  check forces, symmetries, smoothness and more of any potential
  eqfuse compare A B FILE         compare two potentials, or one with two sets of options
  eqfuse relax RUN FILE [OUT]     relax structures by ASE's FIRE
  eqfuse export RUN FILE          write a trained run as one program (StableHLO) with its weights
  eqfuse convert mace FILE RUN    convert a network trained with mace to a run
  eqfuse info [RUN]               print the backends, devices and versions on this machine,
                                  or what a run trained
  eqfuse bench                    check and time the kernels on the GPU of this machine

eqfuse COMMAND --help describes each; eqfuse --version prints the version."""


COMMANDS = {
    "train": "eqfuse.train.main",
    "predict": "eqfuse.inference.commands:run_predict",
    "evaluate": "eqfuse.inference.evaluate",
    "select": "eqfuse.inference.commands:run_select",
    "uncertainty": "eqfuse.inference.uncertainty",
    "md": "eqfuse.md.command",
    "lammps": "eqfuse.lammps.command",
    "relax": "eqfuse.md.command:relax_main",
    "check": "eqfuse.certify.check",
    "compare": "eqfuse.certify.compare",
    "export": "eqfuse.export.command",
    "convert": "eqfuse.convert.command",
    "info": "eqfuse.inference.commands:run_info",
    "bench": "eqfuse.bench.command",
}
"""The module of each, and its function if it is not `main`; imported when it is called."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command, by default that of the command line, and return its exit code.

    The code is 2 for an unknown one, and 141 (128 and SIGPIPE) if what reads its output has ended,
    as `head` does.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # Python flushes them once more at the end
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 141


def _run(arguments: list[str] | None) -> int:
    name, *others = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("--help", "-h"):
        print(_HELP)
        return 0
    if name == "--version":
        print(f"eqfuse {__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(COMMANDS)}"
        what = f"{name!a} is not a command of eqfuse" if name else "eqfuse needs a command"
        print(f"error: {what}; {hint}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(module), function or "main")(others) or 0


if __name__ == "__main__":
    sys.exit(main())
