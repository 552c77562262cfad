"""Right data of many kinds, and faults to plant in them: labels that do not belong to positions.

A case makes right data, of a calculator of ASE, embedded or published, and plants a fault or none.
It fails where right data are not left in silence; for faults, the outcome says what was reported.

python -m tests.fuzz.labels [SOURCE ...]

prints how many faults are found, by the number of frames.
"""

import collections
import dataclasses
import functools
import os
import sys
from pathlib import Path

import ase.build
import ase.units
import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from ase.calculators.tersoff import Tersoff, TersoffParameters
from ase.cluster import Octahedron
from ase.md.langevin import Langevin
from ase.optimize import FIRE

from eqfuse.data import Structure, of_atoms, read_embedded, read_structures
from eqfuse.data.checks import aperiodic
from eqfuse.data.checks_of_forces import forces_elsewhere, unjudged
from eqfuse.data.checks_of_labels import energies_elsewhere, lengths
from tests import small_runs
from tests.fuzz.checks import FailureError

SILICON = TersoffParameters(
    A=1830.8, B=471.18, lambda1=2.4799, lambda2=1.7322, lambda3=0.0, beta=1.1e-6, gamma=1.0,
    m=3.0, n=0.78734, c=100390.0, d=16.217, h=-0.59825, R=2.85, D=0.15,
)  # fmt: skip


def labelled(atoms, calculator, *more: str) -> Structure:
    """Return atoms with energy, forces and more."""
    return of_atoms(small_runs.labelled(atoms, ("energy", "forces", *more), calculator))


def various(make_one, calculator):
    """Return a source: frames of which each is another structure."""
    return lambda rng, count: [labelled(make_one(rng), calculator()) for _ in range(count)]


def rattled(make, calculator, amplitude=0.08, strain=0.0):
    """Return a source: frames around one structure, moved at random."""

    def one(rng):
        atoms = make()
        if strain:
            change = strain * rng.normal(size=(3, 3))
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + (change + change.T) / 2), True)
        return _moved(atoms, rng, amplitude)

    return various(one, calculator)


def _moved(atoms, rng, amplitude):
    atoms.positions += amplitude * rng.normal(size=atoms.positions.shape)
    return atoms


def trajectory(make, calculator, kelvin=300.0, every=10, step=1.0):
    """Return a source: frames of molecular dynamics."""

    def frames(rng, count):
        atoms = make()
        atoms.calc = calculator()
        speed = np.sqrt(2 * kelvin * ase.units.kB / atoms.get_masses())
        atoms.set_velocities(speed[:, None] * rng.normal(size=(len(atoms), 3)))
        options = {"temperature_K": kelvin, "friction": 0.02 / ase.units.fs, "fixcm": False}
        dynamics, found = Langevin(atoms, step * ase.units.fs, rng=rng, **options), []
        dynamics.run(30)
        for _ in range(count):
            dynamics.run(every)
            found.append(labelled(atoms.copy(), calculator()))
        return found

    return frames


def taken(read, first: bool = True):
    """Return a source: frames that are read, consecutive from a random one, or random ones."""

    def frames(rng, count):
        every = list(read())
        if not first:
            rng.shuffle(every)
        start = int(rng.integers(max(1, len(every) - count)))
        return every[start : start + count]

    return frames


def _bulk(name, repeat, **options):
    return lambda: ase.build.bulk(name, **options).repeat(repeat)


def _alloy(rng, names=("Cu", "Ni", "Au"), repeat=2):
    atoms = ase.build.bulk("Cu", a=3.8, cubic=True).repeat(repeat)
    atoms.symbols = rng.choice(names, len(atoms))
    return _moved(atoms, rng, 0.08)


def _sheared(rng):
    atoms = ase.build.bulk("Cu", cubic=True).repeat(2)
    atoms.set_cell([[7.22, 0, 0], [1.5, 7.22, 0], [0.4, -1.2, 7.22]], scale_atoms=True)
    return _moved(atoms, rng, 0.06)


def _defect(rng):
    atoms = ase.build.bulk("Cu", cubic=True).repeat(3)
    del atoms[rng.choice(len(atoms), rng.integers(1, 8), replace=False)]
    return _moved(atoms, rng, 0.06)


def _amorphous(rng, distance=2.2, volume=13.0, count=32):
    length = (volume * count) ** (1 / 3)
    positions = np.zeros((0, 3))
    while len(positions) < count:
        new = rng.uniform(0, length, 3)
        apart = positions - new
        apart -= length * np.rint(apart / length)
        if not len(positions) or np.linalg.norm(apart, axis=1).min() > distance:
            positions = np.vstack([positions, new])
        elif rng.random() < 0.002:
            distance *= 0.97
    return Atoms(f"Cu{count}", positions, cell=[length] * 3, pbc=True)


def _gas(rng):
    atoms = Atoms(cell=[30.0] * 3, pbc=True)
    for k in range(8):
        one = ase.build.molecule("N2")
        one.rotate(360 * rng.random(), rng.normal(size=3))
        one.positions += 0.03 * rng.normal(size=(2, 3)) + 15 * np.array([k & 1, k >> 1 & 1, k >> 2])
        atoms += one
    return atoms


def _dimer(rng):
    return Atoms("Cu2", [[0, 0, 0], [0, 0, rng.uniform(1.9, 4.0)]])


def _molecules(rng):
    names = ("CH3OH", "CH4", "C2H6", "H2O", "NH3", "C6H6", "CH3CHO", "C2H4", "HCN", "CO2")
    return _moved(ase.build.molecule(str(rng.choice(names))), rng, 0.05)


def _relaxed(rng):
    atoms = _alloy(rng)
    atoms.calc = EMT()
    FIRE(atoms, logfile=None).run(fmax=0.05, steps=80)
    return atoms.copy()


def _polymorph(rng):
    kind = rng.choice(["fcc", "bcc", "hcp", "sc", "diamond"])
    a = {"fcc": 3.6, "bcc": 2.9, "hcp": 2.6, "sc": 2.4, "diamond": 5.4}[kind]
    return ase.build.bulk("Cu", str(kind), a=a * rng.uniform(0.9, 1.1))


def _adsorbed():
    atoms = ase.build.fcc111("Pt", (2, 2, 3), vacuum=8)
    ase.build.add_adsorbate(atoms, ase.build.molecule("CO"), 2.0, "ontop", mol_index=1)
    return atoms


_TERSOFF = functools.partial(Tersoff, {("Si", "Si", "Si"): SILICON})
_LENNARD_JONES = functools.partial(LennardJones, sigma=3.4, epsilon=0.0104, rc=8.5, smooth=True)
_MORSE = functools.partial(MorsePotential, epsilon=0.42, r0=2.78, rho0=3.9, rcut1=4.5, rcut2=5.5)
RIGHT = {
    "ethanol": taken(lambda: read_embedded("ethanol")),
    "lif": taken(lambda: read_embedded("lif")),
    "copper": rattled(_bulk("Cu", 2, cubic=True), EMT),
    "copper in strained cells": rattled(_bulk("Cu", 2, cubic=True), EMT, 0.05, 0.02),
    "copper, small moves": rattled(_bulk("Cu", 2, cubic=True), EMT, 0.01),
    "copper, two atoms": rattled(_bulk("Cu", (1, 1, 2)), EMT, 0.1, 0.02),
    "copper, strained primitive": rattled(_bulk("Cu", 1), EMT, 0.0, 0.03),
    "copper, MD": trajectory(_bulk("Cu", 2, cubic=True), EMT, 500),
    "copper, close MD": trajectory(_bulk("Cu", 2, cubic=True), EMT, 500, every=2),
    "copper, sheared cells": various(_sheared, EMT),
    "copper, defects": various(_defect, EMT),
    "copper, amorphous": various(_amorphous, EMT),
    "copper, phases": various(_polymorph, EMT),
    "copper, dimers": various(_dimer, EMT),
    "aluminium, liquid": trajectory(_bulk("Al", 2, cubic=True, a=4.2), EMT, 2000),
    "gold, cluster": trajectory(lambda: Octahedron("Au", 4, 1), EMT, 600),
    "alloy": various(_alloy, EMT),
    "alloy, relaxed": various(_relaxed, EMT),
    "platinum, slab": rattled(lambda: ase.build.fcc111("Pt", (2, 2, 4), vacuum=8), EMT),
    "platinum, CO": trajectory(_adsorbed, EMT, 500),
    "molecules": various(_molecules, EMT),
    "acetaldehyde": rattled(lambda: ase.build.molecule("CH3CHO"), EMT, 0.05),
    "methanol": trajectory(lambda: ase.build.molecule("CH3OH"), EMT, 300, step=0.5),
    "benzene": rattled(lambda: ase.build.molecule("C6H6"), EMT, 0.04),
    "water": rattled(lambda: ase.build.molecule("H2O"), EMT, 0.04),
    "nitrogen, gas": various(_gas, EMT),
    "silicon": rattled(_bulk("Si", 2, cubic=True), _TERSOFF),
    "silicon, two atoms": rattled(_bulk("Si", 1), _TERSOFF, 0.1, 0.02),
    "silicon, hot": trajectory(_bulk("Si", 2, cubic=True), _TERSOFF, 2500),
    "argon": trajectory(_bulk("Ar", 2, cubic=True, a=5.3), _LENNARD_JONES, 60),
    "argon, liquid": trajectory(_bulk("Ar", 2, cubic=True, a=5.9), _LENNARD_JONES, 150, step=5),
    "morse": rattled(_bulk("Ni", 2, cubic=True), _MORSE),
}  # fmt: skip
DATA = Path(__file__).parents[2].parent / "shared" / "data"
DATA = Path(os.environ.get("EQFUSE_TEST_DATA", DATA))
PUBLISHED = {
    f"{name}, {how}": taken(
        lambda path=path: read_structures(DATA / path, require_labels=False), how == "consecutive"
    )
    for name, path in {
        "3bpa": "3bpa/train_300K.xyz",
        "acac": "acac/train_300K.xyz",
        "rmd17 ethanol": "rmd17/rmd17_ethanol_train_01.npz",
        "rmd17 aspirin": "rmd17/rmd17_aspirin_train_01.npz",
        "mlearn silicon": "mlearn_si/mlearn_Si_training.extxyz",
    }.items()
    for how in ("consecutive", "random")
    if (DATA / path).exists()
}


def _turn(rng) -> np.ndarray:
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return turn * np.sign(np.linalg.det(turn))


def _each(change):
    def plant(frames, rng):
        return [dataclasses.replace(s, **change(s, k, rng)) for k, s in enumerate(frames)]

    return plant


def _forces(change):
    return _each(lambda s, k, rng: {"forces": change(s.forces, k, rng)})


def _of_next(name):
    def plant(frames, rng):
        values = [getattr(s, name) for s in frames]
        after = [*values[1:], values[0]]
        return [dataclasses.replace(s, **{name: v}) for s, v in zip(frames, after, strict=True)]

    return plant


def _in_order(order_of):
    def plant(frames, rng):
        order = order_of(frames[0].num_atoms, rng)
        return [dataclasses.replace(s, forces=s.forces[order]) for s in frames]

    return plant


def _swapped(count, rng):
    two, order = rng.choice(count, 2, replace=False), np.arange(count)
    order[two] = two[::-1]
    return order


def _by_element(s, k, rng):
    return {"forces": s.forces[np.argsort(s.numbers, kind="stable")]}


def _standard(s, k, rng):  # Gaussian's: of the principal axes
    centred = s.positions - s.positions.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=True)[2]
    return {"positions": centred @ axes.T}


def _levels(s, k, rng):
    return {"energy": s.energy + (k % 2) * 0.4 * s.num_atoms}


def _in_bohr(s, k, rng):
    lengths = {"positions": s.positions / ase.units.Bohr, "cell": s.cell / ase.units.Bohr}
    return lengths | {"forces": s.forces * ase.units.Bohr}


_OTHERS = "forces are of other atoms"
FAULTS = {
    "forces of the next frame": (_of_next("forces"), "forces are of the next frame"),
    "forces of permuted atoms": (_in_order(lambda n, rng: rng.permutation(n)), _OTHERS),
    "forces of two swapped atoms": (_in_order(_swapped), _OTHERS),
    "forces by element": (_each(_by_element), _OTHERS),
    "forces of rotated frames": (
        _forces(lambda forces, _, rng: forces @ _turn(rng)),
        "axes that differ from frame to frame",
    ),
    "standard orientation": (_each(_standard), "axes"),
    "x and y swapped": (
        _forces(lambda forces, *_: forces[:, [1, 0, 2]]),
        "(x, y, z of the positions are y, x, z of the forces)",
    ),
    "every second sign": (
        _forces(lambda forces, k, _: forces * (-1) ** k),
        "forces are of the opposite sign in",
    ),
    "energies of the next frame": (_of_next("energy"), "energies are of the next frame"),
    "two levels": (_each(_levels), "energies are of two levels"),
    "all in Bohr": (_each(_in_bohr), "positions and cells are probably in Bohr"),
    "transposed lattice": (
        _each(lambda s, k, rng: {"cell": s.cell.T}),
        "lattice vectors are columns of the cells",
    ),
}
"""Each with what plants it, and what is then said."""


def planted(fault: str, frames, rng) -> list[Structure] | None:
    """Return frames with a fault; None if it is none in them, such as a symmetric cell transposed.

    Frames or atoms are exchanged where all frames are of one molecule or crystal.
    """
    alike = len({s.numbers.tobytes() for s in frames}) == 1
    if not frames or (not alike and any(word in fault for word in ("next", "atoms"))):
        return None
    if fault == "standard orientation" and any(s.pbc.any() for s in frames):
        return None
    if fault == "all in Bohr" and any(18 in s.numbers or s.num_atoms < 3 for s in frames):
        return None
    wrong = FAULTS[fault][0](frames, rng)
    sizes = np.zeros(2)
    for a, b in zip(frames, wrong, strict=True):
        for name in ("cell", "forces", "positions", "energy"):
            one, other = np.array(getattr(a, name)), np.array(getattr(b, name))
            sizes += np.sum((one - other) ** 2), np.sum(one**2) * (fault[:6] == name[:6])
    return wrong if sizes[0] > 1e-4 * sizes[1] and sizes[0] > 1e-6 else None


def reported(frames) -> list[str]:
    """Return what is said of labels that do not belong to positions."""
    checks = aperiodic, lengths, forces_elsewhere, energies_elsewhere
    return [text for check in checks for text in check(frames)]


def made(source: str, seed: int, count: int) -> list[Structure]:
    """Return frames of a source, those of one atom left out."""
    frames = {**RIGHT, **PUBLISHED}[source](np.random.default_rng(seed), count)
    frames = [s for s in frames if s.num_atoms > 1 and s.forces is not None]
    return [dataclasses.replace(s, origin=f"frame {k}") for k, s in enumerate(frames)]


def outcome(frames, fault: str | None, rng) -> str:
    """Return what is said of frames in which a fault is planted, or none."""
    wrong = planted(fault, frames, rng) if fault else frames
    if wrong is None:
        return "no fault there"
    found = reported(wrong)
    if fault and any(FAULTS[fault][1] in text for text in found):
        return "named"
    return "reported" if found else "not judged" if list(unjudged(wrong)) else "silent"


COUNTS = 8, 12, 16, 22, 30, 40


def print_table(sources, seed: int = 0):
    """Print how many faults are found, of those planted, by the number of frames."""
    counts = collections.defaultdict(collections.Counter)
    for source in sources:
        frames = made(source, seed, COUNTS[-1])
        kind = "crystals" if any(s.pbc.any() for s in frames) else "molecules"
        for count in [n for n in COUNTS if n <= len(frames)]:
            for fault in [None, *FAULTS]:
                said = outcome(frames[:count], fault, np.random.default_rng(seed))
                if said != "no fault there":
                    for row in (fault, f"all, {kind}", "all") if fault else ("right data",):
                        counts[row, count][said] += 1

    def cell(counter, *said) -> str:
        return f"{sum(counter[text] for text in said)}/{counter.total()}"

    for row in [*FAULTS, "all, molecules", "all, crystals", "right data"]:
        print(row, *[cell(counts[row, n], "named", "reported") for n in COUNTS], sep=" | ")
    for said in ("named", "not judged", "silent"):
        print(f"all, {said}", *[cell(counts["all", n], said) for n in COUNTS], sep=" | ")


class Cases:
    """Data of which a third is right, and two thirds have one fault."""

    seconds = 300.0

    def __init__(self, folder):
        pass

    def prepare(self, seed: int):
        """Return what is checked, and the check."""
        rng = np.random.default_rng(seed)
        source = str(rng.choice([*RIGHT, *PUBLISHED]))
        count = int(rng.choice([1, 2, 5, 8, 12, 16, 20, 30, 40]))
        fault = str(rng.choice([*FAULTS])) if rng.random() < 2 / 3 else None

        def case() -> str:
            frames = made(source, seed, count)
            said = outcome(frames, fault, rng)
            if fault is None and said == "reported":
                raise FailureError(f"right data: {reported(frames)}")
            return said

        return f"{count} of {source}, {fault or 'right'}", case


if __name__ == "__main__":
    print_table(sys.argv[1:] or [*RIGHT, *PUBLISHED])
