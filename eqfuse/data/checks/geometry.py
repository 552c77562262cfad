"""Atoms that are too near, and structures that occur twice."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from eqfuse.data.batching import Sample
from eqfuse.data.errors import counted

NEAREST = 0.5
"""Å; no two nuclei are nearer in data to learn from: H2 has 0.74, and 0.5 costs 5 eV."""
_SAME = 1e-4  # Å: more than what files round, less than what a step of dynamics moves
_SAME_ENERGY = 1e-3  # eV/atom
_SAME_SUMS = 1e-4  # relative
_PIECE = 10_000  # frames whose sums are compared at once
_SETS = "training", "validation", "test"
_FOLLOWING = 3  # frames, next to each other by a sum over pairs, that are compared


def vectors(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors [n_edges, 3] and lengths [n_edges], Å, from receivers to senders."""
    vector = sample.positions[sample.senders] + sample.shifts - sample.positions[sample.receivers]
    length = np.linalg.norm(vector, axis=1)
    return vector / length[:, None], length


def number_of(sample: Sample, atom: int) -> int:
    """Return the number of an atom in its structure."""
    return int(atom if sample.order is None else sample.order[atom])


@dataclasses.dataclass(frozen=True)
class Distances:
    """What the checks need of the distances of all samples.

    Attributes:
      nearest: [n_samples] float32, Å, inf where no atoms are within the cutoff.
      sums: [n_samples, 3] float32, sums over atoms and pairs, which do not depend on the order of
        the atoms.
    """

    nearest: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, samples: Sequence[Sample], cutoff: float) -> "Distances":
        """Return the distances of samples, looking at each once."""
        nearest = np.full(len(samples), np.inf, np.float32)
        sums = np.zeros((len(samples), 3), np.float32)
        for k, sample in enumerate(samples):
            if sample.num_edges:
                lengths = vectors(sample)[1]
                nearest[k] = lengths.min()
                weight = (1 - lengths / cutoff) ** 2
                species = sample.species + 1.3
                product = species[sample.senders] * species[sample.receivers]
                # The one that is sorted by comes last.
                sums[k] = weight.sum(), species.sum(), weight @ product
        return cls(nearest, sums)


def close_pairs(samples: Sequence[Sample], distances: Distances) -> Iterator[str]:
    """Yield how many structures have two atoms nearer than `NEAREST`, and the nearest of all."""
    count = int((distances.nearest < NEAREST).sum())
    if count:
        sample = samples[int(np.argmin(distances.nearest))]
        edge = int(np.argmin(vectors(sample)[1]))
        ends = sample.senders[edge], sample.receivers[edge]
        pair = sorted(number_of(sample, atom) for atom in ends)
        yield (
            f"{counted(count, 'frame has', 'frames have')} atoms nearer than {NEAREST} Å; the "
            f"nearest are {distances.nearest.min():.3f} Å apart ({sample.name}, atoms {pair[0]} "
            f"and {pair[1]}): are positions in Å?"
        )


def duplicates(
    samples: Sequence[Sample], sizes: Sequence[int], distances: Distances
) -> Iterator[str]:
    """Yield how many structures occur twice, also rotated, mirrored or with atoms in another order.

    Structures are the same here if they have the same elements and the same distances up to the
    cutoff.

    Args:
      samples: those of training, validation and test, one after the other.
      sizes: the numbers of these.
      distances: of the samples.
    """
    pairs = _same(samples, distances)
    sets = defaultdict(list)
    for pair in pairs:
        sets[tuple(np.searchsorted(np.cumsum(sizes), pair, "right").tolist())].append(pair)
    if within := [pair for part in range(len(_SETS)) for pair in sets[part, part]]:
        yield (
            f"{counted(_count(within), 'frame is a copy', 'frames are copies')} of others, or what "
            f"a rotation, a reflection or another order of atoms makes of them: "
            f"{_example(samples, within)}"
        )
    for one, other in ((0, 1), (0, 2), (1, 2)):
        if across := sets[one, other]:
            first, later = _SETS[one], _SETS[other]
            are = f"{later} frame is a {first} frame", f"{later} frames are {first} frames"
            yield (
                f"{counted(_count(across), *are)}, too, so that errors of {later} are too small: "
                f"{_example(samples, across)}"
            )
    differing = [(d, p) for p in pairs if (d := _energy_difference(samples, p)) > _SAME_ENERGY]
    if differing:
        most, pair = max(differing)
        have = "pair of the same structures has", "pairs of the same structures have"
        yield (
            f"{counted(len(differing), *have)} energies that differ, by up to {most:.3g} eV/atom: "
            f"{_example(samples, [pair])}"
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


def _same(samples: Sequence[Sample], distances: Distances) -> list[tuple[int, int]]:
    """Return pairs of samples with the same elements and distances."""
    kept = np.isfinite(distances.nearest)
    order = np.flatnonzero(kept)[np.lexsort(distances.sums[kept].T)]
    found = []
    for start, step in itertools.product(range(0, len(order), _PIECE), range(1, _FOLLOWING + 1)):
        second = order[start + step : start + step + _PIECE]
        first = order[start:][: len(second)]
        sums = distances.sums[first], distances.sums[second]
        near = np.isclose(*sums, rtol=_SAME_SUMS, atol=_SAME_SUMS).all(axis=1)
        pairs = zip(first[near].tolist(), second[near].tolist(), strict=True)
        found += [(min(p), max(p)) for p in pairs if _same_distances(samples[p[0]], samples[p[1]])]
    return found


def _same_distances(a: Sample, b: Sample) -> bool:
    if not np.array_equal(np.sort(a.species), np.sort(b.species)):
        return False
    # A pair at the cutoff may be in one list only; it is the last.
    lengths = [np.sort(vectors(sample)[1]) for sample in (a, b)]
    least = min(map(len, lengths))
    if max(map(len, lengths)) - least > 0.02 * least + 2:
        return False
    return bool(np.abs(lengths[0][:least] - lengths[1][:least]).max() < _SAME)
