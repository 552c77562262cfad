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
from ase.calculators.calculator import Calculator
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse.data import Shape, Structure, collate
from eqfuse.data.samples import prepare_samples, species_index
from eqfuse.inference.network import Network
from eqfuse.md import Settings
from eqfuse.md.steps import Stepper
from eqfuse.models import compile_predict
from eqfuse.runs.process import keep_memory, keep_programs

_ROUNDS = 7


def bare(network: Network, atoms):
    """Return the evaluation of atoms as they are, and the number of edges."""
    structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    samples = prepare_samples([structure], network.cutoff, network.species, None)
    # a node and a graph of padding, which `collate` needs, and no edge
    shape = Shape(len(atoms) + 1, samples[0].num_edges, 2)
    graph = jax.device_put(collate(samples, shape, network.dtype).graph)
    compiled = compile_predict(network.module.potential)

    def evaluate(count: int):
        with jax.enable_x64(network.dtype == "float64"):
            for _ in range(count):
                jax.block_until_ready(compiled(network.params, graph))

    return evaluate, samples[0].num_edges


class _Null(Calculator):
    """Forces of zero at no cost."""

    def __init__(self, atoms):
        super().__init__()
        self._forces = np.zeros((len(atoms), 3))

    def get_property(self, name, atoms=None, allow_calculation=True):
        return self._forces


def through_ase(atoms, calculator, timestep: float):
    """Return what takes steps by ASE, and the seconds spent in the compiled program so far."""
    atoms = atoms.copy()
    evaluator, seconds = calculator._evaluator, [0.0]
    atoms.calc, apply = calculator, evaluator.apply

    def timed(*arguments, **static):
        began = time.perf_counter()
        result = apply(*arguments, **static)
        seconds[0] += time.perf_counter() - began
        return result

    evaluator.apply = timed
    return VelocityVerlet(atoms, timestep * units.fs).run, seconds


def ase_alone(atoms, calculator, timestep: float):
    """Return what takes steps by ASE without a calculator's work, after each a call of the program.

    That call leaves the caches of the processor as a step of dynamics finds them.
    """
    atoms = atoms.copy()
    atoms.calc = _Null(atoms)
    dynamics = VelocityVerlet(atoms, timestep * units.fs)

    def take(count: int):
        dynamics.attach(lambda: calculator._evaluator.run(calculator._evaluator.listed))
        dynamics.run(count)
        dynamics.observers.clear()

    return take


def on_device(network: Network, atoms, timestep: float, skin: float):
    """Return what takes steps on the device."""
    species = species_index(atoms.numbers, network.species)
    settings = Settings(timestep=timestep, skin=skin, max_force=1e6, max_temperature=1e6)
    stepper = Stepper(network, [species], [atoms.get_masses()], atoms.pbc, settings)
    cell = atoms.cell.array
    with jax.enable_x64(True):
        stepper.begin([atoms.positions], [cell])
    state = [stepper.state([atoms.positions], [atoms.get_velocities()], [cell])]

    def take(count: int):
        goal = int(state[0].step[0]) + count
        while (left := goal - int(state[0].step[0])) > 0:
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
    parser.add_argument("--skin", type=float, help="Å; the default of each way if left out")
    parser.add_argument("--timestep", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    arguments = parser.parse_args()
    keep_programs()
    keep_memory()
    atoms = ase.io.read(arguments.start).repeat(arguments.repeat)
    atoms.calc = None
    rng = np.random.default_rng(0)
    thermalize_momenta(atoms, temperature_K=300, rng=rng)
    network = Network(arguments.run)
    evaluate, edges = bare(network, atoms)
    skin = Settings.skin if arguments.skin is None else arguments.skin
    take, stepper = on_device(network, atoms, arguments.timestep, skin)
    calculator = eqfuse.Calculator(arguments.run, skin=arguments.skin)
    run, inside = through_ase(atoms, calculator, arguments.timestep)
    run(1)
    alone = ase_alone(atoms, calculator, arguments.timestep)
    ways = {"bare": evaluate, "md": take, "ase": run, "alone": alone}
    counts = {}
    for name, way in ways.items():
        way(3)
        began = time.perf_counter()
        way(3)
        counts[name] = max(2, int(arguments.seconds / (time.perf_counter() - began) * 3))
    lists, times = stepper.num_lists, {name: [] for name in ways}
    shares = {"ase": [], "alone": []}  # of a step of ASE, beside the program
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            inside[0], began = 0.0, time.perf_counter()
            way(counts[name])
            seconds = time.perf_counter() - began
            times[name].append(1e3 * seconds / counts[name])
            if name in shares:
                shares[name].append((seconds - inside[0]) / counts[name])
    times = {name: np.array(values) for name, values in times.items()}
    cells = [str(len(atoms)), str(edges)]
    cells += [f"{np.median(times['bare']):.3g}"]
    for name in ("md", "ase"):
        ratios = times[name] / times["bare"]
        low, middle, high = np.quantile(ratios, (0.0, 0.5, 1.0))
        cells.append(f"{np.median(times[name]):.3g}")
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    beside = {name: 1e5 * np.array(values) / times["ase"] for name, values in shares.items()}
    cells += [f"{np.median(v):.2g}% ({v.min():.2g} to {v.max():.2g})" for v in beside.values()]
    nanoseconds = arguments.timestep * 1e-6 * 86400e3 / np.median(times["md"])
    steps = _ROUNDS * counts["md"]
    every = steps / max(stepper.num_lists - lists, 1)
    cells += [f"{nanoseconds:.3g}", f"{every:.0f}" if stepper.num_lists > lists else f"> {steps}"]
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
