"""Time a step of dynamics: `python -m benchmarks.dynamics RUN START.xyz [--repeat N]`.

In one process and in turns: `eqfuse md` (velocity Verlet on the device), ASE's VelocityVerlet with
`eqfuse.Calculator`, and the bare evaluation: energy and forces of the edges within the cutoff,
without padding, list or integrator. Prints a row of a Markdown table.
"""

import argparse
import time

import ase.io
import jax
import numpy as np
from ase import units
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse.data import Shape, Structure, collate
from eqfuse.data.samples import prepare_samples, species_index
from eqfuse.inference.predict import Network
from eqfuse.md import Settings
from eqfuse.md.stepper import Stepper
from eqfuse.models import compile_predict
from eqfuse.train.device.programs import keep_programs

_ROUNDS = 7


def bare(network: Network, atoms):
    """Return the evaluation of atoms as they are, and the number of edges."""
    structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    samples = prepare_samples([structure], network.cutoff, network.species, None)
    # a node and a graph of padding, which `collate` needs, and no edge
    shape = Shape(len(atoms) + 1, samples[0].num_edges, 2)
    graph = jax.device_put(collate(samples, shape, network.dtype).graph)
    compiled = compile_predict(network._potential)

    def evaluate(count: int):
        with jax.enable_x64(network.dtype == "float64"):
            for _ in range(count):
                jax.block_until_ready(compiled(network._params, graph))

    return evaluate, samples[0].num_edges


def on_device(network: Network, atoms, timestep: float):
    """Return what takes steps on the device."""
    species = species_index(atoms.numbers, network.species)
    settings = Settings(timestep=timestep, max_force=1e6, max_temperature=1e6)
    stepper = Stepper(network, species, atoms.get_masses(), atoms.pbc, settings)
    with jax.enable_x64(True):
        stepper.begin(atoms.positions, atoms.cell.array)
    state = [stepper.state(atoms.positions, atoms.get_velocities(), atoms.cell.array)]

    def take(count: int):
        goal = int(state[0].step) + count
        while (left := goal - int(state[0].step)) > 0:
            with jax.enable_x64(True), jax.default_matmul_precision("highest"):
                done = stepper.take(state[0], min(left, 100), timestep * units.fs)
            state[0] = done.state

    return take, stepper


def main():
    """Print the row of one structure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("start")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--timestep", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    arguments = parser.parse_args()
    keep_programs()
    atoms = ase.io.read(arguments.start).repeat(arguments.repeat)
    atoms.calc = None
    rng = np.random.default_rng(0)
    thermalize_momenta(atoms, temperature_K=300, rng=rng)
    network = Network(arguments.run)
    evaluate, edges = bare(network, atoms)
    take, stepper = on_device(network, atoms, arguments.timestep)
    atoms.calc = eqfuse.Calculator(arguments.run)
    through_ase = VelocityVerlet(atoms, arguments.timestep * units.fs).run
    ways = {"bare": evaluate, "md": take, "ase": through_ase}
    counts = {}
    for name, way in ways.items():
        way(3)
        began = time.perf_counter()
        way(3)
        counts[name] = max(2, int(arguments.seconds / (time.perf_counter() - began) * 3))
    lists, times = stepper.num_lists, {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            way(counts[name])
            times[name].append(1e3 * (time.perf_counter() - began) / counts[name])
    times = {name: np.array(values) for name, values in times.items()}
    cells = [str(len(atoms)), str(edges)]
    cells += [f"{np.median(times['bare']):.3g}"]
    for name in ("md", "ase"):
        ratios = times[name] / times["bare"]
        low, middle, high = np.quantile(ratios, (0.0, 0.5, 1.0))
        cells.append(f"{np.median(times[name]):.3g}")
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    nanoseconds = arguments.timestep * 1e-6 * 86400e3 / np.median(times["md"])
    steps = _ROUNDS * counts["md"]
    every = steps / max(stepper.num_lists - lists, 1)
    cells += [f"{nanoseconds:.3g}", f"{every:.0f}" if stepper.num_lists > lists else f"> {steps}"]
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
