"""Plots of a run: learning curves, and parity on the validation set."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import plots
from eqfuse.data import Batcher, Dataset
from eqfuse.models import Potential, compile_predict
from eqfuse.train.run.checkpoint import read_checkpoint
from eqfuse.train.run.runs import RunFolder, read_log
from eqfuse.train.settings.config import Config


def plot_batcher(config: Config, dataset: Dataset) -> Batcher:
    """Return batches of the validation samples for one device."""
    return Batcher(dataset.val, config.data.batch_size, dtype=config.dtype)


def plot_run(folder: RunFolder, potential: Potential, validation: Batcher):
    """Write learning.png, and parity.png of the validation set, where a run has ended an epoch.

    A plot that cannot be written is a warning: the training is done.
    """
    if not folder.metrics.exists():
        return
    try:
        read_log(folder.metrics)
        plots.learning_curves(folder.metrics, folder.path / "learning.png")
        params, metadata, _ = read_checkpoint(folder.path, ("best", "last"))
        params = jax.tree.map(jnp.asarray, params)
        energies, forces, stress = parity_data(potential, params, validation)
        title = (
            f"{folder.path.name}, epoch {metadata['epoch']}: {len(energies[0])} validation frames"
        )
        plots.parity(energies, forces, folder.path / "parity.png", stress, title)
    except (OSError, ValueError) as error:
        print(f"warning: the plots cannot be drawn: {error}", file=sys.stderr)


def parity_data(potential: Potential, params, batcher: Batcher):
    """Return for each quantity the (reference, predicted) values; no stress if no frame has one.

    Returns:
      energies per atom [n] eV/atom, forces [n_atoms, 3] eV/Å, stresses [n, 3, 3] eV/Å^3 or ().
    """
    with_stress = any(sample.stress is not None for sample in batcher.samples)

    predicted = compile_predict(potential, stress=with_stress)
    energies, forces, stresses = ([], []), ([], []), ([], [])
    for batch in batcher.batches(shuffle=False):
        prediction, labels = jax.device_get(predicted(params, batch.graph)), batch.labels
        graphs, nodes = np.asarray(batch.graph.graph_mask), np.asarray(batch.graph.node_mask)
        for k, values in enumerate((labels, prediction)):
            energies[k].append((values.energy / labels.num_atoms)[graphs])
            forces[k].append(values.forces[nodes])
            if with_stress:
                stresses[k].append(values.stress[graphs & np.asarray(labels.stress_mask)])
    joined = [tuple(map(np.concatenate, pair)) for pair in (energies, forces)]
    return *joined, tuple(map(np.concatenate, stresses)) if with_stress else ()
