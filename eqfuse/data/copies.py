"""Copies: structures that occur twice, also rotated, mirrored or with atoms in another order.

Structures are the same here if they have the same elements, total charge and distances up to the
cutoff.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from eqfuse.data.samples import Sample
from eqfuse.data.structures import counted

_SAME = 1e-4  # Å: more than what files round, less than what a step of dynamics moves
_SAME_SUMS = 1e-4  # relative
_PIECE = 10_000  # frames whose sums are compared at once
_FOLLOWING = 3  # frames, next to each other by a sum over pairs, that are compared


def vectors(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors [n_edges, 3] and lengths [n_edges], Å, from receivers to senders."""
    vector = sample.positions[sample.senders] + sample.shifts - sample.positions[sample.receivers]
    length = np.linalg.norm(vector, axis=1)
    return vector / length[:, None], length


def distances_of(samples: Sequence[Sample], cutoff: float) -> np.ndarray:
    """Return the nearest distance of each sample and three sums, [n_samples, 4] float32.

    The distance, Å, is inf where no atoms are within the cutoff. The sums are over atoms and pairs,
    and do not depend on the order of the atoms.
    """
    found = np.full((len(samples), 4), [np.inf, 0, 0, 0], np.float32)
    for k, sample in enumerate(samples):
        if sample.num_edges:
            lengths = vectors(sample)[1]
            weight = (1 - lengths / cutoff) ** 2
            species = sample.species + 1.3
            product = species[sample.senders] * species[sample.receivers]
            # The one that is sorted by comes last.
            found[k] = lengths.min(), weight.sum(), species.sum(), weight @ product
    return found


def same_pairs(samples: Sequence[Sample], distances: np.ndarray) -> list[tuple[int, int]]:
    """Return pairs of samples with the same elements, charges and distances."""
    sums = distances[:, 1:]
    kept = np.flatnonzero(np.isfinite(distances[:, 0]))
    order = kept[np.lexsort(sums[kept].T)]
    found = []
    for start, step in itertools.product(range(0, len(order), _PIECE), range(1, _FOLLOWING + 1)):
        second = order[start + step : start + step + _PIECE]
        first = order[start:][: len(second)]
        near = np.isclose(sums[first], sums[second], rtol=_SAME_SUMS, atol=_SAME_SUMS).all(axis=1)
        pairs = zip(first[near].tolist(), second[near].tolist(), strict=True)
        found += [(min(p), max(p)) for p in pairs if _same_distances(samples[p[0]], samples[p[1]])]
    return found


def _same_distances(a: Sample, b: Sample) -> bool:
    if a.charge != b.charge or not np.array_equal(np.sort(a.species), np.sort(b.species)):
        return False
    # A pair at the cutoff may be in one list only; it is the last.
    lengths = [np.sort(vectors(sample)[1]) for sample in (a, b)]
    least = min(map(len, lengths))
    if max(map(len, lengths)) - least > 0.02 * least + 2:
        return False
    return bool(np.abs(lengths[0][:least] - lengths[1][:least]).max() < _SAME)


def copies_of(samples: Sequence[Sample], distances: np.ndarray) -> np.ndarray:
    """Return the number of the first copy of each sample, [n_samples]; its own without copies."""
    count, pairs = len(samples), same_pairs(samples, distances)
    a, b = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = scipy.sparse.coo_array((np.ones(len(a)), (a, b)), (count, count))
    part = connected_components(graph, directed=False)[1]
    firsts, part = np.unique(part, return_index=True, return_inverse=True)[1:]
    return firsts[part]


def kept_together(first: np.ndarray, num_train: int) -> np.ndarray:
    """Return which samples validate, [n_samples] bool, so that no copy of one trains.

    `first` are those of `copies_of`; before, all from `num_train` on validate. Copies of which some
    train go to the validation as long as it does not grow, and else to the training. Where all are
    copies of one structure, nothing changes.
    """
    validates = np.arange(len(first)) >= num_train
    sizes = np.bincount(first, minlength=len(first))
    in_val = np.bincount(first[validates], minlength=len(first))
    split = (in_val > 0) & (in_val < sizes)
    room = int(in_val[split].sum())
    order = dict.fromkeys(first[num_train:][split[first[num_train:]]].tolist())
    chosen = []
    for group in order:
        if sizes[group] <= room:
            chosen.append(group)
            room -= int(sizes[group])
    if not chosen and not (in_val == sizes)[in_val > 0].any():
        chosen = sorted(order, key=lambda group: sizes[group])[:1]
    validates[split[first]] = False
    validates[np.isin(first, chosen)] = True
    return np.arange(len(first)) >= num_train if validates.all() else validates


NEAREST = 0.5
"""Å; no two nuclei are nearer in data to learn from: H2 has 0.74, and 0.5 costs 5 eV."""
_SAME_ENERGY = 1e-3  # eV/atom
_SETS = "training", "validation", "test"
HAVE = "frame has", "frames have"


def close_pairs(samples: Sequence[Sample], distances: np.ndarray) -> Iterator[str]:
    """Find structures with two atoms nearer than `NEAREST`."""
    nearest = distances[:, 0]
    if count := int((nearest < NEAREST).sum()):
        sample = samples[int(np.argmin(nearest))]
        edge = int(np.argmin(vectors(sample)[1]))
        ends = sample.senders[edge], sample.receivers[edge]
        pair = sorted(map(sample.number_of, ends))
        yield (
            f"{counted(count, *HAVE)} atoms nearer than {NEAREST} Å; the "
            f"nearest are {nearest.min():.3f} Å apart ({sample.name}, atoms {pair[0]} "
            f"and {pair[1]}): are positions in Å, and lattice vectors the rows of the cell?"
        )


def duplicates(
    samples: Sequence[Sample], sizes: Sequence[int], distances: np.ndarray
) -> Iterator[str]:
    """Find structures that occur twice, also rotated, mirrored or with atoms in another order.

    Structures are the same here if they have the same elements and the same distances up to the
    cutoff. `sizes` are the numbers of training, validation and test samples, one after the other.
    """
    pairs, sets = same_pairs(samples, distances), defaultdict(list)
    for pair in pairs:
        sets[tuple(np.searchsorted(np.cumsum(sizes), pair, "right").tolist())].append(pair)

    def names(some) -> str:
        return " and ".join(samples[k].name for k in min(some))

    def copies(some) -> int:  # the later one of each pair
        return len({max(pair) for pair in some})

    if within := [pair for part in range(len(_SETS)) for pair in sets[part, part]]:
        yield (
            f"{counted(copies(within), 'frame is a copy', 'frames are copies')} of others, or what "
            f"a rotation, a reflection or another order of atoms makes of them: {names(within)}"
        )
    for one, other in ((0, 1), (0, 2), (1, 2)):
        if across := sets[one, other]:
            first, later = _SETS[one], _SETS[other]
            are = f"{later} frame is a {first} frame", f"{later} frames are {first} frames"
            yield (
                f"{counted(copies(across), *are)}, too, so that errors of {later} are too small: "
                f"{names(across)}"
            )
    differing = [(d, p) for p in pairs if (d := _energy_difference(samples, p)) > _SAME_ENERGY]
    if differing:
        most, pair = max(differing)
        have = "pair of the same structures has", "pairs of the same structures have"
        yield (
            f"{counted(len(differing), *have)} energies that differ, by up to {most:.3g} eV/atom: "
            f"{names([pair])}"
        )


def _energy_difference(samples, pair) -> float:
    a, b = (samples[k].energy for k in pair)
    return 0.0 if a is None or b is None else abs(a - b) / samples[pair[0]].num_atoms
