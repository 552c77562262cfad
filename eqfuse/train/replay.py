"""Frames of a network's past, which fine-tuning mixes with new ones, and what it moved elsewhere.

The network labels them itself before it is tuned, so that nobody needs the data that it was trained
on (distillation); or they are those of a file.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
import jax
import jax.numpy as jnp
import numpy as np
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.collections import g2
from ase.data import chemical_symbols, covalent_radii
from ase.spacegroup import crystal
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import Batcher, DataError, Structure, read_structures
from eqfuse.data.neighbors import require_apart
from eqfuse.data.readers.ase_files import of_atoms
from eqfuse.data.samples import Samples, prepare_samples
from eqfuse.data.structures import Weights
from eqfuse.models import Potential, compile_predict
from eqfuse.models.features import layer_features
from eqfuse.runs.files import whole
from eqfuse.train.dispersion import Dispersion
from eqfuse.train.metrics import Predicted, predictions

FILE = "replay.traj"
"""In the folder of a run: the frames, of which a resumed run reads the same numbers."""
AUTO = "auto"
_FROM = 8  # structures are made and labelled for each that is chosen, and so many are in a batch
_MOST_FORCE, _MOST_PRESSURE = 5.0, 0.1
"""eV/Å and eV/Å^3 (16 GPa): structures with larger ones are left out, since they are so far from
what networks know that they would dominate the training."""
_LEAST_ATOMS = 5  # of a cell
_CRYSTALS = (  # space group, sites, and the shortest distance of the first two in units of a
    (225, [(0, 0, 0)], 0.707),
    (229, [(0, 0, 0)], 0.866),
    (227, [(0, 0, 0)], 0.433),
    (225, [(0, 0, 0), (0.5, 0.5, 0.5)], 0.5),
    (221, [(0, 0, 0), (0.5, 0.5, 0.5)], 0.866),
    (216, [(0, 0, 0), (0.25, 0.25, 0.25)], 0.433),
    (225, [(0, 0, 0), (0.25, 0.25, 0.25)], 0.433),
    (221, [(0, 0, 0), (0.5, 0, 0), (0.5, 0.5, 0.5)], 0.5),
)
_SOLIDS = {  # whose lattice constants are compared: structure, and about what they are, Å
    "MgO": ("rocksalt", 4.21),
    "NaCl": ("rocksalt", 5.64),
    "Si": ("diamond", 5.43),
    "Al": ("fcc", 4.05),
    "Cu": ("fcc", 3.61),
}


def structures_of(elements: Sequence[int], near: set[int], count: int, seed: int):
    """Return crystals and molecules of elements, strained and displaced at random, unlabelled.

    Crystals have the structures of elements, of salts and of a perovskite, at 0.95 to 1.2 times the
    distances of covalent radii. Their elements are equally probable, but in half of them the first
    is one of those of the data, `near`. Molecules are those of the G2 set that have these elements
    only; they are half of all, where there are ten or more.
    """
    rng = np.random.Generator(np.random.PCG64((seed, 17)))
    elements, symbols = np.array(elements), {chemical_symbols[z] for z in elements}
    molecules = [name for name in g2.names if {*g2[name].symbols} <= symbols and len(g2[name]) > 1]
    found = []
    for k in range(count):
        if k % 2 and len(molecules) >= 10:
            atoms = molecule(molecules[rng.integers(len(molecules))])
        else:
            group, sites, shortest = _CRYSTALS[rng.integers(len(_CRYSTALS))]
            numbers = rng.choice(elements, len(sites))
            if rng.random() < 0.5:
                numbers[0] = rng.choice(sorted(near))
            side = 2 * covalent_radii[numbers[:2]].mean() * rng.uniform(0.95, 1.2) / shortest
            with warnings.catch_warnings(action="ignore"):  # of the setting of a space group
                atoms = crystal(numbers, sites, spacegroup=group, cellpar=[side] * 3 + [90] * 3)
            axis = 0
            while len(atoms) < _LEAST_ATOMS:
                atoms, axis = atoms.repeat([2 if axis == j else 1 for j in range(3)]), axis + 1
            strain = rng.normal(scale=0.02, size=(3, 3))
            atoms.set_cell(atoms.cell @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
        atoms.positions += rng.normal(scale=rng.uniform(0.01, 0.12), size=atoms.positions.shape)
        with contextlib.suppress(DataError):  # of atoms that overlap
            require_apart(structure := of_atoms(atoms))
            found.append(structure)
    return found


def farthest(features: np.ndarray, count: int) -> list[int]:
    """Return the numbers of rows [n, k], each the farthest from those before; the first is 0."""
    chosen, distances = [], np.full(len(features), np.inf)
    while len(chosen) < min(count, len(features)):
        chosen.append(int(distances.argmax()))
        own = np.linalg.norm(features - features[chosen[-1]], axis=1)
        distances = np.minimum(distances, own)
    return chosen


@dataclasses.dataclass(frozen=True)
class Network:
    """A network before it is tuned, and the reference energies that a run counts from."""

    potential: Potential
    params: dict
    species: tuple[int, ...]
    references: dict[int, float]  # of the run, eV
    dtype: str
    data: frozenset[int]  # atomic numbers in the data of the run

    def samples(self, structures: Sequence[Structure], references=None) -> Samples:
        """Return samples, whose labels count from the reference energies, if any are given."""
        cutoff = float(self.potential.model.cutoff)
        return prepare_samples(structures, cutoff, self.species, references)

    def predicted(self, samples: Samples, params=None) -> list[Predicted]:
        """Return what the network, or one with other variables, predicts for each sample."""
        params = self.params if params is None else params
        return predictions(self._predict, params, self._batcher(samples))

    def _batcher(self, samples: Samples) -> Batcher:
        return Batcher(samples, _FROM, dtype=self.dtype, max_shapes=1)  # one program

    @functools.cached_property
    def _predict(self):
        return compile_predict(self.potential, stress=True)

    def features(self, samples: Samples) -> np.ndarray:
        """Return the mean of the features of the atoms of each, in units of their spread."""

        @jax.jit
        def means(params, graph):
            operands = graph.vectors, graph.species, graph.edges
            layers = self.potential.model.layers
            rows = layer_features(self.potential, params, *operands, layers=layers)
            rows = jnp.where(graph.node_mask[:, None], rows, 0)
            return jax.ops.segment_sum(rows, graph.graph_index, graph.num_graphs)

        graphs = [batch.graph for batch in self._batcher(samples).batches(shuffle=False)]
        rows = [means(self.params, graph)[np.asarray(graph.graph_mask)] for graph in graphs]
        rows = np.concatenate(rows) / samples.sizes[:, :1]
        return (rows - rows.mean(axis=0)) / (rows.std(axis=0).mean() or 1.0)

    def label(self, structures: Sequence[Structure]) -> list[Structure]:
        """Return structures with the energy, forces and stress that the network gives.

        Those with a force beyond 5 eV/Å, or a pressure beyond 16 GPa, are left out.
        """
        frames, samples = [], self.samples(structures)
        for structure, sample, found in zip(
            structures, samples, self.predicted(samples), strict=True
        ):
            pressure = abs(np.trace(found.stress)) / 3
            if abs(found.forces).max() < _MOST_FORCE and pressure < _MOST_PRESSURE:
                energy = found.energy + sum(self.references[int(z)] for z in structure.numbers)
                labels = {"energy": energy, "forces": sample.in_structure(found.forces)}
                frames.append(dataclasses.replace(structure, stress=found.stress, **labels))
        return frames

    def frames(
        self,
        source: str,
        count: int,
        seed: int,
        own: dict[int, float],
        dispersion: Dispersion | None = None,
    ) -> list[Structure]:
        """Return the frames to remember, at most `count`, farthest from each other by descriptors.

        The source is "auto", or a file. Its labels count from `own`, the reference energies of the
        network by atomic number, eV, and are less the `dispersion` of the network; frames without
        energy and forces are labelled by the network.

        Raises:
          DataError: a file that cannot be read, or has no frame of the network's elements.
        """
        if source == AUTO:
            given = structures_of(self.species, self.data, _FROM * count, seed)
        else:
            read, known = read_structures(source, require_labels=False), {*self.species}
            given = [s for s in read if not s.is_isolated_atom and {*s.numbers.tolist()} <= known]
            given = given if dispersion is None else [*map(dispersion.without, given)]
        moves = {z: self.references[z] - own[z] for z in self.species}
        labelled = [s for s in given if s.energy is not None and s.forces is not None]
        others = [s for s in given if s.energy is None or s.forces is None]
        frames = [
            dataclasses.replace(s, energy=s.energy + sum(moves[int(z)] for z in s.numbers))
            for s in labelled
        ]
        frames += self.label(others) if others else []
        if not frames:
            raise DataError(
                f"replay={source}: no frame has only elements of the network and forces below "
                f"{_MOST_FORCE:g} eV/Å and a low pressure; give a file of others, or replay=none"
            )
        if len(frames) <= count:
            return frames
        return [frames[k] for k in farthest(self.features(self.samples(frames)), count)]

    def remembered(self, frames: Sequence[Structure], weight: float) -> Samples:
        """Return labelled frames as samples for the training, of this weight in the loss."""
        how = {"weights": Weights(*[weight] * len(Weights._fields)), "origin": "a frame of replay"}
        return self.samples([dataclasses.replace(s, **how) for s in frames], self.references)


def write_frames(path, frames: Sequence[Structure]):
    """Write labelled frames to a file that `eqfuse.data.read_structures` reads to the last bit."""
    written, path = [], Path(path)
    for s in frames:
        atoms = ase.Atoms(s.numbers, s.positions, cell=s.cell, pbc=s.pbc)
        stress = None if s.stress is None else full_3x3_to_voigt_6_stress(s.stress)
        labels = {"energy": s.energy, "forces": s.forces, "stress": stress}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        written.append(atoms)
    with whole(path, path.with_name(f"{path.name}.part")) as part:
        ase.io.write(part, written, format="traj")


def moved(network: Network, params, seed: int) -> list[dict]:
    """Return what a training moved in structures that it did not see, as rows of a table.

    Args:
      network: as it was before.
      params: its variables afterwards.
      seed: of the structures.
    Returns:
      rows with `structures`, `number`, `energy_mev_per_atom` and `forces_mev_per_a` (means of the
      absolute changes) and `of_forces_mev_per_a` (mean absolute forces before); and for each solid
      its change of the energy, and `lattice_before_a` and `lattice_after_a`.
    """
    frames = network.label(structures_of(network.species, network.data, 128, seed + 1))
    solids = {
        name: [of_atoms(bulk(name, kind, a * side, cubic=True)) for a in np.linspace(0.95, 1.05, 9)]
        for name, (kind, side) in _SOLIDS.items()
        if {*bulk(name, kind, side).numbers.tolist()} <= {*network.species}
    }
    samples = network.samples([*frames, *(cell for cells in solids.values() for cell in cells)])
    changes = [network.predicted(samples, p) for p in (None, params)]
    groups = {"crystals with elements of the data": [], "other crystals": [], "molecules": []}
    names = list(groups)
    for frame, before, after in zip(frames, *changes, strict=False):
        known = bool(network.data & {*frame.numbers.tolist()})
        name = names[2] if not frame.pbc.any() else names[0] if known else names[1]
        energy = (after.energy - before.energy) / len(frame.numbers)
        groups[name].append((energy, after.forces - before.forces, before.forces))
    rows = []
    for name, group in groups.items():
        if group:
            energies, *forces = zip(*group, strict=True)
            sizes = [1e3 * float(np.abs(np.concatenate(part)).mean()) for part in forces]
            energy = 1e3 * float(np.abs(energies).mean())
            row = {"structures": name, "number": len(group), "energy_mev_per_atom": energy}
            rows.append(row | {"forces_mev_per_a": sizes[0], "of_forces_mev_per_a": sizes[1]})
    energies = [np.array([one.energy for one in found[len(frames) :]]) for found in changes]
    for k, (name, cells) in enumerate(solids.items()):
        before, after = (of_all[9 * k : 9 * (k + 1)] for of_all in energies)
        energy = 1e3 * float((after - before)[4]) / len(cells[0].numbers)
        row = {"structures": name, "energy_mev_per_atom": energy}
        sides = np.array([cell.cell[0, 0] for cell in cells])
        lattices = {"before": _lattice(sides, before), "after": _lattice(sides, after)}
        rows.append(row | {f"lattice_{when}_a": side for when, side in lattices.items()})
    return rows


def _lattice(sides: np.ndarray, energies: np.ndarray) -> float:
    """Return the side of least energy, Å, of a polynomial of degree 4; NaN if there is none."""
    fit = np.polynomial.Polynomial.fit(sides, energies, 4)
    roots = fit.deriv().roots()
    real = roots[abs(roots.imag) < 1e-9].real
    real = real[(real > sides[0]) & (real < sides[-1]) & (fit.deriv(2)(real) > 0)]
    return float(min(real, key=fit)) if len(real) else float("nan")


def moved_text(rows: list[dict], head: str | None = None) -> str:
    """Return the rows of `moved` as text, which names the head of a network with several."""
    of_head = f" by the head {head}" if head else ""
    what = f"moved elsewhere{of_head}, in structures that were not trained on"
    lines = [f"{what} (mean absolute changes):", f"  {'':<38}{'energy':>14}{'forces':>18}"]
    for row in rows:
        name, numbers = row["structures"], list(row.values())[-2:]
        if "number" in row:
            name, text = f"{row['number']:>3} {name}", "{:.0f} of {:.0f} meV/Å".format(*numbers)
        elif np.isfinite(numbers).all():
            text = "a {:.3f} to {:.3f} Å".format(*numbers)
        else:
            text = "no lattice constant"  # of one of the two networks
        energy = f"{row['energy_mev_per_atom']:.1f} meV/atom"
        lines.append(f"  {name:<38}{energy:>14}{text:>22}")
    return "\n".join(lines)
