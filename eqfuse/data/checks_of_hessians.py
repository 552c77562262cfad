"""Checks of Hessians: their order, sign, unit and frame of reference, see `eqfuse.data.checks`.

The energy does not change when all atoms move or turn together. Moves u of all atoms by one vector
give H u = 0, and turns about an axis e

    H (e x x) = e x g,    g = -forces,

which tells another unit (a factor between the sides), and other atoms or axes (no such factor).
"""

from collections.abc import Iterator, Sequence

import ase.units
import numpy as np

from eqfuse.data.checks_of_labels import usual_stiffness
from eqfuse.data.lazy import evenly, selected
from eqfuse.data.neighbors import BONDED, pairs_by_radii
from eqfuse.data.structures import Structure, counted, has_all_forces

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
_LOOKED_AT = 50
_PROPORTIONAL = 0.95  # correlation of the sides
_TURNED = 0.02  # of |H| |x| is not proportional; 0.0000 in right Hessians, 0.02 to 0.47 of others
_PATTERN = 3.0  # times larger is the block of bonded atoms than of others; 5 to 40 in right ones
_OTHERS = 6  # blocks that are not bonded, at least
_AGREE = 1.2
_UNITS = {
    "Hartree/Bohr^2": ase.units.Hartree / ase.units.Bohr**2,
    "kcal/mol/Å^2": ase.units.kcal / ase.units.mol,
    "kJ/mol/Å^2": ase.units.kJ / ase.units.mol,
    "N/m": 1e-20 * ase.units.J,
    "mdyn/Å": 1e-18 * ase.units.J,
}
"""eV/Å^2 of each."""


def hessians(frames: Sequence[Structure]) -> Iterator[str]:
    """Find Hessians that moves and turns of all atoms contradict, or of another unit or order."""
    labelled = selected(frames, lambda s: s.hessian is not None)
    wrong = {
        text: [s.origin for s in labelled if np.nanmax(parts(s.hessian), initial=0) > 0]
        for text, parts in _PARTS.items()
    }
    for text, origins in wrong.items():
        if origins:
            of = f"{len(origins)} of {counted(len(labelled), 'frame')} ({origins[0]})"
            yield text.format(of)
    if not any(wrong.values()):
        whole = selected(labelled, lambda s: s.num_atoms > 1 and np.isfinite(s.hessian).all())
        yield from _turns(evenly(whole, _LOOKED_AT))


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
            size = np.linalg.norm(s.hessian) * np.linalg.norm(turn)
            product = np.linalg.norm(left) * np.linalg.norm(right)
            correlation = np.sum(left * right) / max(product, 1e-300)
            rest = np.linalg.norm(left) * np.sqrt(max(1 - correlation**2, 0)) / size
            apart.append(rest)
            if correlation > _PROPORTIONAL and np.linalg.norm(left) > 1e-3 * size:
                factors.append(np.sum(left * right) / np.sum(left**2))
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
    elif factors and not 1 / _AGREE < (factor := np.median(factors)) < _AGREE:
        units = [u for u, f in _UNITS.items() if 1 / _AGREE < factor / f < _AGREE]
        yield _unit(units, f"turns of all atoms give the forces after multiplying by {factor:.4g}")
    elif not factors and stiffness:
        log = np.log(stiffness)  # of each bond over the least and largest usual
        low, high = np.median(log, axis=0)
        if low < 0 or high > 0:
            units = [u for u, f in _UNITS.items() if low + np.log(f) > 0 > high + np.log(f)]
            yield _unit(units, "bonds are not as stiff")


def _unit(units: list[str], why: str) -> str:
    known = " or ".join(f"{name} (times {_UNITS[name]:.5g})" for name in units)
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
