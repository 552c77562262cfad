"""The console command `eqfuse`."""

import argparse
import difflib
import sys

from eqfuse import __version__

_HELP = """\
usage: eqfuse COMMAND ...

Equivariant interatomic potentials in JAX with fused tensor products.

  eqfuse train [name=value ...]   train a network
  eqfuse predict RUN FILE [OUT]   write energies, forces and stress of the frames of a file
  eqfuse evaluate RUN FILE        print the errors of a trained run on a file
  eqfuse select RUNS FILE [OUT]   write the frames that a committee disagrees on most
  eqfuse md RUN START [name=value ...]
                                  run molecular dynamics with a trained run
  eqfuse lammps RUN INPUT         run a LAMMPS input with a trained run, on MPI ranks
  eqfuse check RUN [FILE]         check forces, symmetries, smoothness and more of a trained run
  eqfuse relax RUN FILE [OUT]     relax structures, several at once
  eqfuse export RUN FILE          write a trained run as one program (StableHLO) with its weights
  eqfuse convert mace FILE RUN    convert a network trained with mace to a run
  eqfuse info [RUN]               print the backends, devices and versions on this machine,
                                  or what a run trained
  eqfuse bench                    check and time the kernels on the GPU of this machine
  eqfuse show IRREPS IRREPS       print the form and the kernels of a tensor product

eqfuse COMMAND --help describes each; eqfuse --version prints the version."""


# A command is imported when it is called: JAX takes seconds to import.
def _train(arguments: list[str]) -> int:
    from eqfuse.train.main import main

    return main(arguments, "eqfuse train")


def _predict(arguments: list[str]) -> int:
    from eqfuse.inference.command import main

    return main(arguments)


def _evaluate(arguments: list[str]) -> int:
    from eqfuse.inference.evaluate import main

    return main(arguments)


def _select(arguments: list[str]) -> int:
    from eqfuse.inference.select import main

    return main(arguments)


def _md(arguments: list[str]) -> int:
    from eqfuse.md.command import main

    return main(arguments)


def _lammps(arguments: list[str]) -> int:
    from eqfuse.lammps.command import main

    return main(arguments)


def _check(arguments: list[str]) -> int:
    from eqfuse.inference.check.command import main

    return main(arguments)


def _relax(arguments: list[str]) -> int:
    from eqfuse.md.relax_command import main

    return main(arguments)


def _export(arguments: list[str]) -> int:
    from eqfuse.export.command import main

    return main(arguments)


def _convert(arguments: list[str]) -> int:
    from eqfuse.convert.command import main

    return main(arguments)


def _info(arguments: list[str]) -> int:
    what = "Print the backends, devices and versions of this machine, or what a run trained."
    parser = argparse.ArgumentParser(prog="eqfuse info", description=what)
    parser.add_argument("run", nargs="?", help="the folder of a run, or a file of its network")
    run = parser.parse_args(arguments).run
    if run is not None:
        from eqfuse.inference.info import main

        return main(run)
    from eqfuse.ops.info import info

    print(info())
    return 0


def _show(arguments: list[str]) -> int:
    from eqfuse.ops.show import main

    main(arguments, "eqfuse show")
    return 0


def _bench(arguments: list[str]) -> int:
    from eqfuse.bench.command import main

    return main(arguments)


COMMANDS = {
    "train": _train,
    "predict": _predict,
    "evaluate": _evaluate,
    "select": _select,
    "md": _md,
    "lammps": _lammps,
    "relax": _relax,
    "check": _check,
    "export": _export,
    "convert": _convert,
    "info": _info,
    "bench": _bench,
    "show": _show,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
      arguments: the name of the command and its arguments; None for those of the command line.
    Returns:
      The exit code of the command; 2 for an unknown one.
    """
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
    return COMMANDS[name](others)


if __name__ == "__main__":
    sys.exit(main())
