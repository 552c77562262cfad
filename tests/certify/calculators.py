"""A pair potential that is right, and the same with one fault each, as calculators of ASE."""

import numpy as np
import vesin
from ase.calculators.calculator import Calculator, all_changes

CUTOFF = 5.0


def pairs_within(atoms, reach):
    given = {"points": atoms.positions, "box": atoms.cell.array, "periodic": atoms.pbc}
    lists = vesin.NeighborList(cutoff=reach, full_list=True)
    i, j, images = lists.compute(**given, quantities="ijS")
    return j, i, images.astype(float)


class Soft(Calculator):
    """Energy of pairs, 3 exp(-r / 1.3 Å) with a smooth cutoff, in a precision.

    Args:
      dtype: of all numbers.
      fault: name of what is wrong; None for nothing.
      seed: of noise.
    """

    implemented_properties = ("energy", "forces", "stress")

    def __init__(self, dtype="float64", fault=None, seed=0):
        super().__init__()
        self.dtype, self.fault = np.dtype(dtype).type, fault
        self.rng = np.random.default_rng(seed)
        self.seen = 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        real, fault = self.dtype, self.fault
        cell = atoms.cell.array
        j, i, images = self.pairs(atoms)
        shifts = images @ cell
        if fault == "images":  # an atom in another cell is taken as it is given
            lengths = np.linalg.norm(shifts, axis=1)
            shifts = np.where((lengths > 1.5 * cell.max())[:, None], 0.99 * shifts, shifts)
        positions = atoms.positions.astype(real)
        vectors = positions[j] + shifts.astype(real) - positions[i]
        r = np.sqrt((vectors**2).sum(1))
        keep = r < CUTOFF
        if fault == "minimum image":
            nearest = np.full((len(atoms), len(atoms)), np.inf)
            np.minimum.at(nearest, (i, j), r)
            keep &= (r <= nearest[i, j] + 1e-6) & (i != j)
        i, j, vectors, r = i[keep], j[keep], vectors[keep], r[keep]
        x = r / real(CUTOFF)
        envelope = (1 - x**2) ** 3
        decay = real(3) * np.exp(-r / real(1.3))
        shift = real(1e-3 if fault == "step" else 0.0)
        energies = (decay * envelope + shift) / 2
        slopes = decay * (-envelope / real(1.3) - 6 * x * (1 - x**2) ** 2 / real(CUTOFF)) / 2
        if fault == "force jump":
            slopes = slopes + real(1e-3) * (r < 4.0)
        of_pairs = slopes[:, None] * vectors / r[:, None]
        forces = np.zeros((len(atoms), 3), real)
        np.add.at(forces, i, of_pairs)
        np.add.at(forces, j, -of_pairs)
        energy = energies.sum(dtype=real)
        energy, forces = self._spoiled(float(energy), forces.astype(float), atoms)
        self.results = {"energy": energy, "forces": forces}
        if atoms.cell.rank == 3:
            strain = (vectors.T @ of_pairs / atoms.get_volume()).astype(float)
            stress = ((strain + strain.T) / 2).ravel()[[0, 4, 8, 5, 2, 1]]
            if fault == "stress components":
                stress = stress[[0, 1, 2, 5, 4, 3]]
            scale = {"stress sign": -1.0, "stress kbar": 1602.1766}.get(fault, 1.0)
            self.results["stress"] = scale * stress

    def pairs(self, atoms):
        """Return the pairs within the cutoff, with the numbers of lattice vectors between them."""
        return pairs_within(atoms, CUTOFF)

    def _spoiled(self, energy, forces, atoms):
        fault, last = self.fault, len(atoms) - 1
        if fault == "one atom":
            forces[last] *= 1.001
        elif fault == "noise":
            energy += 1e-4 * self.rng.normal()
            forces = forces + 1e-4 * self.rng.normal(size=forces.shape)
        elif fault == "history":
            energy += 1e-4 * (self.seen != len(atoms))
            self.seen = len(atoms)
        elif fault == "direction":
            energy += 1e-4 * atoms.positions[:, 0].sum()
            forces[:, 0] -= 1e-4
        elif fault == "order":
            forces = forces + 1e-4 * np.arange(len(atoms))[:, None] * (len(atoms) > 1)
        elif fault == "net force":
            forces[:, 2] += 1e-3
        elif fault == "chiral" and len(atoms) > 3:
            a, b, c = atoms.positions[1:4] - atoms.positions[0]
            energy += 1e-3 * np.cross(a, b) @ c
        elif fault == "order of sums":
            energy *= 1 + 2.0**-23 * self.rng.integers(2)
        elif fault == "rough forces":
            forces = forces + 5e-4 * np.sin(1e7 * atoms.positions)
        elif fault == "rough":
            energy += 1e-4 * np.sin(1e7 * atoms.positions.sum())
        elif fault == "nan" and len(atoms) == 2 and atoms.get_distance(0, 1) < 0.5:
            energy = np.nan
        return energy, forces


class Folded(Soft):
    """`Soft` with three folds in 1 mÅ of the force between the first two of four atoms, if near.

    Networks have such, far from what they were trained on.
    """

    def _spoiled(self, energy, forces, atoms):
        vector = atoms.positions[1:2].sum(0) - atoms.positions[0]
        r = np.linalg.norm(vector)
        if len(atoms) == 4 and r < 1.5:
            phase = 2 * np.pi * (r - 1.2144) / 7e-4 + np.pi / 2
            x = 20 * np.sin(phase)
            energy += 1e-5 * (np.logaddexp(x, -x) - np.log(2))
            slope = 4e-4 * np.pi / 7e-4 * np.tanh(x) * np.cos(phase)
            forces = forces + slope * np.outer([1, -1, 0, 0], vector / r)
        return energy, forces


class Listed(Soft):
    """`Soft` with a list that goes beyond the cutoff by a skin and is kept for some calls.

    Args:
      kept: name of what is wrong with how long it is kept; "right" for nothing.
      skin: Å.
    """

    def __init__(self, kept="right", skin=0.6, dtype="float64"):
        super().__init__(dtype)
        self.kept, self.skin, self.calls = kept, skin, 0
        self.list = self.listed = self.last = None

    def pairs(self, atoms):
        self.calls += 1
        if self.listed is None or len(self.listed) != len(atoms) or not self.is_kept(atoms):
            self.list, self.listed = pairs_within(atoms, CUTOFF + self.skin), atoms.copy()
        self.last = atoms.copy()
        return self.list

    def is_kept(self, atoms) -> bool:
        def farthest(before):
            return np.linalg.norm(atoms.positions - before.positions, axis=1).max()

        is_cell = (atoms.cell.array == self.listed.cell.array).all()
        is_cell &= (atoms.pbc == self.listed.pbc).all()
        return {
            "right": is_cell and 2 * farthest(self.listed) < self.skin,
            "0.3 since the last call": is_cell and farthest(self.last) < 0.3,
            "0.3 or the cell": (atoms.pbc == self.listed.pbc).all() and farthest(self.last) < 0.3,
            "cell ignored": 2 * farthest(self.listed) < self.skin,
            "never": True,
            "skin too small": is_cell and farthest(self.listed) < 1.5 * self.skin,
            "whole skin": is_cell and farthest(self.listed) < self.skin,
            "every 10 calls": self.calls % 10 != 0,
        }[self.kept]
