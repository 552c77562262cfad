"""Stress of another sign, unit or order of components is seen in frames of EMT and Tersoff's."""

import dataclasses

import ase.build
import ase.units
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.tersoff import Tersoff

from eqfuse.data import Structure, read_embedded
from eqfuse.data.checks_of_stress import stress_hint, stress_problems
from tests.fuzz.labels import SILICON, labelled

GPA = 1 / ase.units.GPa


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
            atoms, calculator = ase.build.bulk("Si", cubic=True), Tersoff({("Si",) * 3: SILICON})
            atoms.positions += 0.1 * rng.normal(size=(8, 3))
        frames.append(labelled(atoms, calculator, "stress"))
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


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("strained", "the energies of strained frames (23 pairs)"),
        ("one cell", "the forces of stretched"),
    ],
)
def test_signs_units_and_orders_are_seen_without_a_network(kind, by):
    frames = frames_of(kind)
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

    def hint(of) -> str | None:
        pairs = zip(frames, noise, strict=True)
        predicted = [dataclasses.replace(s, stress=of(s.stress, scale * n)) for s, n in pairs]
        return stress_hint(wrong(frames, text), predicted)

    found = hint(lambda stress, error: stress + 0.3 * error + 2 * scale * np.eye(3))
    assert (found is not None) == bool(text)
    assert not text or text in found
    assert hint(lambda stress, error: error) is None  # of a network that has learned nothing


def test_stress_that_lacks_the_symmetry_of_a_crystal():
    """One shear in each frame, whose energies are equal; nothing else is known of the stress."""
    frames = []
    for shear in ([0, 1], [1, 2], [0, 2]):
        strain = np.eye(3)
        strain[shear, shear[::-1]] = 0.03
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        frames.append(labelled(atoms, EMT(), "stress"))
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
