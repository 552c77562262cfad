"""Whether results depend on small steps before: neighbour lists that are not made anew in time.

Structures are reached in steps that a list may seem to survive: two atoms come near each other, a
cell shrinks about atoms that stay or with them, and all atoms move. Their results must be those of
the same structures computed afresh.
"""

from collections.abc import Sequence

import ase
import numpy as np

from eqfuse.certify.paths import Walk
from eqfuse.certify.questions import (
    SIGMAS,
    Finding,
    Rounding,
    apart,
    line,
    measure,
    moved,
    strained,
)
from eqfuse.certify.subjects import Subject

_BEYOND, _WITHIN = 0.13 * 1.2 ** np.arange(18), 1.0
"""Å, of the length at which two atoms begin to act: where they begin, and how far they go."""
_STEP = 0.125  # Å, of their distance; lists are often made anew where an atom has moved by 0.3 Å
_COMPARED = 8  # structures of a chain


def small_steps(
    subject: Subject,
    walks: Sequence[Walk],
    cells: Sequence[tuple[ase.Atoms, Rounding]],
    other: ase.Atoms,
    precision: str,
    rng,
) -> list[tuple[str, Finding]]:
    """Return findings of the question "history", with how the structure was reached.

    Args:
      walks: along paths of two atoms, outwards.
      cells: periodic structures of some atoms, and their rounding.
      other: a structure with another number of atoms, after which no list can be kept.
      precision: see `eqfuse.certify.questions.precision_of`.
    """
    chains = [chain for walk in walks for chain in _inwards(walk)]
    chains += [chain for cell in cells for chain in _chains(*cell, rng)]
    findings, known = [], {}
    for how, chain, wanted, noise in chains:
        found = subject.in_turn([other, *chain])[1:]
        keys = {k: (chain[k].positions.tobytes(), chain[k].cell.array.tobytes()) for k in wanted}
        new = {key: chain[k] for k, key in keys.items() if key not in known}
        known |= zip(new, subject.fresh(list(new.values()), other), strict=True)
        for k, key in keys.items():
            if found[k].error and known[key].error:  # of another question
                continue
            own = apart(found[k], known[key], noise)
            if any(f.error > f.limit for f in own):  # a short distance may have more rounding
                there = measure(chain[k], subject.compute(line(chain[k], rng)), precision)
                own = apart(found[k], known[key], Rounding(*map(max, noise, there)))
            findings += [(how, finding) for finding in own]
    return findings


def _inwards(walk: Walk):
    """Yield two atoms that both move, from beyond the length at which they begin to act.

    A list with too small a skin lacks a pair that was a little farther away and comes nearer by
    almost twice that, so that they begin at several distances.
    """
    r, energy, force, _, noise, path = walk
    acts = np.abs(energy - energy[-1]) > SIGMAS * noise.energy
    acts |= np.abs(force) > SIGMAS * noise.forces
    if not (np.isfinite(energy).all() and acts.any() and (last := r[acts].max()) > 2 * _WITHIN):
        return

    def at(distances):
        return [moved(path.at(x), -x / 2 * path.direction) for x in distances]

    chain = at(last + np.arange(_BEYOND[-1], -_WITHIN - _STEP / 2, -_STEP))
    wanted = range(len(chain) - 8, len(chain))
    yield f"{path.name} coming nearer by {_STEP:g} Å", chain, wanted, noise
    for x in _BEYOND:
        how = f"{path.name} coming nearer by {1.4 * x:.2g} Å"
        yield how, at([last + x, last - 0.4 * x]), [1], noise
    jumps = at(last + np.array([_BEYOND[-1], -_WITHIN, -_WITHIN / 2] * 3))
    yield f"{path.name} coming and going", jumps, [1, 2, 4, 5, 7, 8], noise


def _chains(atoms: ase.Atoms, noise: Rounding, rng):
    """Yield how a chain of structures goes, the chain, the numbers compared, and the rounding.

    Steps are shorter than the 0.3 Å or so after which a list is made anew. Those compared are
    spaced evenly, with the last and without the first.
    """

    def shrunk(factor: float) -> ase.Atoms:
        copy = atoms.copy()
        copy.set_cell(factor * atoms.cell.array)
        return copy

    directions = rng.normal(size=(len(atoms), 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sizes = np.arange(6, -15, -1) / 100
    for how, chain in (
        ("its cell alone shrinking by 3 %", [shrunk(1 + 3 * x) for x in sizes[2:]]),
        ("shrinking by 1 %", [strained(atoms, x * np.eye(3)) for x in sizes]),
        ("atoms moving by 0.05 Å", [moved(atoms, 0.05 * k * directions) for k in range(21)]),
    ):
        wanted = np.linspace(0, len(chain) - 1, _COMPARED + 1)[1:].round().astype(int).tolist()
        yield f"{atoms.info['name']}, {how}", chain, wanted, noise
