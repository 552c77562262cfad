"""Check data before they are believed: each problem is one sentence that names a frame.

What clean data have by physics or by chance is no problem here: perfect crystals have no forces,
and distributions of forces have tails. Frames are sampled where all of them would take long.
"""

from collections.abc import Sequence

from eqfuse.data.checks.differences import energy_differences
from eqfuse.data.checks.geometry import Distances, close_pairs, duplicates
from eqfuse.data.checks.labels import energy_outliers, force_outliers, net_forces, zero_labels
from eqfuse.data.checks.springs import springs
from eqfuse.data.checks.undetermined import total_energies_in_hartree, undetermined_references
from eqfuse.data.dataset import Dataset
from eqfuse.data.lazy import Joined, without_isolated_atoms
from eqfuse.data.structures import Structure


def find_problems(
    dataset: Dataset, structures: Sequence[Structure], validation: Sequence[Structure] | None = None
) -> list[str]:
    """Return what is probably wrong with data, a sentence each.

    Args:
      dataset: made of the structures, and of test structures, which are compared with the others.
      structures: in the order of the file, whose neighbours may be frames of a trajectory.
      validation: those that were given for validation, if any.
    """
    frames = without_isolated_atoms(Joined(structures, validation or ()))
    samples, sets = Joined(dataset.train, dataset.val), (dataset.train, dataset.val, dataset.test)
    every = Joined(*sets)
    distances = Distances.of(every, dataset.cutoff)
    return [
        *zero_labels(samples),
        *close_pairs(every, distances),
        *duplicates(every, [len(part) for part in sets], distances),
        *springs(frames),
        *energy_differences(frames),
        *total_energies_in_hartree(frames),
        *energy_outliers(samples),
        *force_outliers(samples),
        *net_forces(samples),
        *undetermined_references(dataset, structures),
    ]
