"""Atoms that are too near, and structures that occur twice."""

from collections.abc import Iterator, Sequence

import numpy as np

from eqfuse.data.batching import Sample
from eqfuse.data.lazy import Joined, Subset

NEAREST = 0.5
"""Å; no two nuclei are nearer in data to learn from: H2 has 0.74, and 0.5 costs 5 eV."""
_SAME = 1e-4  # Å: more than what files round, less than what a step of dynamics moves
_SAME_ENERGY = 1e-3  # eV/atom
_FOLLOWING = 3  # frames, next to each other by a sum over pairs, that are compared


def vectors(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors [n_edges, 3] and lengths [n_edges], Å, from receivers to senders."""
    vector = sample.positions[sample.senders] + sample.shifts - sample.positions[sample.receivers]
    length = np.linalg.norm(vector, axis=1)
    return vector / length[:, None], length


def number_of(sample: Sample, atom: int) -> int:
    """Return the number of an atom in its structure."""
    return int(atom if sample.order is None else sample.order[atom])


def close_pairs(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield how many structures have two atoms nearer than `NEAREST`, and the nearest of all."""
    count, nearest, where = 0, np.inf, ""
    for sample in samples:
        if not sample.num_edges:
            continue
        lengths = vectors(sample)[1]
        edge = int(np.argmin(lengths))
        count += lengths[edge] < NEAREST
        if lengths[edge] < nearest:
            nearest = lengths[edge]
            pair = sorted(
                number_of(sample, atoms[edge]) for atoms in (sample.senders, sample.receivers)
            )
            where = f"{sample.name}, atoms {pair[0]} and {pair[1]}"
    if count:
        yield (
            f"{count} frames have atoms nearer than {NEAREST} Å; the nearest are {nearest:.3f} Å "
            f"apart ({where}): are positions in Å, and the cell that of the frame?"
        )


def duplicates(train: Sequence[Sample], val: Sequence[Sample], cutoff: float) -> Iterator[str]:
    """Yield how many structures occur twice, also rotated, mirrored or with atoms in another order.

    Structures are the same here if they have the same elements and the same distances up to the
    cutoff.

    Args:
      train, val: training and validation samples.
      cutoff: Å.
    """
    samples = Joined(train, val)
    kept = np.flatnonzero([s.num_edges > 0 for s in samples])
    num_train, samples = int((kept < len(train)).sum()), Subset(samples, kept)
    pairs = _same(samples, cutoff)
    within = [p for p in pairs if (p[0] < num_train) == (p[1] < num_train)]
    across = [p for p in pairs if (p[0] < num_train) != (p[1] < num_train)]
    if within:
        yield (
            f"{_count(within)} frames are copies of others, or what a rotation, a reflection or "
            f"another order of atoms makes of them: {_example(samples, within)}"
        )
    if across:
        yield (
            f"{len({max(p) for p in across})} validation frames are training frames, too, so that "
            f"errors of validation are too small: {_example(samples, across)}"
        )
    differing = [(d, p) for p in pairs if (d := _energy_difference(samples, p)) > _SAME_ENERGY]
    if differing:
        most, pair = max(differing)
        yield (
            f"{len(differing)} pairs of the same structures have energies that differ, by up to "
            f"{most:.3g} eV/atom: {_example(samples, [pair])}"
        )


def _count(pairs) -> int:
    """Return how many frames of pairs are copies: the later one of each pair."""
    return len({max(pair) for pair in pairs})


def _example(samples, pairs) -> str:
    a, b = min(pairs)
    return f"{samples[a].name} and {samples[b].name}"


def _energy_difference(samples, pair) -> float:
    a, b = (samples[k].energy for k in pair)
    return 0.0 if a is None or b is None else abs(a - b) / samples[pair[0]].num_atoms


def _same(samples: Sequence[Sample], cutoff: float) -> list[tuple[int, int]]:
    """Return pairs of samples with the same elements and distances."""
    sums = np.array([_sums(sample, cutoff) for sample in samples]).reshape(len(samples), 3)
    order = np.lexsort(sums.T)
    found = []
    for step in range(1, _FOLLOWING + 1):
        first, second = order[:-step], order[step:]
        near = np.isclose(sums[first], sums[second], rtol=1e-4, atol=1e-4).all(axis=1)
        pairs = zip(first[near].tolist(), second[near].tolist(), strict=True)
        found += [(min(p), max(p)) for p in pairs if _same_distances(samples[p[0]], samples[p[1]])]
    return found


def _sums(sample: Sample, cutoff: float) -> tuple[float, float, float]:
    """Return sums over atoms and pairs, which do not depend on the order of the atoms."""
    weight = (1 - vectors(sample)[1] / cutoff) ** 2
    product = (sample.species[sample.senders] + 1.3) * (sample.species[sample.receivers] + 1.3)
    # The one that is sorted by comes last.
    return float(weight.sum()), float(np.sum(sample.species + 1.3)), float(weight @ product)


def _same_distances(a: Sample, b: Sample) -> bool:
    if not np.array_equal(np.sort(a.species), np.sort(b.species)):
        return False
    # A pair at the cutoff may be in one list only; it is the last.
    lengths = [np.sort(vectors(sample)[1]) for sample in (a, b)]
    least = min(map(len, lengths))
    if max(map(len, lengths)) - least > 0.02 * least + 2:
        return False
    return bool(np.abs(lengths[0][:least] - lengths[1][:least]).max() < _SAME)
