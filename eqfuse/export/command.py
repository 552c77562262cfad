"""The command `eqfuse export RUN FILE`."""

import argparse
from pathlib import Path

from eqfuse.data import neighbor_list, read_structures
from eqfuse.export.folder import ENGINES, export_folder
from eqfuse.export.program import RADIAL, export
from eqfuse.inference.lists import room_for_pairs
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.files import head_file
from eqfuse.runs.stopping import exit_code
from eqfuse.train import read_metadata

TARGETS = {"cuda": "sm_80", "rocm": "gfx942"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqfuse export",
        description="Write energies, forces and stress of a network as one program (StableHLO), "
        "with its weights, that runs by JAX without eqfuse; or with --for, as a folder with its "
        "own kernels for an engine without Python. To give a network to mace-torch, see "
        "'eqfuse convert export'.",
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run, or file of its network")
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="to write: si.safetensors, or a folder with --for"
    )
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint; the best there is")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="that of the run")
    parser.add_argument(
        "--radial",
        choices=RADIAL,
        default="auto",
        help="functions of lengths: network; table, without the networks that compute them; or "
        "auto, which is table with eqfuse's kernels where forces are the network's to 1e-7",
    )
    engines = parser.add_argument_group("folders for engines")
    engines.add_argument("--for", dest="engine", choices=ENGINES, help="what runs the folder")
    engines.add_argument(
        "--platform",
        choices=("cpu", *TARGETS),
        default="cpu",
        help="of the kernels; cuda and rocm are not run on a GPU yet",
    )
    engines.add_argument(
        "--target", help="a GPU's, such as sm_90; by default sm_80 for cuda, gfx942 for rocm"
    )
    engines.add_argument(
        "--backend", choices=("llvm", "xla"), default="llvm", help="whose kernels: eqfuse's, XLA's"
    )
    engines.add_argument(
        "--atoms", type=int, nargs="+", default=[], help="most atoms of each program, with ghosts"
    )
    engines.add_argument("--edges", type=int, nargs="+", default=[], help="most edges of each")
    engines.add_argument(
        "--structure", metavar="FILE", help="whose frames the programs are made for, without ghosts"
    )
    engines.add_argument(
        "--types", nargs="+", default=(), metavar="ELEMENT", help="of LAMMPS's types 1, 2, ..."
    )
    engines.add_argument(
        "--exchange",
        action="store_true",
        help="features of ghosts come from their owners between layers; ghosts reach one cutoff",
    )
    what = "the network alone, of a run with data.dispersion"
    parser.add_argument("--dispersion", choices=("none",), help=what)
    parser.add_argument("--head", help="which head of a network with several")
    return parser


def main(arguments: list[str]) -> int:
    """Write the program of a network, and print what it is; return the exit code."""
    options = _parser().parse_args(arguments)
    kinds = {n: getattr(options, n) for n in ("which", "dtype", "radial", "dispersion")}

    def write():
        options.run = head_file(options.run, options.head)
        if options.engine:
            sizes = _sizes(options)
            target = options.target or TARGETS.get(options.platform, "cpu")
            if not target.startswith(TARGETS.get(options.platform, "cpu")[:3]):
                raise ConfigError(f"--target {target} is none of --platform {options.platform}")
            own = {"engine": options.engine, "target": target, "backend": options.backend}
            own["exchange"] = options.exchange
            export_folder(
                options.run, options.file, sizes=sizes, types=options.types, **own, **kinds
            )
            size = sum(f.stat().st_size for f in options.file.iterdir()) / 1e6
            print(f"{options.file} is written ({size:.1f} MB): README.txt in it says how to run it")
            for atoms, edges in sizes:
                print(f"at most {atoms} atoms, with ghosts, and {edges} edges")
            return
        given = options.atoms, options.edges, options.structure, options.types, options.exchange
        if any(given):
            raise ConfigError(
                "--atoms, --edges, --structure, --types and --exchange are for folders: add --for"
            )
        metadata = export(options.run, options.file, **kinds)
        size = options.file.stat().st_size / 1e6
        print(f"{options.file} is written ({size:.1f} MB): energies, forces and stress of")
        print(f"{metadata['elements']}, {metadata['dtype']}, cutoff {metadata['cutoff']} Å")

    return exit_code(write)


def _sizes(options) -> list[tuple[int, int]]:
    """Return atoms and edges of the programs: those given, or steps of two for structures."""
    if options.structure is None:
        if not options.atoms or len(options.atoms) != len(options.edges):
            raise ConfigError(
                "give as many --atoms as --edges, such as --atoms 500 1000 --edges 20000 40000; "
                "or a --structure"
            )
        return list(zip(options.atoms, options.edges, strict=True))
    if options.atoms or options.edges:
        raise ConfigError("--structure is in the place of --atoms and --edges; leave one out")
    cutoff = read_metadata(options.run)["model_fields"]["cutoff"]
    return sizes_for(options.structure, cutoff, options.types)


def sizes_for(file, cutoff: float, types=None) -> list[tuple[int, int]]:
    """Return atoms and edges of programs for the frames of a file, from the largest in halves.

    `types` are the elements of LAMMPS's types, which only its files have.
    """
    counts = []
    for s in read_structures(file, types=types, require_labels=False):
        pairs = neighbor_list(s.positions, s.cell, s.pbc, cutoff)
        counts.append((s.num_atoms, room_for_pairs(len(pairs[0]))))
    (atoms, edges), least = map(max, zip(*counts, strict=True)), min(counts)
    sizes = [(atoms, edges)]
    while atoms > 2 * least[0]:
        atoms, edges = -(-atoms // 2), -(-edges // 2)
        sizes.append((atoms, edges))
    return sizes[::-1]
