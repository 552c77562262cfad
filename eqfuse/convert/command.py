"""The command `eqfuse convert`: networks of other programs as runs, and back.

eqfuse convert mace FILE.model RUN      # a network of mace-torch as a run
eqfuse convert export RUN FILE.npz      # a run, for scripts/mace_load.py
eqfuse convert run OLD NEW              # a run of an earlier version
"""

import argparse
import sys
from pathlib import Path

from ase.data import chemical_symbols

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.convert.mace_description import Description
from eqfuse.convert.old_run import convert_run
from eqfuse.convert.write import convert_mace
from eqfuse.train import CheckpointError
from eqfuse.train.settings.schema import ConfigError


def main(arguments: list[str]) -> int:
    """Convert or export a network, and print a description of it.

    Args:
      arguments: of the command.
    Returns:
      0 done; 2 a file or folder that cannot be used.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.program == "export":
            export_mace(options.run, options.file)
            print(f"{options.file} is written; scripts/mace_load.py makes a mace network of it")
            return 0
        if options.program == "run":
            names = " and ".join(convert_run(options.old, options.new))
            print(f"{options.new} is written, with the checkpoints {names} of {options.old}")
            return 0
        description = convert_mace(options.file, options.run, head=options.head)
    except (ConvertError, ConfigError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(_text(description))
    print(f"run        {options.run}")
    print("licence    of the weights: it is that of their authors; check that it allows your use")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqfuse convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = parser.add_subparsers(dest="program", required=True, metavar="PROGRAM")
    mace = programs.add_parser("mace", help="a .model file of mace (mace-torch)")
    mace.add_argument("file", type=Path, metavar="FILE.model", help="what mace has saved")
    mace.add_argument("run", metavar="RUN", help="the folder to write, which must not exist")
    mace.add_argument("--head", help="which one, of a network with several heads")
    export = programs.add_parser("export", help="a run of MACE, for mace-torch")
    export.add_argument("run", metavar="RUN", help="the folder of the run")
    export.add_argument("file", type=Path, metavar="FILE.npz", help="the file to write")
    run = programs.add_parser("run", help="a run of an earlier version (needs orbax-checkpoint)")
    run.add_argument("old", metavar="OLD", help="the folder of the run, which stays as it is")
    run.add_argument("new", metavar="NEW", help="the folder to write, which must not exist")
    return parser


def _text(description: Description) -> str:
    elements = " ".join(chemical_symbols[z] for z in description.references)
    fields = {
        name: value
        for name, value in description.fields.items()
        if value is not None and not isinstance(value, list)
    }
    rows = {
        "elements": f"{len(description.references)}: {elements}",
        "dtype": description.dtype,
        "network": ", ".join(f"{name}={value}" for name, value in fields.items()),
        "energies": f"scale {description.scale:.6g}, shift {description.shift:.6g} eV",
        "repulsion": "ZBL" if description.repulsion else "none",
    }
    return "\n".join(f"{name:<11}{text}" for name, text in rows.items())
