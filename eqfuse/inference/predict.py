"""Energies, forces and stress of structures from a trained network.

The calculator and `eqfuse evaluate` load and run networks by this module alone.
"""

import contextlib
import glob
import os
from collections.abc import Sequence
from pathlib import Path

import ase
import jax
import numpy as np

from eqfuse import models
from eqfuse.data import Batcher, DataError, Sample, Structure, prefetched, read_structures
from eqfuse.data.samples import prepare_samples
from eqfuse.graph import Graph
from eqfuse.inference.predicted import Predicted, mean_of
from eqfuse.models import compile_predict
from eqfuse.models.radial_table import choose
from eqfuse.train import CheckpointError, load_run, read_metadata

_ATOMS_AT_ONCE = 4096  # of a batch; memory of a network is kilobytes for each of their pairs


class Network:
    """A trained potential that is ready to predict. It can be copied and pickled.

    Args:
      run: the folder of the run, or a file of its network (.safetensors).
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.
      radial: "network", "table" or "auto", see `eqfuse.models.radial_table`; None for that of the
        run. Tables are computed here, once, and not in every call; auto has them for a run that was
        trained with them.

    Attributes:
      metadata: of the checkpoint, see `eqfuse.train.load_run`.
      dtype: the name of the floating-point type.
      species: sorted atomic numbers.
      cutoff: Å.
      references: [n_species] eV, the reference energy of each species.

    Raises:
      CheckpointError: no readable checkpoint.
      ValueError: another `which`, dtype or `radial`, or a run that did not train a potential.
    """

    def __init__(self, run, *, which=None, dtype=None, backend=None, radial=None):
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
            potential, params, _ = load_run(run, which=which, backend=backend)
            radial = radial or potential.model.radial
            if radial == "auto":  # not by the number of edges, which differs from call to call
                radial = "table" if "radial" in metadata else "network"
            if radial != potential.model.radial:
                potential = potential.clone(model=potential.model.clone(radial=radial))
                choose(potential.model, 0)  # refuses what is none
            self._potential = potential
            self._params = jax.tree.map(lambda p: p.astype(self.dtype), params)
            if radial == "table":
                self._params = models.with_tables(self._potential, self._params)
        self._compiled = {}

    def __getstate__(self):
        # A copy, or one for another process, compiles for itself.
        params = jax.tree.map(np.asarray, self._params)
        return {**self.__dict__, "_params": params, "_compiled": {}}

    @property
    def num_compilations(self) -> int:
        """Return the number of programs that were compiled so far."""
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


def find_runs(run) -> list:
    """Return the runs that a name stands for: one, or those of a committee.

    Args:
      run: the folder of a run, a file of its network, a folder that holds runs, a pattern such as
        "runs/seed*", or a sequence of these.
    Raises:
      CheckpointError: a pattern or sequence of no run.
    """
    if isinstance(run, Sequence) and not isinstance(run, str):
        if not run:
            raise CheckpointError("no run is given; name at least one")
        return [found for one in run for found in find_runs(one)]
    path = Path(run).expanduser()
    if path.exists() or not any(mark in str(run) for mark in "*?["):
        inside = [] if (path / "checkpoints").exists() else sorted(path.glob("*/checkpoints"))
        return [folder.parent for folder in inside] or [run]
    matches = sorted(glob.glob(str(path)))
    if not matches:
        raise CheckpointError(f"no run matches {run}")
    return [Path(match) for match in matches]


def require_different(runs: list) -> list:
    """Return runs, if none of them is given twice.

    Raises:
      CheckpointError: one is.
    """
    places = [Path(one).expanduser().resolve() for one in runs]
    if twice := [place for place in places if places.count(place) > 1]:
        raise CheckpointError(f"{twice[0]} is given twice; a committee needs different networks")
    return runs


def load_networks(run, *, which=None, dtype=None, backend=None) -> list[Network]:
    """Return the trained networks of a run or a committee.

    Args:
      run: see `find_runs`; or a `Network`, or several.
      which, dtype, backend: see `Network`.
    Raises:
      CheckpointError, ValueError: see `Network`; a run that is given twice.
    """
    if isinstance(run, Network):
        return [run]
    if isinstance(run, Sequence) and run and all(isinstance(one, Network) for one in run):
        return list(run)
    runs = require_different(find_runs(run))
    return [Network(one, which=which, dtype=dtype, backend=backend) for one in runs]


def predict(
    run, structures, *, batch_size: int | None = None, which=None, dtype=None, backend=None
) -> list[Predicted]:
    """Return energies, forces and stress of structures, in their order.

        [predicted] = eqfuse.predict("runs/first", atoms)

    Args:
      run: the folder of a run, a file of its network, or a committee, whose mean and spread are
        returned: a folder of runs, a pattern, or a sequence of runs; or a `Network`, or several.
      structures: a file that `eqfuse.data.read_structures` reads, `ase.Atoms`, a `Structure`, or a
        sequence of these two; their labels are not read.
      batch_size: structures that are computed at once; None for 16, and fewer large ones.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.
    Raises:
      CheckpointError: no readable checkpoint.
      DataError: a file that cannot be read, no structures, an element that a network does not know,
        or two atoms at one place; names the structure.
      ValueError: another `which` or dtype, or a run that did not train a potential.
    """
    networks = load_networks(run, which=which, dtype=dtype, backend=backend)
    structures = as_structures(structures)
    if not structures:
        raise DataError("there are no structures to predict")
    if batch_size is None:
        most = max(structure.num_atoms for structure in structures)
        batch_size = max(1, min(16, _ATOMS_AT_ONCE // most))
    prepared, members = {}, []
    for network in networks:
        key = network.cutoff, network.species
        if key not in prepared:
            prepared[key] = prepare_samples(structures, *key, None)
        members.append(_predictions(network, prepared[key], batch_size))
    return [mean_of(predicted) for predicted in zip(*members, strict=True)]


def as_structures(structures) -> list[Structure]:
    if isinstance(structures, str | os.PathLike):
        return read_structures(structures, require_labels=False)
    if isinstance(structures, ase.Atoms | Structure):
        structures = [structures]
    return [
        Structure(one.numbers, one.positions, one.cell.array, one.pbc, origin=f"atoms {n}")
        if isinstance(one, ase.Atoms)
        else one
        for n, one in enumerate(structures)
    ]


def _predictions(network: Network, samples, batch_size: int) -> list[Predicted]:
    batcher = Batcher(samples, batch_size, dtype=network.dtype)
    stress = any(np.linalg.det(sample.cell) != 0 for sample in samples)
    batches = prefetched(batcher.batches(shuffle=False))
    return [
        predicted
        for batch, group in zip(batches, batcher.groups(shuffle=False), strict=True)
        for predicted in network.compute(batch.graph, [samples[i] for i in group], stress=stress)
    ]
