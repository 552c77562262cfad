"""Check signs and units of labels, and energies of other frames, see `eqfuse.data.checks`."""

from collections.abc import Iterator, Sequence

import ase.units
import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.checks_of_forces import BEFORE, MOVE, NEXT, PAIRS
from eqfuse.data.lazy import evenly, selected
from eqfuse.data.neighbors import BONDED, pairs_by_radii
from eqfuse.data.similar import Springs, Steps
from eqfuse.data.structures import Structure, counted, has_all_forces

_CORRELATED = 0.85
_AGREE = 1.5  # factor; clean data have 0.96 to 1.06, and the nearest unit is 1.89
_EV_PER_KCAL = ase.units.kcal / ase.units.mol
_FACTORS = {
    1 / ase.units.Bohr: "forces are in eV/Bohr, or all is in atomic units",
    ase.units.Bohr: "forces were divided by Bohr instead of multiplied, or positions are in Bohr",
    ase.units.Hartree: "forces are in Hartree/Å, and energies in eV",
    ase.units.Hartree / ase.units.Bohr: "forces are in Hartree/Bohr, and energies in eV",
    1 / ase.units.Hartree: "energies are in Hartree, and forces in eV/Å",
    1 / _EV_PER_KCAL: "energies are in kcal/mol, and forces in eV/Å",
    _EV_PER_KCAL: "forces are in kcal/mol/Å, and energies in eV",
}


def energy_differences(structures: Sequence[Structure]) -> Iterator[str]:
    """Find forces and differences of energies that disagree in sign or scale.

    Nothing is concluded where energies do not correlate with the work of the forces, as for
    frames that are far apart.
    """
    ends, work, (change, *_), _ = Steps.of(structures, same_cell=True)
    size = np.sqrt((work @ work) * (change @ change))
    if len(work) < 5 or not size or abs(correlation := work @ change / size) < _CORRELATED:
        return
    ratio = np.sqrt((change @ change) / (work @ work))
    seen = f"{len(work)} pairs of similar frames, correlation {correlation:.2f}"
    if correlation < 0:
        yield (
            f"energies rise where forces pull ({seen}): the sign of the forces is probably wrong; "
            "forces are minus the gradient of the energy"
        )
    if not 1 / _AGREE < ratio < _AGREE:
        yield (
            f"energies change by {ratio:.3g} times what the forces say ({seen}); "
            f"{_explained(ratio, {s.num_atoms for s, _ in ends})}; eV and eV/Å are needed"
        )


def _explained(ratio: float, atoms: set[int]) -> str:
    per_atom = {1 / n: "energies are per atom, and totals are needed" for n in atoms}
    near = sorted((abs(np.log(ratio / f)), text) for f, text in (_FACTORS | per_atom).items())
    texts = [text for distance, text in near if distance < 0.25]
    if not texts:
        return "they are in different units, or of different methods"
    return f"probably {' (or: '.join(texts[:2])}{')' if len(texts) > 1 else ''}"


_SHIFTED, _OFF = 0.8, 0.6  # 0.83 to 1.0 and 0.0 to 0.54 in right data
_TIGHT, _BETWEEN, _OFTEN = 0.15, 0.05, 0.2  # of the pairs; 0.29 and more are between in right data


def energies_elsewhere(structures: Sequence[Structure]) -> Iterator[str]:
    """Find energies that are those of other frames, or of two levels of theory.

    Energies of similar frames differ by the work of the forces between them, see `Steps`.
    With two levels, what is left of the differences is zero or one number.
    """
    _, work, changes, _ = Steps.of(structures)
    if len(work) < PAIRS or not np.any(work):
        return
    left = np.abs(changes - work)
    for change, other, text in zip(changes[1:], left[1:], (NEXT, BEFORE), strict=True):
        correlation = change @ work / (np.linalg.norm(change) * np.linalg.norm(work) + 1e-300)
        usual = np.median(np.abs(change))
        better = np.median(other) < min(np.median(left[0]) / 2, _OFF * usual)
        if correlation > _SHIFTED and better:
            yield (
                f"energies are {text}: then they change by the work of the forces "
                f"({len(work)} pairs of similar frames, correlation {correlation:.2f}); {MOVE}"
            )
            return
    large = np.quantile(left[0], 0.8, method="nearest")
    level = np.median(left[0][np.abs(left[0] - large) <= _TIGHT * large])
    same, other = left[0] < _TIGHT * level, np.abs(left[0] - level) < _TIGHT * level
    if other.mean() >= _OFTEN and (same | other).mean() > 1 - _BETWEEN:
        yield (
            f"energies are of two levels, {level:.3g} eV/atom apart: in {other.sum()} of "
            f"{len(work)} pairs of similar frames they change by so much more or less than the "
            "work of the forces; take all from one method, code and settings"
        )


_CERTAIN = 10  # standard errors
_COVALENT = {5, 6, 7, 8, 9, 14, 15, 16, 17, 32, 33, 34, 35}
_D_METALS = {*range(21, 30), *range(39, 48), *range(72, 80)}


def usual_stiffness(z1: int, z2: int) -> tuple[float, float] | None:
    """Return the usual range of the stiffness of a bond, eV/Å^2; None where it is not known.

    X-H bonds have 26 to 46 in data of molecules, others of light elements 4 to 25 (multiple bonds
    beside single ones are averaged), silicon 5, copper and platinum 2 to 3.
    """
    low, high = sorted((z1, z2))
    if low == 1 and high in (6, 7, 8, 9):
        return 8.0, 120.0
    if {low, high} <= _COVALENT:
        return 0.8, 150.0
    return (0.25, 25.0) if {low, high} <= _D_METALS else None


def springs(structures: Sequence[Structure]) -> Iterator[str]:
    """Find forces that push where bonds are stretched, or of a size that bonds do not have.

    A bond that is longer than usual pulls, whatever the method that gave the forces.
    """
    fitted = Springs.fitted(structures)
    if fitted is None:
        return
    stiffness, size = fitted.stiffness, np.abs(fitted.stiffness)
    over = size / fitted.error
    certain = np.flatnonzero(over > _CERTAIN)
    if not len(certain):
        return
    pairs = [divmod(kind, 1000) for kind in fitted.frames.kinds.tolist()]
    where = counted(len(fitted.frames.structures), "frame")

    def name(k: int) -> str:
        return "-".join(chemical_symbols[z] for z in pairs[k])

    if (stiffness[certain] < 0).all():
        best = max(certain, key=lambda k: over[k])
        yield (
            f"forces push atoms together where bonds are short (stiffness of "
            f"{name(best)} {stiffness[best]:.3g} eV/Å^2 in {where}): their sign is "
            "probably wrong; forces are minus the gradient of the energy"
        )
    # Bonds of hydrogen vary least; others are averaged over single and multiple ones.
    usual = {k: both for k in certain if (both := usual_stiffness(*pairs[k]))}
    usual = {k: both for k, both in usual.items() if 1 in pairs[k]} or usual
    odd = [k for k, (low, high) in usual.items() if not low < size[k] < high]
    if len(odd) > len(usual) / 2:
        k = max(odd, key=lambda k: over[k])
        low, high = usual[k]
        unit = "Hartree/Å or Hartree/Bohr" if size[k] < low else "kcal/mol/Å, kJ/mol/Å or kJ/mol/nm"
        yield (
            f"bonds {name(k)} have a stiffness of {size[k]:.3g} eV/Å^2 in "
            f"{where}, and usually {low:g} to {high:g}: forces are probably in {unit}, and eV/Å is "
            "needed"
        )


_NOBLE = {2, 10, 18, 36, 54, 86}
_LOOKED_AT, _REACH = 50, 2.4
_LENGTHS = {  # range of the nearest distances over covalent ones; 0.75 to 1.35 in right data
    (1.5, 2.35): "positions and cells are probably in Bohr; multiply them by 0.529177",
    (0.35, 0.62): "positions and cells were probably multiplied by 0.529177 though they were in Å",
}


def lengths(structures: Sequence[Structure]) -> Iterator[str]:
    """Find structures whose bonds have lengths in Bohr, or converted from it twice."""
    some = selected(structures, lambda s: s.num_atoms > 2 and not _NOBLE & set(s.numbers.tolist()))
    found = []
    for s in evenly(some, _LOOKED_AT):
        _, atoms, *_, length = pairs_by_radii(s.numbers, s.positions, s.cell, s.pbc, _REACH)
        nearest = np.full(s.num_atoms, 9.0)
        np.minimum.at(nearest, atoms, length)
        found.append(np.quantile(nearest, [0.1, 0.5]))
    if not found:
        return
    shortest, usual = np.median(found, axis=0)
    for (low, high), text in _LENGTHS.items():
        if low < usual < high and shortest > 0.9 * low:
            yield (
                f"neighbours are {usual:.2f} times as far apart as bonded atoms "
                f"({counted(len(found), 'frame')}): {text}, and forces are needed in eV/Å"
            )


_NET, _ASYMMETRIC = 0.05, 0.05  # of the largest; differences and rounded columns have a few percent
_PARTS = {
    "rows of Hessians do not add up to zero in {}: are they of all atoms, in the order "
    "[n_atoms, 3, n_atoms, 3]?": lambda h: np.abs(h.sum(axis=2)) - _NET * np.nanmax(np.abs(h)),
    "Hessians are not symmetric in {}: is a part of them missing, or are they weighted by "
    "masses?": lambda h: np.abs(h - h.transpose(2, 3, 0, 1)) - _ASYMMETRIC * np.nanmax(np.abs(h)),
    "diagonals of Hessians are negative in {}: second derivatives of the energy are minus the "
    "derivatives of the forces": lambda h: -np.nanmean(np.einsum("aiai->ai", h)),
}
"""What is positive in wrong Hessians."""
_HESSIANS = 50
_PROPORTIONAL = 0.95  # correlation of the sides
_TURNED = 0.02  # of |H| |x| is not proportional; 0.0000 in right Hessians, 0.02 to 0.47 of others
_PATTERN = 3.0  # times larger is the block of bonded atoms than of others; 5 to 40 in right ones
_OTHERS = 6  # blocks that are not bonded, at least
_SAME_UNIT = 1.2
_STIFFNESSES = {
    "Hartree/Bohr^2": ase.units.Hartree / ase.units.Bohr**2,
    "kcal/mol/Å^2": ase.units.kcal / ase.units.mol,
    "kJ/mol/Å^2": ase.units.kJ / ase.units.mol,
    "N/m": 1e-20 * ase.units.J,
    "mdyn/Å": 1e-18 * ase.units.J,
}
"""eV/Å^2 of each."""


def hessians(frames: Sequence[Structure]) -> Iterator[str]:
    """Find Hessians that moves and turns of all atoms contradict, or of another unit or order.

    The energy does not change when all atoms move or turn together. Moves u of all atoms by one
    vector give H u = 0, and turns about an axis e

        H (e x x) = e x g,    g = -forces,

    which tells another unit (a factor between the sides), and other atoms or axes (no such factor).
    """
    labelled = selected(frames, lambda s: s.hessian is not None)
    wrong = False
    for text, parts in _PARTS.items():
        names = [s.origin for s in labelled if np.nanmax(parts(s.hessian), initial=0) > 0]
        if names:
            wrong = True
            yield text.format(f"{len(names)} of {counted(len(labelled), 'frame')} ({names[0]})")
    if not wrong:
        whole = selected(labelled, lambda s: s.num_atoms > 1 and np.isfinite(s.hessian).all())
        yield from _turns(evenly(whole, _HESSIANS))


def _turns(frames: Sequence[Structure]) -> Iterator[str]:
    """Find Hessians of another unit, order or frame of reference."""
    factors, apart, patterns, stiffness = [], [], [], []
    for s in frames:
        between, ratios = _bonded(s)
        patterns += between
        stiffness += ratios
        if not s.pbc.any() and has_all_forces(s):
            turn = np.cross(np.eye(3)[:, None], s.positions - s.positions.mean(axis=0))
            left = np.einsum("aibj,rbj->rai", s.hessian, turn)
            right = -np.cross(np.eye(3)[:, None], s.forces)
            norm, size = np.linalg.norm(left), np.linalg.norm(s.hessian) * np.linalg.norm(turn)
            correlation = np.sum(left * right) / max(norm * np.linalg.norm(right), 1e-300)
            apart.append(norm * np.sqrt(max(1 - correlation**2, 0)) / size)
            if correlation > _PROPORTIONAL and norm > 1e-3 * size:
                factors.append(np.sum(left * right) / norm**2)
    frames = counted(len(frames), "frame")
    if patterns and np.median(patterns) < _PATTERN:
        yield (
            f"Hessians are of another order of atoms: blocks of bonded atoms are "
            f"{np.median(patterns):.2g} times those of others, and 5 or more ({frames})"
        )
    elif apart and np.median(apart) > _TURNED:
        yield (
            "Hessians do not turn with the positions and forces: they are probably of another "
            f"frame of reference, or order of atoms ({frames}); take all from one output"
        )
    elif factors and not 1 / _SAME_UNIT < (factor := np.median(factors)) < _SAME_UNIT:
        units = [u for u, f in _STIFFNESSES.items() if 1 / _SAME_UNIT < factor / f < _SAME_UNIT]
        yield _unit(units, f"turns of all atoms give the forces after multiplying by {factor:.4g}")
    elif not factors and stiffness:
        log = np.log(stiffness)  # of each bond over the least and largest usual
        low, high = np.median(log, axis=0)
        if low < 0 or high > 0:
            units = [u for u, f in _STIFFNESSES.items() if low + np.log(f) > 0 > high + np.log(f)]
            yield _unit(units, "bonds are not as stiff")


def _unit(units: list[str], why: str) -> str:
    known = " or ".join(f"{name} (times {_STIFFNESSES[name]:.5g})" for name in units)
    return f"Hessians are probably in {known or 'another unit'}: {why}; eV/Å^2 are needed"


def _bonded(s: Structure) -> tuple[list[float], list[tuple[float, float]]]:
    """Return how much larger blocks of bonded atoms are, and stiffness over its usual limits."""
    i, j, *_ = pairs_by_radii(s.numbers, s.positions, s.cell, s.pbc, BONDED)
    i, j = i[i != j], j[i != j]
    sizes = np.linalg.norm(s.hessian, axis=(1, 3))
    bonded = np.zeros(sizes.shape, bool)
    bonded[i, j] = True
    others = ~bonded & ~np.eye(len(sizes), dtype=bool)
    patterns = []
    if bonded.any() and others.sum() >= _OTHERS:
        patterns = [sizes[bonded].mean() / max(sizes[others].mean(), 1e-300)]
    kinds = zip(s.numbers[i].tolist(), s.numbers[j].tolist(), sizes[i, j], strict=True)
    known = [(size, usual) for a, b, size in kinds if (usual := usual_stiffness(a, b))]
    return patterns, [np.maximum(size, 1e-12) / np.array(usual) for size, usual in known]
