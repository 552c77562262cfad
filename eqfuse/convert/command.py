"""The command `eqfuse convert`: networks of other programs as runs, and back."""

import dataclasses
from pathlib import Path

from ase.data import chemical_symbols

from eqfuse.convert.conversion import convert, find
from eqfuse.convert.converted import Converted, ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.convert.names import resolved
from eqfuse.convert.registry import identify, known_name, published
from eqfuse.inference.network import Network
from eqfuse.runs import command
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.schema import nearest, require, setting, word

_CHOICES = {"mace": "head", "sevennet": "modal", "nequix": None, "nequip": None}
"""How one of several parts of a network of a program is chosen."""


@dataclasses.dataclass
class Convert:
    """Convert a network of another program to a run, or a run of MACE for mace-torch.

    eqfuse convert 7net-0 RUN               # a published network by its name
    eqfuse convert list                     # their names, programs, elements and licences
    eqfuse convert mace FILE.model RUN      # a network of mace-torch
    eqfuse convert sevennet FILE.pth RUN    # a checkpoint of sevenn
    eqfuse convert nequix FILE.nqx RUN      # a network of nequix
    eqfuse convert nequip FILE RUN          # a .nequip.zip of nequip 0.7 or later
    eqfuse convert export RUN FILE.npz      # a run of MACE, for mace-torch by scripts/mace_load.py;
                                            # as a program that runs without eqfuse: eqfuse export
    """

    program: str = word("mace, sevennet, nequix, nequip, list, export, or a name that is listed")
    source: str | None = word("the file of the network, or the run to export", None)
    target: Path | None = word("the folder to write, or the file; it must not exist", None)
    head: str | None = setting(None, "of a network of mace with several; null: all")
    modal: str | None = setting(None, "of a network of sevennet of several fidelities; null: all")


@command.of(Convert, refused=(ConvertError, CheckpointError, OSError))
def main(options: Convert):
    program, source, target = options.program, options.source, options.target
    if named := published().get(known_name(program)):
        require(target is None, "TARGET", target, "left out: RUN follows the name of a network")
        program, source, target = named.program, program, source
    if program == "list":
        print(listed())
        return
    if Path(program).is_file():
        raise ConfigError(f"name the program first: eqfuse convert mace {program} RUN, or another")
    if program not in ("export", *_CHOICES):
        hint = nearest(program, ["list", "export", *_CHOICES, *published()])
        raise ConfigError(f"{program} is neither a program nor the name of a network; {hint}")
    if target is None:
        files = "RUN FILE.npz" if program == "export" else "FILE RUN"
        raise ConfigError(f"an argument is missing: eqfuse convert {program} {files}")
    choices = {name: getattr(options, name) for name in ("head", "modal")}
    choice = choices.pop(_CHOICES.get(program), None)
    if given := [name for name, value in choices.items() if value is not None]:
        raise ConfigError(f"{given[0]}= is not for {program}; leave it out")
    if program == "export":
        export_mace(resolved(source), target)
        print(f"{target} is written; scripts/mace_load.py makes a mace network of it")
        return
    converted = convert(program, source, target, choice=choice)
    print(_text(converted))
    if converted.heads:
        print(f"heads      {', '.join(converted.heads)}: choose one by head=NAME")
    networks = [Network(target, head=head) for head in converted.heads or (None,)]
    for network in networks:
        network.keep_tables()
    print(f"radial     {networks[0].radial}")
    print(f"run        {target}")
    network = identify(find(program, source))
    if network is None:
        print("licence    of the weights: that of their authors; check that it allows your use")
    else:
        print(f"published  as {network.name}; licence: {network.licence}; cite {network.citation}")


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
    if les := converted.long_range:
        end = "" if les.cutoff is None else f", waves up to {les.cutoff:.4g}/Å"
        rows["charges"] = f"{les.charges} latent for each atom (LES), sigma {les.sigma:g} Å{end}"
    return "\n".join(f"{name:<11}{text}" for name, text in rows.items())


def _range(values) -> str:
    low, high = min(values), max(values)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
