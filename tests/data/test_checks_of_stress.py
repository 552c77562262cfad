"""Stress of another sign, unit or order of components is seen in frames of EMT and Tersoff's."""

import dataclasses

import ase.build
import ase.units
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.tersoff import Tersoff, TersoffParameters

from eqfuse.data import Structure, read_embedded
from eqfuse.data.checks_of_stress import stress_hint, stress_problems

GPA = 1 / ase.units.GPa
# Tersoff 1989, doi:10.1103/PhysRevB.39.5566, table I
_BONDS = {"m": 3, "gamma": 1, "lambda3": 0, "c": 100390, "d": 16.217, "h": -0.59825, "n": 0.78734}
_PAIRS = {"beta": 1.1e-6, "lambda2": 1.7322, "B": 471.18, "R": 2.85, "D": 0.15}
_PAIRS |= {"lambda1": 2.4799, "A": 1830.8}
SILICON = Tersoff({("Si", "Si", "Si"): TersoffParameters(**_BONDS, **_PAIRS)})


def labelled(atoms, calculator) -> Structure:
    atoms.calc = calculator
    return Structure(
        atoms.numbers,
        atoms.positions,
        atoms.cell.array,
        True,
        atoms.get_potential_energy(),
        atoms.get_forces(),
        atoms.get_stress(voigt=False),
    )


def frames_of(kind: str, count: int = 15) -> list[Structure]:
    """Return frames for one of the checks: the others say nothing of them."""
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(count):
        strain = rng.normal(size=(3, 3))
        if kind == "strained":  # compared by energies
            atoms, calculator = ase.build.bulk("Cu", cubic=True), EMT()
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.02 * strain), scale_atoms=True)
            atoms.positions += 0.05 * rng.normal(size=(4, 3))
        else:  # of one cell, compared by springs
            atoms, calculator = ase.build.bulk("Si", cubic=True), SILICON
            atoms.positions += 0.1 * rng.normal(size=(8, 3))
        frames.append(labelled(atoms, calculator))
    return frames


def in_order_of_vasp(stress: np.ndarray) -> np.ndarray:
    """Return what is read of XX YY ZZ XY YZ ZX."""
    (xx, xy, xz), (_, yy, yz), (_, _, zz) = stress
    return np.array([[xx, xz, yz], [xz, yy, xy], [yz, xy, zz]])


WRONG = {
    "": lambda stress, volume: stress,
    "of the opposite sign": lambda stress, volume: -stress,
    "in GPa": lambda stress, volume: stress * GPA,
    "of the opposite sign (a pressure) and in kbar": lambda stress, volume: -10 * GPA * stress,
    "in bar": lambda stress, volume: 1e4 * GPA * stress,
    "eV (a virial)": lambda stress, volume: stress * volume,
    "in VASP's order": lambda stress, volume: in_order_of_vasp(stress),
}


def wrong(frames, kind: str) -> list[Structure]:
    return [dataclasses.replace(s, stress=WRONG[kind](s.stress, s.volume)) for s in frames]


@pytest.mark.parametrize("kind", ["strained", "one cell"])
def test_signs_units_and_orders_are_seen_without_a_network(kind):
    frames = frames_of(kind)
    by = (
        "the energies of strained frames (23 pairs)"
        if kind == "strained"
        else "the forces of stretched"
    )
    for text in WRONG:
        found = list(stress_problems(wrong(frames, text)))
        assert len(found) == bool(text)
        assert all(text in problem and f"disagrees with {by}" in problem for problem in found)


@pytest.mark.parametrize("text", WRONG)
def test_hints_of_predictions(text):
    """The predictions have errors, and a stress in common, as those of a network half trained."""
    frames = frames_of("strained")
    scale = np.std([s.stress for s in frames])
    noise = np.random.default_rng(1).normal(size=(len(frames), 3, 3))
    predicted = [
        dataclasses.replace(s, stress=s.stress + scale * (0.3 * n + 2 * np.eye(3)))
        for s, n in zip(frames, noise, strict=True)
    ]
    hint = stress_hint(wrong(frames, text), predicted)
    assert (hint is not None) == bool(text)
    assert not text or text in hint
    untrained = [
        dataclasses.replace(s, stress=scale * n) for s, n in zip(frames, noise, strict=True)
    ]
    assert stress_hint(wrong(frames, text), untrained) is None


def test_stress_that_lacks_the_symmetry_of_a_crystal():
    """One shear in each frame, whose energies are equal; nothing else is known of the stress."""
    frames = []
    for shear in ([0, 1], [1, 2], [0, 2]):
        strain = np.eye(3)
        strain[shear, shear[::-1]] = 0.03
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        frames.append(labelled(atoms, EMT()))
    assert not list(stress_problems(frames))
    [problem] = stress_problems(wrong(frames, "in VASP's order"))
    assert "disagrees with the symmetry of the crystal (3 frames" in problem
    assert "in VASP's order" in problem


def test_stress_that_no_crystal_holds():
    """The frames have different atoms, and no forces that springs explain."""
    frames = read_embedded("lif")[:4]
    assert not list(stress_problems(frames))
    [problem] = stress_problems(wrong(frames, "in GPa"))
    assert "which no crystal holds" in problem
