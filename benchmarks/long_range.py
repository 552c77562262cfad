"""Networks with latent charges and without, on far fragments of salt; times of training steps.

    python -m benchmarks.long_range --out FOLDER

Frames have two fragments of sodium chloride, whose charges are opposite or zero, with gaps of up to
15 Å. Labels are of point charges and of Born and Mayer's repulsion. Small networks learn from them;
printed are the errors of other frames, and of the energy of two ions along their distance. Times
are of the gradient of a loss of energies and forces, in turns.
"""

import argparse
import csv
import functools
import importlib.util
import math
import time
from pathlib import Path

import ase
import ase.build
import ase.io
import jax
import jax.numpy as jnp
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from scipy.fft import next_fast_len

import eqfuse
from eqfuse import models, train
from eqfuse.data import Batcher, Structure
from eqfuse.data.samples import prepare_samples
from eqfuse.models.ewald import OVERSAMPLING, LatentEwald
from eqfuse.models.potential import irreps_out

_COULOMB, _REPULSION, _DECAY = 14.399645, 1250.0, 3.15  # eV Å, eV, 1/Å: of about NaCl
WAYS = {"without charges": [], "with charges": ["model.long_range=les"]}


def labelled(atoms: ase.Atoms) -> ase.Atoms:
    """Return atoms with the energy and forces of ions."""
    charges = np.where(atoms.numbers == 11, 1.0, -1.0)
    d = atoms.positions[:, None] - atoms.positions
    r = np.linalg.norm(d, axis=2) + np.diag(np.full(len(d), np.inf))
    coulomb = _COULOMB * np.outer(charges, charges) / r
    repulsion = _REPULSION * np.exp(-_DECAY * r)
    slope = (coulomb / r + _DECAY * repulsion) / r
    forces = np.sum(np.where(np.isfinite(r), slope, 0)[..., None] * d, axis=1)
    energy = (coulomb + repulsion).sum() / 2
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    return atoms


def frame(rng) -> ase.Atoms:
    """Return two fragments of five or six ions each, in all directions from each other."""
    parts = []
    sodium = rng.integers(2, 4)
    for count in (sodium, 5 - sodium) if rng.random() < 0.7 else (2, 2):
        numbers = [11] * int(count) + [17] * int(5 - count)
        sites = 2.75 * np.stack(np.unravel_index(rng.permutation(8)[:5], (2, 2, 2)), axis=1)
        parts.append(ase.Atoms(numbers, sites + rng.normal(size=sites.shape) * 0.15))
        parts[-1].rotate(360 * rng.random(), rng.normal(size=3))
    direction = rng.normal(size=3)
    gap = rng.uniform(8.0, 20.0)  # between the centres
    parts[1].positions += gap * direction / np.linalg.norm(direction)
    return labelled(parts[0] + parts[1])


def errors(folder: Path, frames: list[ase.Atoms]) -> str:
    """Return the errors on frames, and of the energy of a pair of ions from 6 to 16 Å."""
    found = eqfuse.predict(folder, [ase.Atoms(a.numbers, a.positions) for a in frames])
    both = list(zip(found, frames, strict=True))
    energies = [(p.energy - a.get_potential_energy()) / len(a) for p, a in both]
    forces = [p.forces - a.get_forces() for p, a in both]
    pairs = [ase.Atoms("NaCl", [[0, 0, 0], [r, 0, 0]]) for r in (6.0, 8.0, 16.0)]
    energy = [p.energy for p in eqfuse.predict(folder, pairs)]
    numbers = 1e3 * np.abs(energies).mean(), 1e3 * np.abs(np.concatenate(forces)).mean()
    return f"{numbers[0]:.1f} | {numbers[1]:.1f} | {energy[2] - energy[0]:.3f}"


def step_seconds(periodic: bool, turns: int) -> dict[str, float]:
    """Return the median times of a gradient of a loss for 216 atoms, without and with charges."""
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.64, cubic=True).repeat(3)
    atoms.rattle(0.1, seed=0)
    one = Structure(atoms.numbers, atoms.positions, atoms.cell.array, [periodic] * 3)
    samples, steps, times = prepare_samples([one], 5.0, (11, 17), None), {}, {}
    for way, les in zip(WAYS, (None, LatentEwald()), strict=True):
        fields = {"channels": 32, "lmax": 2, "layers": 2, "cutoff": 5.0, "num_species": 2}
        model = models.build("nequip", irreps_out=irreps_out(les), avg_num_neighbors=14.0, **fields)
        potential = models.Potential(model, (1.0, 1.0), (0.0, 0.0), long_range=les)
        [batch] = Batcher(samples, 1, long_range=les).batches()
        params = jax.jit(potential.init)(jax.random.key(0), batch.graph)

        def loss(params, graph, potential=potential):
            found = models.predict(potential, params, graph)
            return found.energy[0] ** 2 + jnp.sum(found.forces**2)

        steps[way] = jax.jit(jax.value_and_grad(loss)), params, jax.device_put(batch.graph)
        times[way] = []
    for turn in range(turns + 1):
        for way, (step, *arguments) in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            times[way] += [time.perf_counter() - start] if turn else []  # the first compiles
    return {way: float(np.median(seconds)) for way, seconds in times.items()}


def sums_of(repeats: int, turns: int) -> dict[str, tuple[float, float]]:
    """Return processor seconds of ways to sum a cell of salt with its derivatives, float64.

    Beside them is the largest difference of forces from the waves written out, eV/Å. The last way,
    P3M of jax-pme on the mesh of ours, is there where jax-pme is installed.
    """
    atoms = ase.build.bulk("NaCl", "rocksalt", a=5.64, cubic=True).repeat(repeats)
    atoms.rattle(0.1, seed=0)
    charges = np.where(atoms.numbers == 11, 1.0, -1.0)[:, None]
    cell, les = atoms.cell.array, LatentEwald(remove_self=False)
    reach = les.reach(cell[None], [[True] * 3], [len(atoms)])
    ways = {"waves": les._of_waves, "mesh": les._of_mesh}
    ways = {way: functools.partial(of, waves=reach.waves) for way, of in ways.items()}
    if importlib.util.find_spec("jaxpme"):
        ways["P3M of jax-pme"] = functools.partial(_jax_pme, les, reach.waves)
    found, times = {}, {way: [] for way in ways}
    with jax.enable_x64(True):
        operands = jax.device_put((charges, atoms.positions, cell))
        ways = {way: jax.jit(jax.grad(of, argnums=(0, 1, 2))) for way, of in ways.items()}
        for turn in range(turns + 1):
            for way, gradient in ways.items():
                start = time.process_time()
                found[way] = np.asarray(jax.block_until_ready(gradient(*operands))[1])
                times[way] += [time.process_time() - start] if turn else []  # the first compiles
    return {
        way: (float(np.median(times[way])), float(abs(found[way] - found["waves"]).max()))
        for way in ways
    }


def _jax_pme(les, waves, charges, positions, cell):
    """Return the energy of jax-pme's part in reciprocal space, which is ours with the self part."""
    from jaxpme import kspace, potentials, solvers

    mesh = jnp.ones([next_fast_len(math.ceil(OVERSAMPLING * n), real=True) for n in waves])
    reciprocal, volume = kspace.get_reciprocal(cell), jnp.abs(jnp.linalg.det(cell))
    vectors = kspace.generate_kvectors(reciprocal, mesh.shape, False, jnp.float64)
    found = solvers.p3m(potentials.potential(), 5).kspace(
        les.sigma, charges[:, 0], reciprocal, mesh, vectors, positions, volume, cell, None
    )
    energy = les.constant / (2 * math.pi) * jnp.sum(found * charges[:, 0])
    return energy + les.constant / (2 * math.pi) ** 1.5 / les.sigma * jnp.sum(charges**2)


def main() -> None:
    """Train, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--sums", action="store_true", help="only times, no training")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for periodic in (True, False):
        seconds = step_seconds(periodic, options.turns)
        text = ", ".join(f"{way} {1e3 * value:.0f} ms" for way, value in seconds.items())
        print(f"216 atoms, {'in a cell' if periodic else 'free'}: {text}", flush=True)
    print("\n| atoms | sum | ms of processor | largest difference of forces, eV/Å |")
    print("|---:|---|---:|---:|")
    for repeats in (3, 5, 8):
        for way, (seconds, error) in sums_of(repeats, 3).items():
            print(f"| {8 * repeats**3} | {way} | {1e3 * seconds:.1f} | {error:.0e} |", flush=True)
    if options.sums:
        return
    rng = np.random.default_rng(0)
    data, test = options.out / "frames.xyz", [frame(rng) for _ in range(50)]
    ase.io.write(data, [frame(rng) for _ in range(options.frames)], format="extxyz")
    expected = _COULOMB * (1 / 6 - 1 / 16)
    pair = f"E(16) - E(6) of Na Cl, {expected:.3f} eV"
    print(f"| network, seed | E, meV/atom | F, meV/Å | {pair} | ms a step |")
    print("|---|---:|---:|---:|---:|")
    for seed in range(options.seeds):
        for way, settings in WAYS.items():
            folder = options.out / f"{way.replace(' ', '-')}-{seed}"
            network = {"model": "nequip", "channels": 8, "lmax": 1, "layers": 2, "cutoff": 5.0}
            own = ["data.check=off", "data.batch_size=5", "model.radial_hidden=16", *settings]
            length = {"epochs": options.epochs, "seed": seed}
            if not (folder / "errors.csv").exists():
                train.fit(*own, data=data, run=folder, **network, **length)
            with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            ms = np.nanmedian([float(row["ms_per_step"]) for row in rows])
            print(f"| {way}, {seed} | {errors(folder, test)} | {ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()
