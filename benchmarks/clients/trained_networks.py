"""Time trained networks by the programs that they come from and by eqfuse, in turns.

    python -m benchmarks.clients.trained_networks PROGRAM FILE [--atoms 24 96 512] [--out FILE.md]

PROGRAM is mace, sevennet or nequix, which must be installed beside eqfuse. The structure is a
disordered rocksalt crystal. Energy, forces and stress are computed in float32 on the same two
threads, in turns: alone, on a prepared graph, and through the calculators of ASE, with atoms that
have moved by hundredths of an Å since the call before. Forces that differ by more than 1e-3 are an
error, and nothing is timed.
"""

import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import argparse
import platform
import statistics
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import ase.build
import jax
import numpy as np

import eqfuse
from eqfuse.convert import convert
from eqfuse.data import Sample, Shape, collate, neighbor_list
from eqfuse.models import compile_predict
from eqfuse.train import load_run

THREADS, AGREE = 2, 1e-3
CRYSTALS = {24: (3, 1, 1), 96: (3, 2, 2), 512: (4, 4, 4)}
"""Repeats of a cubic cell of eight atoms, by the number of atoms."""
MATERIALS = {"mace": ("GeTe", 6.0), "sevennet": ("NaCl", 5.64), "nequix": ("NaCl", 5.64)}
PACKAGES = {"mace": ("mace-torch", "torch"), "sevennet": ("sevenn", "torch"), "nequix": ("nequix",)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=MATERIALS)
    parser.add_argument("file")
    parser.add_argument("--choice")
    parser.add_argument("--atoms", nargs="*", type=int, default=list(CRYSTALS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="append the rows there, as Markdown")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    # before JAX makes its threads, which then are as many
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    theirs = OTHERS[options.program](options.file, options.choice)
    with tempfile.TemporaryDirectory() as folder:
        convert(options.program, options.file, f"{folder}/run", choice=options.choice)
        calculator = eqfuse.Calculator(f"{folder}/run")
        alone = _alone(f"{folder}/run")
    rows = []
    for count in options.atoms:
        rows.append(_row(options, count, theirs, (alone, calculator)))
        print(rows[-1], flush=True)
    if options.out:
        with open(options.out, "a", encoding="utf-8") as file:
            print(*rows, sep="\n", file=file)
    return 0


def _row(options, count, theirs, ours) -> str:
    """Time both on a crystal. Returns a row of the table: first calls, and times in ms."""
    formula, side = MATERIALS[options.program]
    atoms = ase.build.bulk(formula, "rocksalt", side, cubic=True) * CRYSTALS[count]
    atoms.rattle(0.1, seed=0)
    cells = []
    for kind, make_theirs, make_ours in (
        ("alone", lambda: theirs[0](atoms), lambda: ours[0](atoms)),
        ("ASE", lambda: _through_ase(atoms, theirs[1]), lambda: _through_ase(atoms, ours[1])),
    ):
        runs = {"theirs": make_theirs(), "ours": make_ours()}
        first, forces = {}, {}
        for name, run in runs.items():
            start = time.perf_counter()
            forces[name] = np.asarray(run())
            first[name] = time.perf_counter() - start
        if kind == "alone":
            error = abs(forces["ours"] - forces["theirs"]).max() / abs(forces["theirs"]).max()
            if not error < AGREE:
                raise RuntimeError(f"{count} atoms: forces are apart by {error:.1e}; not timed")
            cells += [f"{first[name]:.1f}" for name in runs]
        times = {name: [] for name in runs}
        for run in [*runs.values()] * 2:
            run()
        for _ in range(options.repeats):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
        cells += [_cell(times[name]) for name in runs]
        ratios = [a / b for a, b in zip(times["theirs"], times["ours"], strict=True)]
        cells.append(f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")
    name = f"{Path(options.file).stem}{(options.choice and ' ' + options.choice) or ''}"
    packages = ", ".join(f"{p} {version(p)}" for p in PACKAGES[options.program])
    return "| " + " | ".join([f"{name} ({packages})", str(count), *cells, f"{error:.0e}"]) + " |"


def _cell(times) -> str:
    return f"{statistics.median(times) * 1e3:.0f} ({min(times) * 1e3:.0f})"


def _through_ase(atoms, calculator):
    """Return what moves the atoms a little and computes forces and stress."""
    atoms, rng, start = atoms.copy(), np.random.default_rng(0), atoms.positions.copy()
    atoms.calc = calculator

    def run():
        atoms.positions = start + rng.normal(size=start.shape) * 0.01
        atoms.get_stress()
        return atoms.get_forces()

    return run


def _alone(run):
    """Return what prepares atoms for eqfuse and gives their forces."""
    potential, params, metadata = load_run(run)
    params = jax.tree.map(lambda p: p.astype("float32"), params)
    evaluated = compile_predict(potential, stress=True)

    def of(atoms):
        cutoff = metadata["model_fields"]["cutoff"]
        edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
        species = np.searchsorted(metadata["species"], atoms.numbers).astype(np.int32)
        forces = np.zeros_like(atoms.positions)
        sample = Sample(atoms.positions, species, *edges, atoms.cell.array, 0.0, forces)
        shape = Shape(len(atoms) + 1, sample.num_edges, 2)
        graph = jax.device_put(collate([sample], shape, "float32").graph)
        count = len(atoms)
        return lambda: jax.block_until_ready(evaluated(params, graph)).forces[:count]

    return of


def _sevennet(file, choice):
    import torch
    from sevenn.atom_graph_data import AtomGraphData
    from sevenn.calculator import SevenNetCalculator
    from sevenn.train.dataload import unlabeled_atoms_to_graph

    torch.set_num_threads(THREADS)
    options = {"modal": choice} if choice else {}
    calculator = SevenNetCalculator(file, device="cpu", **options)

    def of(atoms):
        graph = unlabeled_atoms_to_graph(atoms, calculator.cutoff, with_shift=False)

        def run():
            data = AtomGraphData.from_numpy_dict(dict(graph))
            if choice:
                data["data_modality"] = choice
            return calculator.model(data)["inferred_force"].detach().numpy()[: len(atoms)]

        return run

    return of, calculator


def _nequix(file, choice):
    import equinox
    import jraph
    from nequix.calculator import NequixCalculator
    from nequix.data import atomic_numbers_to_indices, dict_to_graphstuple, preprocess_graph
    from nequix.model import load_model

    network, config = load_model(file)
    compute = equinox.filter_jit(lambda graph: network(graph))
    indices = atomic_numbers_to_indices(config["atomic_numbers"])

    def of(atoms):
        graph = preprocess_graph(atoms, indices, config["cutoff"], targets=False)
        sizes = len(atoms) + 1, len(graph["senders"]) + 1
        padded = jraph.pad_with_graphs(dict_to_graphstuple(graph), *sizes, n_graph=2)
        padded = jax.tree.map(jax.numpy.asarray, padded)
        return lambda: jax.block_until_ready(compute(padded))[1][: len(atoms)]

    return of, NequixCalculator(model_path=file, use_kernel=False)


def _mace(file, choice):
    import torch
    from mace.calculators import MACECalculator

    torch.set_num_threads(THREADS)
    calculator = MACECalculator(model_paths=file, device="cpu", default_dtype="float32")
    network = calculator.models[0]
    for parameter in network.parameters():
        parameter.requires_grad_(False)

    def of(atoms):
        batch = calculator._atoms_to_batch(atoms).to_dict()

        def run():
            data = {k: v.detach() if torch.is_tensor(v) else v for k, v in batch.items()}
            return network(data, compute_stress=True)["forces"].detach().numpy()

        return run

    return of, calculator


OTHERS = {"sevennet": _sevennet, "nequix": _nequix, "mace": _mace}

HEAD = """\
| network | atoms | first call, theirs, s | eqfuse, s | alone, theirs, ms | eqfuse, ms | ratio \
| ASE, theirs, ms | eqfuse, ms | ratio | forces differ by |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
"""The head of the table that the rows belong to."""

if __name__ == "__main__":
    print(HEAD, end="")
    print(f"Python {platform.python_version()}, {platform.machine()}", file=sys.stderr)
    sys.exit(main())
