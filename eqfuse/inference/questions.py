"""Relations between the predictions for changed structures, as questions with an error.

All questions are collected before any structure is computed, so that few programs are compiled.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from eqfuse.data import Structure
from eqfuse.inference.predict import Predicted

STEP, STRAIN, NEAR = 2e-4, 2e-4, 2e-5
"""Steps of finite differences of the energy, Å and strain; distance from the cutoff, Å."""
_DIRECTIONS = 3
_LEAST_FORCE, _LEAST_STRESS, _LEAST_ENERGY = 0.1, 1e-3, 1.0
_ENVIRONMENT, _PROBES = 20, 4


class Question(NamedTuple):
    """Structures to compute, and how far their predictions are from what they must be."""

    name: str  # of the check that it is part of
    structures: list[Structure]  # to be computed in float64
    error: Callable[[list[Predicted]], float]  # of their predictions, in order; see `scales`


class Scales(NamedTuple):
    """The scales of errors: eV per atom, eV/Å and eV/Å^3."""

    energy: float
    forces: float
    stress: float


def scales(predicted: Predicted) -> Scales:
    """Return the energy per atom and the largest force and stress, or a small amount if greater."""
    stress = 0.0 if predicted.stress is None else np.abs(predicted.stress).max()
    energy = abs(predicted.relative_energy) / len(predicted.energies)
    return Scales(
        max(energy, _LEAST_ENERGY),
        max(np.abs(predicted.forces).max(), _LEAST_FORCE),
        max(stress, _LEAST_STRESS),
    )


def difference(actual: Predicted, expected: Predicted) -> float:
    """Return the largest relative difference of energies of atoms, forces and stress."""
    scale = scales(expected)
    errors = [
        np.abs(actual.energies - expected.energies).max() / scale.energy,
        np.abs(actual.forces - expected.forces).max() / scale.forces,
    ]
    if expected.stress is not None:
        errors.append(np.abs(actual.stress - expected.stress).max() / scale.stress)
    return float(np.max(errors))


def slopes(structure: Structure, rng: np.random.Generator) -> list[Question]:
    """Ask whether forces and stress are slopes of the energy, by differences of fourth order.

    All atoms move at once, each by plus or minus `STEP` along each axis, so that an error of one
    component is not diluted.
    """
    questions = []
    for _ in range(_DIRECTIONS):
        direction = rng.choice([-1.0, 1.0], structure.positions.shape)
        moved = [
            dataclasses.replace(structure, positions=structure.positions + k * STEP * direction)
            for k in _STENCIL
        ]

        def of_forces(predicted, direction=direction):
            first, *others = predicted
            slope = _slope(others, STEP)
            return abs(slope + (first.forces * direction).sum()) / scales(first).forces

        questions.append(Question("forces", [structure, *moved], of_forces))
    for _ in range(_DIRECTIONS if structure.volume else 0):
        strain = np.triu(rng.choice([-1.0, 1.0], (3, 3)))
        strain = strain + np.triu(strain, 1).T
        strained = [_transformed(structure, np.eye(3) + k * STRAIN * strain) for k in _STENCIL]

        def of_stress(predicted, strain=strain):
            first, *others = predicted
            slope = _slope(others, STRAIN) / structure.volume
            return abs(slope - (first.stress * strain).sum()) / scales(first).stress

        questions.append(Question("stress", [structure, *strained], of_stress))
    return questions


_STENCIL = (-2, -1, 1, 2)


def _slope(predicted: list[Predicted], step: float) -> float:
    far_below, below, above, far_above = (p.relative_energy for p in predicted)
    return (8 * (above - below) - (far_above - far_below)) / (12 * step)


def invariances(structure: Structure, rng: np.random.Generator) -> list[Question]:
    """Ask whether predictions follow the structure when it is described in another way."""
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))
    order = rng.permutation(structure.num_atoms)
    images = rng.integers(-2, 3, structure.positions.shape) * structure.pbc
    moved = structure.positions + images @ structure.cell + rng.uniform(-20, 20, 3)

    def turned(p, matrix):
        stress = None if p.stress is None else matrix.T @ p.stress @ matrix
        return dataclasses.replace(p, forces=p.forces @ matrix, stress=stress)

    def reordered(p):
        return dataclasses.replace(p, energies=p.energies[order], forces=p.forces[order])

    replace = dataclasses.replace
    changes = {
        "rotation": (_transformed(structure, rotation), lambda p: turned(p, rotation)),
        "inversion": (_transformed(structure, -np.eye(3)), lambda p: turned(p, -np.eye(3))),
        "translation": (replace(structure, positions=moved), lambda p: p),
        "permutation": (
            replace(
                structure, numbers=structure.numbers[order], positions=structure.positions[order]
            ),
            reordered,
        ),
    }
    if structure.pbc.any():
        changes["supercell"] = _doubled(structure), _twice
    return [
        Question(name, [structure, other], lambda p, follow=follow: difference(p[1], follow(p[0])))
        for name, (other, follow) in changes.items()
    ]


def _twice(p: Predicted) -> Predicted:
    return Predicted(
        np.tile(p.energies, 2), 2 * p.relative_energy, np.tile(p.forces, (2, 1)), p.stress
    )


def _doubled(structure: Structure) -> Structure:
    """Return two cells side by side, along the shortest periodic direction."""
    lengths = np.where(structure.pbc, np.linalg.norm(structure.cell, axis=1), np.inf)
    axis = int(np.argmin(lengths))
    cell = structure.cell.copy()
    cell[axis] *= 2
    positions = np.concatenate([structure.positions, structure.positions + structure.cell[axis]])
    return dataclasses.replace(
        structure, numbers=np.tile(structure.numbers, 2), positions=positions, cell=cell
    )


def _transformed(structure: Structure, matrix) -> Structure:
    return dataclasses.replace(
        structure, positions=structure.positions @ matrix, cell=structure.cell @ matrix
    )


def smoothness(structure: Structure, cutoffs, rng: np.random.Generator) -> list[Question]:
    """Ask whether energy and forces are continuous where an atom crosses the cutoff of another.

    An atom of each of the structure's elements (four at most) crosses the cutoff of the outermost
    atom of the structure, which is taken without its images; of many atoms, the nearest 20.
    `cutoffs` returns one or two cutoffs (Å) of two atomic numbers.
    """
    questions = []
    for probe in rng.permutation(np.unique(structure.numbers))[:_PROBES]:
        out = rng.normal(size=3)
        out /= np.linalg.norm(out)
        outermost = int(np.argmax(structure.positions @ out))
        away = np.linalg.norm(structure.positions - structure.positions[outermost], axis=1)
        near = np.argsort(away, kind="stable")[:_ENVIRONMENT]
        numbers, positions = structure.numbers[near], structure.positions[near]
        for cutoff in cutoffs(int(numbers[0]), int(probe)):
            places = [positions[0] + (cutoff + k * NEAR) * out for k in _STENCIL]
            crossing = [
                Structure(np.append(numbers, probe), np.vstack([positions, place]))
                for place in places
            ]
            questions.append(Question("cutoff", crossing, lambda p, out=out: _jump(p, out)))
    return questions


def _jump(predicted: list[Predicted], out) -> float:
    """Return the jump at the cutoff of energy and forces, extrapolated from both sides.

    The last atom, which moves along `out`, is 2 and 1 `NEAR` within, then 1 and 2 beyond.
    """
    far_below, below, above, far_above = predicted
    forces = (2 * above.forces - far_above.forces) - (2 * below.forces - far_below.forces)
    energies = [
        p.relative_energy + k * NEAR * p.forces[-1] @ out for p, k in ((below, -1), (above, 1))
    ]
    scale = scales(far_below).forces
    return float(max(np.abs(forces).max(), abs(energies[1] - energies[0])) / scale)
