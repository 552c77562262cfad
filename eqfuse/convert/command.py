"""The command `eqfuse convert`: networks of other programs as runs, and back.

eqfuse convert 7net-0 RUN               # a published network by its name, as a run
eqfuse convert list                     # their names, programs, elements and licences
eqfuse convert mace FILE.model RUN      # a network of mace-torch as a run
eqfuse convert sevennet FILE.pth RUN    # a checkpoint of sevenn
eqfuse convert nequix FILE.nqx RUN      # a network of nequix
eqfuse convert nequip FILE RUN          # a package of nequip, or a deployed network of 0.5 or 0.6
eqfuse convert export RUN FILE.npz      # a run of MACE, for mace-torch by scripts/mace_load.py;
                                        # as a program that runs without eqfuse: eqfuse export
"""

import argparse
from pathlib import Path

from ase.data import chemical_symbols

from eqfuse.convert.convert import convert, find
from eqfuse.convert.converted import Converted, ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.convert.registry import identify, published
from eqfuse.inference.network import Network
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.stopping import fail

_PROGRAMS = {
    "mace": ("FILE.model", "a .model file of mace (mace-torch)", "--head", "several heads"),
    "sevennet": ("FILE.pth", "a checkpoint of sevenn", "--modal", "several fidelities"),
    "nequix": ("FILE.nqx", "a .nqx file of nequix", None, None),
    "nequip": ("FILE", "a .nequip.zip, or a deployed .pth of nequip 0.5 or 0.6", None, None),
}
"""The name of the file, what it is, and how one of several parts of a network is chosen."""


def main(arguments: list[str]) -> int:
    """Convert or export a network.

    Returns:
      0 done; 2 a file or folder that cannot be used.
    """
    if arguments and (named := published().get(arguments[0].lower())):
        arguments = [named.program, *arguments]
    options = _parser().parse_args(arguments)
    if options.program == "list":
        print(listed())
        return 0
    try:
        if options.program == "export":
            export_mace(options.run, options.file)
            print(f"{options.file} is written; scripts/mace_load.py makes a mace network of it")
            return 0
        converted = convert(options.program, options.file, options.run, choice=options.choice)
    except (ConvertError, ConfigError, CheckpointError, OSError) as error:
        return fail(2, error)
    print(_text(converted))
    if converted.heads:
        print(f"heads      {', '.join(converted.heads)}: choose one by head=NAME")
    print(f"radial     {Network(options.run, head=next(iter(converted.heads), None)).radial}")
    print(f"run        {options.run}")
    network = identify(find(options.program, options.file))
    if network is None:
        print("licence    of the weights: that of their authors; check that it allows your use")
    else:
        print(f"published  as {network.name}; licence: {network.licence}; cite {network.citation}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqfuse convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = parser.add_subparsers(dest="program", required=True, metavar="PROGRAM")
    for name, (file, what, choice, of) in _PROGRAMS.items():
        program = programs.add_parser(name, help=what)
        program.add_argument("file", metavar=file, help=what)
        program.add_argument("run", metavar="RUN", help="the folder to write, which must not exist")
        program.set_defaults(choice=None)
        if choice:
            program.add_argument(choice, dest="choice", help=f"which one, of {of}; without, all")
    programs.add_parser("list", help="published networks, each of which is converted by its name")
    export = programs.add_parser(
        "export",
        help="a run of MACE, for mace-torch (to run without eqfuse: eqfuse export)",
    )
    export.add_argument("run", metavar="RUN", help="the folder of the run")
    export.add_argument("file", type=Path, metavar="FILE.npz", help="the file to write")
    return parser


def listed() -> str:
    """Return a table of the published networks."""
    return "\n".join(
        f"{name:<22}{n.program:<10}{str(n.elements or '-')[:9]:<11}{n.licence:<17}"
        + ("by its name" if n.in_wheel else f"fetch {n.url}")
        for name, n in published().items()
    )


def _text(converted: Converted) -> str:
    elements = " ".join(chemical_symbols[z] for z in converted.references)
    fields = {
        name: value
        for name, value in converted.fields.items()
        if value is not None and value is not False and not isinstance(value, list)
    }
    rows = {
        "elements": f"{len(converted.references)}: {elements}",
        "dtype": converted.dtype,
        "network": ", ".join(f"{name}={value}" for name, value in fields.items()),
        "energies": f"scale {_range(converted.scale)}, shift {_range(converted.shift)} eV",
        "repulsion": "ZBL" if converted.repulsion else "none",
    }
    return "\n".join(f"{name:<11}{text}" for name, text in rows.items())


def _range(values) -> str:
    low, high = min(values), max(values)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
