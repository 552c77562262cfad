"""Labels that are placeholders, or far from all others, and forces that do not add up to zero."""

from collections.abc import Iterator, Sequence

import numpy as np

from eqfuse.data.batching import Sample
from eqfuse.data.checks.geometry import number_of, vectors
from eqfuse.data.errors import counted
from eqfuse.data.lazy import evenly, selected

_SAMPLED = 10_000  # frames from which usual forces are computed
_FEW = 0.01
"""Outliers are at most this fraction of the frames; more of them are a kind of structure."""
_DEVIATIONS = {"force": 6.0, "energy": 30.0}
_LEAST = {"force": 5.0, "energy": 0.1}  # eV/Å, eV/atom
_NET_OF_RMS, _LEAST_NET = 0.1, 0.02  # of the RMS of the forces; eV/Å
_ASYMMETRIC = 1e-2


def zero_labels(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield which labels are exactly zero where no symmetry makes them so.

    Energies are relative to reference energies here; forces are zero by symmetry where the
    directions to the neighbours cancel.
    """
    forces = [s for s in samples if s.num_atoms > 1 and _is_zero(s.forces) and _is_asymmetric(s)]
    stress = [s for s in samples if _is_zero(s.stress)]
    for name, zero in (("forces", forces), ("stress", stress)):
        labelled = sum(getattr(s, name) is not None for s in samples)
        if zero:
            yield (
                f"{name} {'are' if name == 'forces' else 'is'} exactly zero in {len(zero)} of "
                f"{counted(labelled, 'frame')} ({zero[0].name}): a placeholder? Leave {name} out "
                f"there, or give config_{name}_weight=0"
            )


def _is_zero(label) -> bool:
    return label is not None and not np.any(label)


def _is_asymmetric(sample: Sample) -> bool:
    if not sample.num_edges:
        return False
    unit, length = vectors(sample)
    sums = np.zeros((sample.num_atoms, 3))
    np.add.at(sums, sample.receivers, unit * (1 - length / (1.001 * length.max()))[:, None] ** 2)
    return bool(np.abs(sums).max() > _ASYMMETRIC)


def force_outliers(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield how many frames have forces far above all others, and the largest of them.

    Logarithms of the lengths of the forces have a median and, for their spread, the median of the
    deviations from it, which outliers do not move.
    """
    labelled = selected(samples, lambda s: s.forces is not None)
    if not labelled:
        return

    def lengths(sample: Sample) -> np.ndarray:
        return np.linalg.norm(sample.forces, axis=1)

    every = np.concatenate([lengths(s) for s in evenly(labelled, _SAMPLED)])
    every = np.log(every[every > 1e-3]) if (every > 1e-3).any() else np.zeros(1)
    center = np.median(every)
    spread = 1.4826 * np.median(np.abs(every - center))
    limit = max(np.exp(center + _DEVIATIONS["force"] * spread), _LEAST["force"])
    largest = np.fromiter((lengths(s).max() for s in labelled), np.float64)
    count = int((largest > limit).sum())
    if 0 < count <= max(1, _FEW * len(labelled)):
        k = int(np.argmax(largest))
        atom = number_of(labelled[k], int(np.argmax(lengths(labelled[k]))))
        yield (
            f"{counted(count, 'frame has', 'frames have')} forces above {limit:.3g} eV/Å, far from "
            f"all others (median {np.exp(center):.2g}); the largest, {largest[k]:.4g} eV/Å, is "
            f"on atom {atom} of {labelled[k].name}"
        )


def energy_outliers(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield how many frames have energies far from all others, per atom, and the farthest."""
    labelled = selected(samples, lambda s: s.energy is not None)
    if len(labelled) < 10:
        return
    energies = np.fromiter((s.energy / s.num_atoms for s in labelled), np.float64)
    deviations = np.abs(energies - np.median(energies))
    limit = max(_DEVIATIONS["energy"] * 1.4826 * np.median(deviations), _LEAST["energy"])
    count = int((deviations > limit).sum())
    if 0 < count <= max(1, _FEW * len(labelled)):
        k = int(np.argmax(deviations))
        yield (
            f"{counted(count, 'frame has', 'frames have')} energies more than {limit:.3g} eV/atom "
            f"from the median; the farthest, by {energies[k] - np.median(energies):+.4g} "
            f"eV/atom, is {labelled[k].name}"
        )


def net_forces(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield how many frames have forces that do not add up to zero.

    Independent errors e of the components of the forces of n atoms add up to about e sqrt(n).
    """
    labelled = selected(samples, lambda s: s.forces is not None and s.num_atoms > 1)
    if not labelled:
        return
    net = (np.abs(s.forces.sum(axis=0)).max() / np.sqrt(s.num_atoms) for s in labelled)
    errors = np.fromiter(net, np.float64)
    sizes = np.fromiter((np.sqrt(np.mean(s.forces**2)) for s in labelled), np.float64)
    bad = errors > np.maximum(_NET_OF_RMS * np.maximum(sizes, np.median(sizes)), _LEAST_NET)
    if bad.any():
        k = int(np.argmax(np.where(bad, errors, 0)))
        net = np.linalg.norm(labelled[k].forces.sum(axis=0))
        yield (
            f"forces do not add up to zero in {bad.sum()} of {counted(len(labelled), 'frame')}; "
            f"the largest sum is {net:.3g} eV/Å, in {labelled[k].name}: are forces of atoms "
            "missing, or fixed atoms set to zero?"
        )
