"""The checks of a trained network, each with its error and its limit."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from eqfuse import ops
from eqfuse.data import DataError, Structure
from eqfuse.data.samples import species_index
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.check.dynamics import drift
from eqfuse.inference.check.questions import (
    difference,
    invariances,
    slopes,
    smoothness,
)
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict

RATTLE = 0.03
"""Å, by which atoms are moved at random, so that forces do not vanish by symmetry."""
FEWEST_STEPS = 100
"""Least steps of dynamics: an oscillation of fewer looks like a drift."""
_ATOMS_AT_ONCE = 500

CHECKS = {
    "forces": ("forces are the slope of the energy", 1e-6),
    "stress": ("stress is the slope by strain", 1e-6),
    "rotation": ("rotation", 1e-9),
    "inversion": ("inversion", 1e-9),
    "translation": ("translation, images of atoms", 1e-9),
    "permutation": ("order of the atoms", 1e-9),
    "supercell": ("supercell", 1e-9),
    "cutoff": ("no jump at the cutoff", 1e-6),
    "backend": ("another backend, float64", 1e-9),
    "float32": ("float32 against float64", 1e-4),
    "nve": ("drift in NVE, meV/atom/ps", 1e-2),
}
"""What is printed of each check, and the largest error that passes: relative, except of nve."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
      name: key of `CHECKS`.
      error: the largest over all structures; None: not checked.
      note: the structure with the largest error, the backend, or why it was not checked.
    """

    name: str
    error: float | None
    note: str

    @property
    def limit(self) -> float:
        """Return the largest error that passes."""
        return CHECKS[self.name][1]

    @property
    def passed(self) -> bool:
        """Return whether the error is within the limit; not if it is not a number."""
        return self.error is None or self.error <= self.limit

    def __str__(self):
        text = f"{CHECKS[self.name][0]:<34}"
        if self.error is None:
            return f"{text}{'-':>9}{'':>9}  not checked: {self.note}"
        verdict = "passed" if self.passed else "FAILED"
        return f"{text}{self.error:>9.1e}{self.limit:>9.0e}  {verdict}  {self.note}"


def check(
    run,
    structures: Sequence[Structure],
    *,
    which: str | None = None,
    steps: int | None = 1000,
    temperature: float = 300.0,
    backends: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield the results of all checks of a network, as they come.

    Forces and stress are compared with differences of the energy in float64. Rotation, inversion,
    translation and images, permutation and supercells must not change what is predicted. Energy and
    forces must be continuous where an atom crosses the cutoff. Backends must agree in float64, and
    float32 with float64. The drift of the energy is that of dynamics with the first structure that
    has several atoms, in the precision of the run.

    Args:
      run: the run's folder, or a file of its network.
      structures: at least one; atoms are moved at random by 0.03 Å.
      which: "best" or "last" checkpoint; None for the best there is.
      steps: of dynamics, 100 or more; 0 or None for none.
      temperature: K, of dynamics.
      backends: to compare with the one that is chosen by device; None for all that run here.
    Raises:
      CheckpointError: no readable checkpoint.
      DataError: no structures, an element that the network does not know, overlapping atoms.
      ValueError: a backend that cannot run here, or a number of steps that is too small.
    """
    if not structures:
        raise DataError("there are no structures to check the network with")
    if steps and steps < FEWEST_STEPS:
        raise ValueError(f"a drift needs at least {FEWEST_STEPS} steps, or 0 for none, got {steps}")
    rng = np.random.default_rng(0)
    structures = [_rattled(structure, rng) for structure in structures]
    network = Network(run, which=which, dtype="float64")
    for structure in structures:
        species_index(structure.numbers, network.species)
    yield from _answers(network, structures, rng)
    expected = _predict(network, structures)

    def compared(name: str, note: str, **options) -> Row:
        predicted = _predict(Network(run, which=which, **options), structures)
        errors = [difference(p, e) for p, e in zip(predicted, expected, strict=True)]
        return Row(name, float(np.max(errors)), note)

    for backend in _other_backends() if backends is None else backends:
        yield compared("backend", backend, dtype="float64", backend=backend)
    yield compared("float32", "", dtype="float32")
    yield _drift(run, which, structures, steps, temperature)


def _answers(network: Network, structures, rng) -> Iterator[Row]:
    """Yield a row for each check that the questions are of."""
    so3 = network.metadata["model_fields"].get("so3", False)
    questions = [
        (number, question)
        for number, structure in enumerate(structures)
        for question in itertools.chain(
            slopes(structure, rng),
            invariances(structure, rng),
            smoothness(structure, _cutoffs(network), rng),
        )
        if not (so3 and question.name == "inversion")
    ]
    changed = [structure for _, question in questions for structure in question.structures]
    predicted = iter(_predict(network, changed))
    errors: dict[str, np.ndarray] = {}
    for number, question in questions:
        error = question.error(list(itertools.islice(predicted, len(question.structures))))
        of_check = errors.setdefault(question.name, np.full(len(structures), -np.inf))
        of_check[number] = np.maximum(of_check[number], error)
    for name in itertools.takewhile(lambda name: name != "backend", CHECKS):
        if name in errors:
            worst = int(np.argmax(errors[name]))
            yield Row(name, float(errors[name][worst]), structures[worst].origin or "")
        elif name == "inversion":
            yield Row(name, None, "an SO(3) network has no such symmetry")
        else:
            yield Row(name, None, "no structure is periodic")


def _cutoffs(network: Network):
    """Return the function of two atomic numbers that returns their cutoffs, Å."""
    pairs = network.metadata["model_fields"].get("pair_cutoffs")

    def cutoffs(a: int, b: int) -> set[float]:
        if pairs is None:
            return {network.cutoff}
        a, b = network.species.index(a), network.species.index(b)
        return {pairs[a][b], pairs[b][a]}

    return cutoffs


def _other_backends() -> list[str]:
    """Return the backends that run here, without an interpreter and the one chosen by device."""
    left_out = ops.resolve_here(None), "triton-interpret"
    return [name for name, (runs, _) in ops.availability().items() if runs and name not in left_out]


def _drift(run, which, structures, steps: int | None, temperature: float) -> Row:
    several = [structure for structure in structures if structure.num_atoms > 1]
    if not steps or not several:
        why = "no structure has several atoms" if not several else "no steps"
        return Row("nve", None, "give a file of structures" if steps is None else why)
    calculator = Calculator(run, which=which)
    note = f"{steps} steps from {temperature:g} K, {calculator.network.dtype}"
    return Row("nve", drift(several[0], calculator, steps, temperature), note)


def _rattled(structure: Structure, rng) -> Structure:
    """Return a structure without labels whose atoms are moved at random."""
    moved = structure.positions + rng.normal(scale=RATTLE, size=structure.positions.shape)
    return Structure(
        structure.numbers, moved, structure.cell, structure.pbc, origin=structure.origin
    )


def _predict(network: Network, structures: list[Structure]):
    largest = max(structure.num_atoms for structure in structures)
    return predict(network, structures, batch_size=max(_ATOMS_AT_ONCE // largest, 1))
