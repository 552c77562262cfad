"""The checks by name, what a failure of each means, and their results."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from eqfuse.certify.questions import Finding

REPEATS = 20
"""Calls of one structure that must give the same bits."""

CHECKS = {
    "finite": ("numbers are finite", "Structures of dynamics may give no number, or an error."),
    "rounding": ("rounding", "Energy or forces are rougher than their precision allows."),
    "forces": (
        "forces are the slope of the energy",
        "Forces are not the gradient of the energy: do not run dynamics or relax with it.",
    ),
    "atoms": (
        "the force of each atom",
        "The force of single atoms is not the gradient of the energy: do not run dynamics.",
    ),
    "stress": (
        "stress is the slope by strain",
        "Stress is wrong: do not relax cells or run at constant pressure with it.",
    ),
    "translation": ("translation", "Results depend on where the structure is."),
    "rotation": ("rotation", "Results depend on the direction in which the structure lies."),
    "inversion": ("inversion", "Mirror images have different energies: an SO(3) network may."),
    "permutation": ("order of the atoms", "Results depend on the order of the atoms."),
    "images": ("periodic images of atoms", "Results depend on which image of an atom is given."),
    "supercell": ("supercell", "A cell and twice that cell differ: small cells miss neighbours."),
    "separated": ("separated parts", "Parts 100 Å apart act on each other: energies do not add."),
    "isolated": ("isolated atoms", "An isolated atom feels a force."),
    "path": (
        "no jumps from 0.2 Å to 12 Å",
        "Energy or force jumps along a path of an atom: dynamics gain or lose energy there.",
    ),
    "repeat": (f"{REPEATS} calls give the same bits", "The same call gives different numbers."),
    "history": ("independent of earlier calls", "A result depends on what was computed before."),
    "batch": ("one by one and in batches", "Batches and single structures differ."),
    "backend": ("another backend, float64", "Two backends disagree: one of them is wrong."),
    "precision": ("float32 against float64", "float32 loses more digits than it has to."),
    "nve": (
        "drift in NVE, meV/atom/ps",
        "Energy drifts, and a shorter time step does not mend it.",
    ),
}
"""Each check by name: as it is printed, and what a failure means for a user."""
QUESTIONS = tuple(CHECKS)[2:13]
"""The checks that are questions about single structures, from "forces" to "isolated"."""
_HARMLESS = {"eV": 1e-9, "eV/Å": 1e-9, "eV/Å³": 1e-11}
_BY_DIFFERENCES = ("forces", "atoms", "stress", "path")
"""What is beyond the rounding and yet too small to matter is noted, and not a failure; where the
slope of the energy is asked for, a thousand times as much."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a check: the worst of all findings."""

    name: str  # key of `CHECKS`
    error: float | None  # None where nothing was checked; with limit and harmless in `unit`
    limit: float = 0.0
    unit: str = ""
    remark: str = ""  # structure and place of the worst finding, or why nothing was checked
    harmless: float = 0.0  # the largest error that is noted and not a failure

    @property
    def passed(self) -> bool:
        """Return True if the error is within the limit; False for NaN."""
        return self.error is None or self.error <= self.limit

    @property
    def verdict(self) -> str:
        """Return "passed", "FAILED", "noted" for what need not hold, or "not checked"."""
        if self.error is None:
            return "not checked"
        if self.passed:
            return "passed"
        least = _HARMLESS.get(self.unit, 0.0) * (1000 if self.name in _BY_DIFFERENCES else 1)
        return "noted" if self.error <= max(least, self.harmless) else "FAILED"

    @property
    def meaning(self) -> str:
        """Return what a failure means; nothing for a check that passed."""
        if self.verdict == "noted" and self.harmless < np.inf:
            return "It is beyond rounding, and too small to matter in dynamics."
        return "" if self.passed else CHECKS[self.name][1]

    def __str__(self):
        text = f"{CHECKS[self.name][0]:<36}"
        if self.error is None:
            return f"{text}{'-':>9}{'':>9}         {self.verdict}  {self.remark}".rstrip()
        numbers = f"{self.error:>9.1e}{self.limit:>9.1e} {self.unit:<6}"
        return f"{text}{numbers}  {self.verdict:<7} {self.remark}".rstrip()


def worst_of(name: str, findings: Sequence[tuple[str, Finding]], harmless: float = 0.0) -> Row:
    """Return the row of a check: the finding that fails, or is nearest to its limit."""
    if not findings:
        return Row(name, None, remark="no structure of this kind, or no such result")

    def row_of(structure: str, found: Finding) -> Row:
        remark = ", ".join(filter(None, [structure, found.remark]))
        return Row(name, float(found.error), float(found.limit), found.unit, remark, harmless)

    def badness(row: Row):
        beyond = row.error / max(row.limit, 1e-300) if np.isfinite(row.error) else np.inf
        return row.verdict == "FAILED", beyond

    return max((row_of(*pair) for pair in findings), key=badness)
