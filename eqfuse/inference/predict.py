"""Energies, forces and stress of structures from a trained network.

The calculator and `eqfuse evaluate` load and run networks by this module alone.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from eqfuse.data import Batcher, Sample, Structure, prefetched
from eqfuse.data.samples import prepare_samples
from eqfuse.graph import Graph
from eqfuse.models import compile_predict
from eqfuse.train import CheckpointError, load_run, read_metadata


@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """What a network predicts for one structure.

    Attributes:
      energies: [n_atoms] eV, parts of the energy, with the reference energy of each atom.
      relative_energy: eV, without the reference energies.
      forces: [n_atoms, 3] eV/Å.
      stress: [3, 3] eV/Å^3, positive under tension; None without a cell, or if not asked for.
    """

    energies: np.ndarray
    relative_energy: float
    forces: np.ndarray
    stress: np.ndarray | None

    @property
    def energy(self) -> float:
        """Total energy, eV, with the reference energies."""
        return float(self.energies.sum())


class Network:
    """A trained potential that is ready to predict. It can be copied and pickled.

    Args:
      run: the folder of the run, or a file of its network (.safetensors).
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.

    Attributes:
      metadata: of the checkpoint, see `eqfuse.train.load_run`.
      dtype: the name of the floating-point type.
      species: sorted atomic numbers.
      cutoff: Å.
      references: [n_species] eV, the reference energy of each species.

    Raises:
      CheckpointError: no readable checkpoint.
      ValueError: another `which` or dtype, or a run that did not train a potential.
    """

    def __init__(self, run, *, which=None, dtype=None, backend=None):
        if dtype not in (None, "float32", "float64"):
            raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
        self.metadata = metadata = read_metadata(run, which=which)
        if metadata["potential"] is None:
            raise CheckpointError(
                f"{run} trained a classification (data=tetris), not a potential, so that there are "
                "no energies and forces"
            )
        self.dtype = dtype or metadata["config"]["dtype"]
        self.species = tuple(metadata["species"])
        self.cutoff = float(metadata["model_fields"]["cutoff"])
        self.references = np.array([metadata["reference_energies"][str(z)] for z in self.species])
        with self._precision():
            self._potential, params, _ = load_run(run, which=which, backend=backend)
            self._params = jax.tree.map(lambda p: p.astype(self.dtype), params)
        self._compiled = {}

    def __getstate__(self):
        # A copy, or one for another process, compiles for itself.
        params = jax.tree.map(np.asarray, self._params)
        return {**self.__dict__, "_params": params, "_compiled": {}}

    @property
    def num_compilations(self) -> int:
        """Number of programs that were compiled so far."""
        return sum(compiled._cache_size() for compiled in self._compiled.values())

    def compute(
        self, graph: Graph, samples: Sequence[Sample], *, stress: bool = True
    ) -> list[Predicted]:
        """Return the predictions for the samples that a graph was collated from, in order.

        Args:
          graph: see `eqfuse.data.collate`, in the dtype of this network.
          samples: whose first atoms are the first nodes of the graph.
          stress: whether stress is predicted where there is a cell.
        """
        if stress not in self._compiled:
            self._compiled[stress] = compile_predict(self._potential, stress=stress)
        with self._precision():
            prediction = jax.device_get(self._compiled[stress](self._params, graph))
        predicted, start = [], 0
        for k, sample in enumerate(samples):
            nodes = slice(start, start + sample.num_atoms)
            start = nodes.stop
            energies = np.asarray(prediction.node_energy[nodes], np.float64)
            periodic = stress and np.linalg.det(sample.cell) != 0
            predicted.append(
                Predicted(
                    energies=sample.in_structure(energies + self.references[sample.species]),
                    relative_energy=float(energies.sum()),
                    forces=sample.in_structure(np.asarray(prediction.forces[nodes], np.float64)),
                    stress=np.asarray(prediction.stress[k], np.float64) if periodic else None,
                )
            )
        return predicted

    @contextlib.contextmanager
    def _precision(self):
        # TF32 would cost three digits of the forces on a GPU.
        with jax.enable_x64(self.dtype == "float64"), jax.default_matmul_precision("highest"):
            yield


def predict(
    network: Network, structures: Sequence[Structure], *, batch_size: int = 16
) -> list[Predicted]:
    """Return energies, forces and stress of structures, in their order.

    Args:
      network: the trained network.
      structures: at least one; their labels are not read.
      batch_size: structures that are computed at once.
    Raises:
      DataError: an element that the network does not know, or two atoms at one place; names the
        structure.
    """
    samples = prepare_samples(structures, network.cutoff, network.species, None)
    batcher = Batcher(samples, batch_size, dtype=network.dtype)
    stress = any(structure.volume for structure in structures)
    batches = prefetched(batcher.batches(shuffle=False))
    return [
        predicted
        for batch, group in zip(batches, batcher.groups(shuffle=False), strict=True)
        for predicted in network.compute(batch.graph, [samples[i] for i in group], stress=stress)
    ]
