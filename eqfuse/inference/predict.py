"""Energies, forces and stress of structures from a trained network, or from a committee."""

import dataclasses
import warnings
from collections.abc import Sequence
from functools import partial

import ase
import numpy as np

from eqfuse.data import Keys, Structure, prefetched, read_structures
from eqfuse.data.neighbors import require_apart
from eqfuse.data.readers import frames_of
from eqfuse.data.remarks import remarks_of, total_charge
from eqfuse.inference.evaluator import Evaluator, Listed, Results
from eqfuse.inference.network import load_networks, unlike_training
from eqfuse.inference.spread import Spread, spreads_of
from eqfuse.runs.errors import naming
from eqfuse.train.dispersion import Dispersion

_ATOMS_AT_ONCE = 4096  # of a batch; memory of a network is kilobytes for each of their pairs


@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """Prediction of a network for one structure, or the mean of a committee."""

    energies: np.ndarray  # [n_atoms] eV, parts of the energy, with reference energies
    relative_energy: float  # eV, without the reference energies
    forces: np.ndarray  # [n_atoms, 3] eV/Å
    stress: np.ndarray | None  # [3, 3] eV/Å^3, positive under tension; None without a cell
    spread: Spread | None = None  # None for a single network to which none was fitted
    charges: np.ndarray | None = None  # [n_atoms, charges] e, the latent ones of a single network

    @property
    def energy(self) -> float:
        """Return the total energy, eV, with the reference energies."""
        return float(self.energies.sum())


def mean_of(members: Sequence[Predicted]) -> Predicted:
    """Return the mean and the spread of the predictions of a committee for one structure."""
    if len(members) == 1:
        return members[0]

    def stacked(name: str) -> np.ndarray:
        return np.array([getattr(member, name) for member in members])

    parts = [stacked("energies"), stacked("forces")]
    parts.append(None if any(m.stress is None for m in members) else stacked("stress"))
    energies, forces, stress = (None if part is None else part.mean(axis=0) for part in parts)
    relative = float(stacked("relative_energy").mean())
    spread = Spread.of_members(stacked("energy"), *parts)
    return Predicted(energies, relative, forces, stress, spread)


def predict(run, structures, *, batch_size: int | None = None, **options) -> list[Predicted]:
    """Return energies, forces and stress of structures, in their order.

        [predicted] = eqfuse.predict("runs/first", atoms)

    The spread is that of a committee, or of one network to which `eqfuse uncertainty` fitted it.

    Args:
      run: the folder of a run, a file of its network, or a committee, whose mean and spread are
        returned: a folder of runs, a pattern, or a sequence of runs; or a `Network`, or several.
      structures: `ase.Atoms`, a `Structure`, a file or FILE@INDEX of `eqfuse.data.read_structures`,
        or several of these: a list, a generator, a trajectory; their labels are not read.
      batch_size: structures that are computed at once; None for 16, and fewer large ones.
      options: which, dtype, backend, radial, head and dispersion, see `eqfuse.inference.Network`.
    Raises:
      CheckpointError: no readable checkpoint.
      ConfigError: another dispersion, or no `dftd3`.
      DataError: a file that cannot be read, no structures, an element that a network does not know,
        or two atoms nearer than 0.3 Å; names the structure.
      ValueError: another `which` or dtype.
    """
    networks = load_networks(run, **options)
    structures = as_structures(structures, networks[0].charge_key)
    for text in unlike_training(networks[0], structures):
        warnings.warn(text, UserWarning, stacklevel=2)
    if batch_size is None:
        most = max(structure.num_atoms for structure in structures)
        batch_size = max(1, min(16, _ATOMS_AT_ONCE // most))
    elements = np.unique(np.concatenate([one.numbers for one in structures]))
    networks = [network.of_elements(elements) for network in networks]
    names = [one.origin or f"structure {k}" for k, one in enumerate(structures)]
    for name, one in zip(names, structures, strict=True):
        with naming(name):
            require_apart(one)
    largest_first = np.argsort([-one.num_atoms for one in structures], kind="stable")
    groups = [largest_first[k : k + batch_size] for k in range(0, len(structures), batch_size)]
    evaluators = [Evaluator(network) for network in networks]
    has_spread = len(networks) == 1 and networks[0].uncertainty is not None

    def lists(group) -> list[Listed]:
        given = [structures[k] for k in group], [names[k] for k in group]
        return [evaluator.list(*given) for evaluator in evaluators]

    predicted = [None] * len(structures)
    for group, listed in zip(groups, prefetched(map(lists, groups)), strict=True):
        of_group = [structures[k] for k in group]
        results = [evaluator.run(own) for evaluator, own in zip(evaluators, listed, strict=True)]
        added = {
            d: d and _dispersion(d, of_group, [names[k] for k in group])
            for d in {network.dispersion for network in networks}
        }
        members = [
            _split(of_group, own, added[network.dispersion])
            for network, own in zip(networks, results, strict=True)
        ]
        own = [None] * len(group)
        if has_spread:
            own = spreads_of(*networks, *listed, of_group)
        for k, of_members, spread in zip(group, zip(*members, strict=True), own, strict=True):
            mean = mean_of(of_members)
            predicted[k] = dataclasses.replace(mean, spread=spread) if spread else mean
    return predicted


def as_structures(structures, charge_key: str | None = None) -> list[Structure]:
    """Return the structures that a function was given, in any form, see `frames_of`.

    With a `charge_key` their total charges are read, too.
    """
    keys, found = Keys(charge=charge_key), []
    read = partial(read_structures, keys=keys, require_labels=False)
    for k, one in enumerate(frames_of(structures, read)):
        if isinstance(one, ase.Atoms):
            given = one.numbers, one.positions, one.cell.array, one.pbc
            with naming(f"atoms {k}"):
                charge = total_charge(one.info, charge_key)
            about = {"remarks": remarks_of(one), "charge": charge}
            one = Structure(*given, origin=f"atoms {k}", **about)
        found.append(one)
    return found


def _dispersion(dispersion: Dispersion, structures, names) -> tuple[np.ndarray, ...]:
    """Return the energies of atoms, forces and strain derivatives of structures, as `Results`."""
    found = []
    for structure, name in zip(structures, names, strict=True):
        with naming(name):
            _, *derivatives = dispersion.of(structure)
            found.append((dispersion.energies_of_atoms(structure), *derivatives))
    energies, forces, strain = zip(*found, strict=True)
    return np.concatenate(energies), np.concatenate(forces), np.stack(strain)


def _split(structures: list[Structure], results: Results, added) -> list[Predicted]:
    """Return the results of each structure, to which `_dispersion` is added unless it is None."""
    if added is not None:
        results = Results(*map(np.add, results, added), *results[3:])
    predicted, stop = [], 0
    for structure, strain in zip(structures, results.strain, strict=True):
        own = slice(stop, stop := stop + structure.num_atoms)
        energies, volume = results.energies[own], structure.volume
        totals, stress = energies + results.references[own], strain / volume if volume else None
        of_atoms = Predicted(totals, float(energies.sum()), results.forces[own], stress)
        if results.charges is not None:
            of_atoms = dataclasses.replace(of_atoms, charges=results.charges[own])
        predicted.append(of_atoms)
    return predicted
