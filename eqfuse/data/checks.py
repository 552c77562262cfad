"""Check data before they are believed.

A check is a function that asks one question, which is its docstring, and yields what it finds: one
sentence with the number of frames, the name of one, and the advice. What clean data have by physics
or by chance is no problem here: perfect crystals have no forces, and distributions of forces have
tails. Frames are sampled where all of them would take long.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from ase.data import chemical_symbols
from ase.units import Hartree, Rydberg, kcal, kJ, mol

from eqfuse.data.checks_of_forces import forces_elsewhere
from eqfuse.data.checks_of_labels import (
    energies_elsewhere,
    energy_differences,
    hessians,
    lengths,
    springs,
)
from eqfuse.data.checks_of_stress import stress_problems
from eqfuse.data.copies import HAVE, close_pairs, distances_of, duplicates, vectors
from eqfuse.data.dataset import Dataset
from eqfuse.data.lazy import Joined, chosen, evenly, selected, without_isolated_atoms
from eqfuse.data.references import compositions
from eqfuse.data.remarks import APERIODIC
from eqfuse.data.samples import Sample
from eqfuse.data.structures import LABELS, Structure, count_labelled, counted, has_all_forces


def find_problems(
    dataset: Dataset, structures: Sequence[Structure], validation: Sequence[Structure] | None = None
) -> list[str]:
    """Return the probable problems of data, a sentence each.

    The dataset is made of the structures, which are in the order of the file, and of test
    structures, which are compared with the others.
    """
    frames = without_isolated_atoms(Joined(structures, validation or ()))
    samples, sets = Joined(dataset.train, dataset.val), (dataset.train, dataset.val, dataset.test)
    every = Joined(*sets)
    of_test = distances_of(dataset.test, dataset.cutoff)
    distances = np.concatenate([dataset.distances, of_test])
    return [
        *unread_labels(frames),
        *zero_labels(samples),
        *close_pairs(every, distances),
        *duplicates(every, [len(part) for part in sets], distances),
        *aperiodic(frames),
        *lengths(frames),
        *forces_elsewhere(frames),
        *energies_elsewhere(frames),
        *springs(frames),
        *energy_differences(frames),
        *stress_problems(frames),
        *hessians(frames),
        *energy_outliers(samples),
        *force_outliers(samples),
        *net_forces(samples),
        *undetermined_references(dataset, structures),
        *wrong_references(dataset, samples),
    ]


_GIVE = "give the energies of isolated atoms (data.reference_energies, or config_type=IsolatedAtom)"
_SAMPLED = 10_000  # frames from which usual forces are computed
_FEW = 0.01
"""Outliers are at most this fraction of the frames; more of them are a kind of structure."""
_NET_OF_RMS, _LEAST_NET = 0.1, 0.02  # of the RMS of the forces; eV/Å
_ASYMMETRIC = 1e-2


def unread_labels(frames: Sequence[Structure]) -> Iterator[str]:
    """Find labels that some frames have under another key than others, and free energies."""
    for name in LABELS:
        missing = selected(frames, lambda s, name=name: name in s.unread)
        if missing and count_labelled(frames, name):
            first, of = missing[0], counted(len(frames), "frame")
            are = "are" if name == "forces" else "is"
            yield (
                f"no {name} {are} read in {len(missing)} of {of}, which have {first.unread[name]} "
                f"where others have the key of the {name} ({first.origin}): give all the same key"
            )
    if free := selected(frames, lambda s: "free_energy" in s.unread):
        yield (
            f"energy is not free_energy in {len(free)} of {counted(len(frames), 'frame')} "
            f"({free[0].origin}), and forces are derivatives of the latter, such as of VASP: "
            "data.energy_key=free_energy"
        )


def zero_labels(samples: Sequence[Sample]) -> Iterator[str]:
    """Find labels that are exactly zero where no symmetry makes them so.

    Energies are relative to reference energies here; forces are zero by symmetry where the
    directions to the neighbours cancel.
    """
    for name, are in (("forces", "are"), ("stress", "is")):
        labelled = selected(samples, lambda s, name=name: getattr(s, name) is not None)
        zero = [s for s in labelled if not np.any(getattr(s, name))]
        if name == "forces":
            zero = [s for s in zero if s.num_atoms > 1 and _is_asymmetric(s)]
        if zero:
            yield (
                f"{name} {are} exactly zero in {len(zero)} of {counted(len(labelled), 'frame')} "
                f"({zero[0].name}): a placeholder? Leave {name} out there, or give "
                f"config_{name}_weight=0"
            )


def _is_asymmetric(sample: Sample) -> bool:
    if not sample.num_edges:
        return False
    unit, length = vectors(sample)
    sums = np.zeros((sample.num_atoms, 3))
    np.add.at(sums, sample.receivers, unit * (1 - length / (1.001 * length.max()))[:, None] ** 2)
    return bool(np.abs(sums).max() > _ASYMMETRIC)


def force_outliers(samples: Sequence[Sample]) -> Iterator[str]:
    """Find frames with forces far above all others, by the logarithms of their lengths."""
    labelled = selected(samples, lambda s: s.forces is not None)
    if not labelled:
        return

    def lengths(sample: Sample) -> np.ndarray:
        return np.linalg.norm(sample.forces, axis=1)

    every = np.concatenate([lengths(s) for s in evenly(labelled, _SAMPLED)])
    center, spread = _usual(np.log(every[every > 1e-3]))
    limit = max(np.exp(center + 6 * spread), 5.0)  # eV/Å
    largest = np.fromiter((np.nanmax(lengths(s)) for s in labelled), np.float64)
    for count, k in _few(largest > limit, largest):
        atom = labelled[k].number_of(int(np.nanargmax(lengths(labelled[k]))))
        yield (
            f"{counted(count, *HAVE)} forces above {limit:.3g} eV/Å, far from "
            f"all others (median {np.exp(center):.2g}); the largest, {largest[k]:.4g} eV/Å, is "
            f"on atom {atom} of {labelled[k].name}"
        )


def energy_outliers(samples: Sequence[Sample]) -> Iterator[str]:
    """Find frames with energies far from all others, per atom."""
    labelled = selected(samples, lambda s: s.energy is not None)
    if len(labelled) < 10:
        return
    energies = np.fromiter((s.energy / s.num_atoms for s in labelled), np.float64)
    center, spread = _usual(energies)
    deviations = np.abs(energies - center)
    limit = max(30 * spread, 0.1)  # eV/atom
    for count, k in _few(deviations > limit, deviations):
        yield (
            f"{counted(count, *HAVE)} energies more than {limit:.3g} eV/atom "
            f"from the median; the farthest, by {energies[k] - center:+.4g} "
            f"eV/atom, is {labelled[k].name}"
        )


def _usual(values: np.ndarray) -> tuple[float, float]:
    """Return a median and, for the spread, that of deviations: outliers do not move them."""
    center = np.median(values) if len(values) else 0.0
    return center, 1.4826 * np.median(np.abs(values - center)) if len(values) else 0.0


def _few(is_outlier: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the number of outliers and that of the largest, if they are few."""
    count = int(is_outlier.sum())
    if 0 < count <= max(1, _FEW * len(sizes)):
        yield count, int(np.argmax(sizes))


def net_forces(samples: Sequence[Sample]) -> Iterator[str]:
    """Find frames whose forces do not add up to zero.

    Independent errors e of the components of the forces of n atoms add up to about e sqrt(n).
    """
    labelled = selected(samples, lambda s: has_all_forces(s) and s.num_atoms > 1)
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


def aperiodic(frames: Sequence[Structure]) -> Iterator[str]:
    """Find crystals without periodic directions."""
    found = selected(frames, lambda s: APERIODIC in s.remarks)
    if found:
        yield (
            f"{counted(len(found), *HAVE)} {APERIODIC} ({found[0].origin}), "
            "and the images of the atoms in this lattice are bonded to them: they are probably "
            'periodic; write pbc="T T T"'
        )


def undetermined_references(dataset: Dataset, structures: Sequence[Structure]) -> Iterator[str]:
    """Find fitted reference energies that the training structures do not determine."""
    train = selected(chosen(structures, dataset.train_indices), lambda s: s.energy is not None)
    if not (dataset.references_fitted and train):
        return
    species = np.array([z for z in dataset.species if z in dataset.references])
    table, _ = compositions(s.numbers for s in train)
    species = species[table[:, species].any(axis=0)]  # a network may know more elements
    loose = _loose(table[:, species].astype(np.float64))
    if loose.any():
        values = ", ".join(
            f"{chemical_symbols[z]} {dataset.references[int(z)]:.1f}" for z in species[loose]
        )
        yield (
            f"the fit does not determine the reference energies of {values} eV, since training "
            f"frames have too few compositions: energies of others will be wrong; {_GIVE}"
        )


def _loose(counts: np.ndarray) -> np.ndarray:
    """Test for each element whether some change of its reference energy changes no total."""
    _, singular, rows = np.linalg.svd(counts, full_matrices=True)
    rank = int((singular > 1e-10 * singular.max()).sum())
    return (np.abs(rows[rank:]) > 1e-8).any(axis=0)


_BINDING = -15.0, 5.0
"""eV/atom, of energies less those of isolated atoms: -9 in tungsten, above zero in hot gases."""
_UNITS = {"Hartree": Hartree, "Rydberg": Rydberg, "kcal/mol": kcal / mol, "kJ/mol": kJ / mol}


def wrong_references(dataset: Dataset, samples: Sequence[Sample]) -> Iterator[str]:
    """Find reference energies, that were given, of another unit or code than the energies."""
    labelled = selected(samples, lambda s: s.energy is not None and s.head is None)
    if dataset.references_fitted or not labelled or not any(dataset.references.values()):
        return
    given = np.array([dataset.references.get(int(z), 0.0) for z in dataset.species])
    binding = np.fromiter((s.energy / s.num_atoms for s in labelled), np.float64)
    atoms = np.fromiter((given[s.species].mean() for s in labelled), np.float64)

    def wrong(values: np.ndarray) -> float:
        return float(np.mean((values < _BINDING[0]) | (values > _BINDING[1])))

    if wrong(binding) <= 0.5:
        return
    total = binding + atoms
    reasons = [
        text.format(unit)
        for unit, factor in _UNITS.items()
        for text, values in (
            ("the reference energies are probably in {}", total - factor * atoms),
            ("the energies of the frames are probably in {}", factor * total - atoms),
        )
        if wrong(values) <= 0.5
    ]
    yield (
        f"energies less the reference energies are {np.median(binding):.4g} eV/atom in the median, "
        f"and {_BINDING[0]:g} to {_BINDING[1]:g} in matter: "
        f"{reasons[0] if reasons else 'they are of different codes, methods or pseudopotentials'}; "
        f"{_GIVE} of the same code, in eV, or leave them out"
    )
