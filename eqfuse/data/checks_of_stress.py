"""Checks of stress: its sign, unit and order of components, by energies, forces and symmetry."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import ase.units
import numpy as np

from eqfuse.data.lazy import evenly, selected
from eqfuse.data.similar import Springs, Steps, force_errors
from eqfuse.data.structures import Structure, counted

_GPA = ase.units.GPa
_UNITS = {
    "eV/Å^3": 1.0,
    "GPa": _GPA,
    "kbar": _GPA / 10,
    "bar": _GPA / 1e4,
    "Hartree/Bohr^3": ase.units.Hartree / ase.units.Bohr**3,
    "Ry/Bohr^3": ase.units.Rydberg / ase.units.Bohr**3,
    "eV": None,  # a virial: over the volume
}
_VASP = "in VASP's order (xx yy zz xy yz zx)"
_BETTER = 1.5  # times smaller errors are no chance
_EXPLAINED = 0.6  # of what is expected is the largest error of a reading that is believed
_SIMPLER = 1.3  # times smaller are the errors that make a reading the better one
_AS_GOOD = 1.1


class Reading(NamedTuple):
    """A meaning of the numbers of a stress; the first of `READINGS` is the right one."""

    sign: int = 1
    unit: str = "eV/Å^3"
    vasp: bool = False  # six numbers are xx yy zz xy yz zx

    def __call__(self, stress: np.ndarray, volumes: np.ndarray) -> np.ndarray:
        """Return the stress [n, 3, 3], eV/Å^3, that is meant by numbers in cells of n volumes."""
        if self.vasp:  # what was read as xx yy zz yz xz xy
            stress = stress[:, [0, 1, 0, 1, 1, 0, 0, 0, 2], [0, 2, 1, 2, 1, 2, 1, 2, 2]]
            stress = stress.reshape(-1, 3, 3)
        factor = _UNITS[self.unit]
        return self.sign * stress * (1 / volumes[:, None, None] if factor is None else factor)

    @property
    def changes(self) -> int:
        return (self.sign < 0) + (self.unit != "eV/Å^3") + self.vasp


READINGS = [Reading(*r) for r in itertools.product((1, -1), _UNITS, (False, True))]


def best_reading(expected, given: Callable[[Reading], np.ndarray]) -> tuple[str, float] | None:
    """Return what a stress probably is, and how many times better it fits so.

    It is "" for a stress that fits as it is read, and None where no reading fits. `given` takes a
    reading to what is compared with the `expected`.
    """
    with np.errstate(over="ignore"):
        errors = {r: float(np.sqrt(np.mean((expected - given(r)) ** 2))) for r in READINGS}
    best = min(READINGS, key=lambda r: errors[r] * _SIMPLER**r.changes)
    if not errors[best] < _EXPLAINED * np.sqrt(np.mean(expected**2)):
        return None
    gain = errors[READINGS[0]] / max(errors[best], 1e-300)
    if gain < _BETTER:
        return "", 1.0
    units = [u for u in _UNITS if errors[best._replace(unit=u)] < _AS_GOOD * errors[best]]
    texts = []
    if best.sign < 0:
        texts.append("of the opposite sign (a pressure)")
    if best.unit != "eV/Å^3":
        texts.append(f"in {' or '.join(u + ' (a virial)' * (u == 'eV') for u in units)}")
    if best.vasp:
        texts.append(_VASP)
    return " and ".join(texts), gain


def _problem(text: str, by: str) -> str:
    return (
        f"stress disagrees with {by}: it is probably {text}; eV/Å^3 are needed, positive under "
        "tension, xx yy zz yz xz xy (or 3x3)"
    )


def stress_problems(structures: Sequence[Structure]) -> Iterator[str]:
    """Find stress of another sign, unit or order of components; each way says nothing in doubt."""
    cells = selected(structures, lambda s: s.stress is not None and s.pbc.all())
    if not cells:
        return
    for found, by in (_by_energies(cells), _by_springs(cells)):
        if found is not None:
            if found[0]:
                yield _problem(found[0], by)
            return
    yield from _by_symmetry(cells)
    yield from _too_large(cells)


_LEAST_STRAIN = 1e-3
_LEAST_CHANGE = 1e-5  # eV/atom
_FEW = 5


def _by_energies(cells):
    """Compare with the energies of strained frames of the same atoms.

    As in `Steps`, E_b - E_a is near the work of the forces and (s_a + s_b) / 2 : e,
    where s is stress times volume and e the strain between the cells.
    """
    steps = Steps.of(cells, least_strain=_LEAST_STRAIN)
    by = f"the energies of strained frames ({counted(len(steps.ends), 'pair')})"
    change = steps.changes[0] - steps.work
    frames = len({id(s) for pair in steps.ends for s in pair})
    if frames < _FEW or np.sqrt(np.mean(change**2)) < _LEAST_CHANGE:
        return None, by
    sides = [_arrays(side) for side in zip(*steps.ends, strict=True)]

    def given(reading: Reading) -> np.ndarray:
        both = sum(v[:, None, None] * reading(s, v) for s, v in sides)
        return (both / 2 * steps.strains).sum(axis=(1, 2))

    return best_reading(change, given), by


def _arrays(cells) -> tuple[np.ndarray, np.ndarray]:
    """Return stress [n, 3, 3] and volumes [n]."""
    return np.array([s.stress for s in cells]), np.array([s.volume for s in cells])


def _by_springs(cells):
    """Compare with the tension of springs between bonded atoms that give the forces, see `springs`.

    What all frames have in common is unknown, since bonds of their mean length have no tension.
    """
    fitted = Springs.fitted(cells)
    sample = fitted.frames.structures if fitted else []
    by = f"the forces of stretched bonds ({counted(len(sample), 'frame')})"
    if len(sample) < _FEW:
        return None, by
    stress, volumes = _arrays(sample)

    def given(reading: Reading) -> np.ndarray:
        return _centred(volumes[:, None, None] * reading(stress, volumes))

    return best_reading(_centred(fitted.virials()), given), by


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(axis=0)


_SMALL = 32  # atoms of cells whose symmetry is looked for
_LOOKED_AT = 100
_PLACE, _BROKEN = 1e-3, 0.1  # Å; of the largest component
_OPERATIONS = [
    np.eye(3)[list(p)] * s
    for p in itertools.permutations(range(3))
    for s in itertools.product((1, -1), repeat=3)
]


def _is_symmetric(s: Structure, operation: np.ndarray) -> bool:
    """Test whether a rotation or reflection, with some translation, maps a crystal to itself."""
    inverse = np.linalg.inv(s.cell)
    turned = s.cell @ operation @ inverse
    if np.abs(turned - np.rint(turned)).max() > 1e-3:
        return False
    before, after = s.positions @ inverse, s.positions @ operation @ inverse
    alike = s.numbers[:, None] == s.numbers
    for other in np.flatnonzero(alike[0]):
        apart = before[:, None] - after - (before[other] - after[0])
        places = np.linalg.norm((apart - np.rint(apart)) @ s.cell, axis=-1)
        if np.where(alike, places, np.inf).min(axis=0).max() < _PLACE:
            return True
    return False


def _by_symmetry(cells) -> Iterator[str]:
    """Find stress that lacks a symmetry of the structure, as where components are exchanged."""
    found, vasp = [], []
    some = selected(cells, lambda s: s.num_atoms <= _SMALL and np.abs(s.stress).max() > 1e-3)
    for s in evenly(some, _LOOKED_AT):
        symmetric = [r for r in _OPERATIONS if _is_symmetric(s, r)]

        def holds(stress, symmetric=symmetric) -> bool:
            change = [np.abs(r.T @ stress @ r - stress).max() for r in symmetric]
            return max(change, default=0.0) <= _BROKEN * np.abs(stress).max()

        if not holds(s.stress):
            found.append(s)
            vasp.append(holds(Reading(vasp=True)(s.stress[None], np.ones(1))[0]))
    if found:
        other = "not of this structure, or of another orientation"
        where = f"{counted(len(found), 'frame')}, as {found[0].origin or 'structure'}"
        yield _problem(_VASP if all(vasp) else other, f"the symmetry of the crystal ({where})")


_LARGEST = 10.0  # eV for an atom: more than any bonds of it hold


def _too_large(cells) -> Iterator[str]:
    some = evenly(cells, 10_000)
    sizes = [np.abs(s.stress).max() * np.array([1, s.volume / s.num_atoms]) for s in some]
    stress, work = np.median(sizes, axis=0)
    if work > _LARGEST:
        yield (
            f"stress is {stress:.3g} eV/Å^3 in the median, {stress / _GPA:.3g} GPa, and times the "
            f"volume {work:.3g} eV for each atom, which no crystal holds: it is probably in GPa, "
            "kbar or eV (a virial); eV/Å^3 are needed"
        )


_LEARNED = 0.5  # of the forces is the error of a network that has learned something


def stress_hint(structures: Sequence, predicted: Sequence) -> str | None:
    """Return how stress labels fit predictions better, of another sign, unit or order; or None.

    Both have stress [3, 3] and forces, or None; structures have a cell [3, 3]. The stress that all
    frames have in common is left out: a network learns it last. Nothing is said of a network whose
    forces are not like those of the structures.
    """
    pairs = zip(structures, predicted, strict=True)
    known = [(s.stress, p.stress, s.cell) for s, p in pairs if s.stress is not None]
    size, error = force_errors(structures, predicted) or (0, 0)
    if len(known) < _FEW or error > _LEARNED * size:
        return None
    stress, expected, cells = map(np.array, zip(*known, strict=True))
    volumes = np.abs(np.linalg.det(cells))
    best = best_reading(_centred(expected), lambda reading: _centred(reading(stress, volumes)))
    if not (best and best[0]):
        return None
    text, gain = best
    return (
        f"the stress of the file fits {gain:.4g} times better as {text}; eV/Å^3, positive under "
        "tension, xx yy zz yz xz xy (or 3x3), is what the network has"
    )
