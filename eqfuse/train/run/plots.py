"""Plots of a run: learning curves, and parity on the validation set."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import plots
from eqfuse.data import Batcher, Dataset
from eqfuse.data.structures import LABELS, count_labelled
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
        count = len(validation.samples)
        title = f"{folder.path.name}, epoch {metadata['epoch']}: {count} validation frames"
        plots.parity(energies, forces, folder.path / "parity.png", stress, title)
    except (OSError, ValueError) as error:
        print(f"warning: the plots cannot be drawn: {error}", file=sys.stderr)


def parity_data(potential: Potential, params, batcher: Batcher):
    """Return for each quantity the (reference, predicted) values where the reference is known.

    Returns:
      energies per atom [n] eV/atom, forces [n_atoms, 3] eV/Å, stresses [n, 3, 3] eV/Å^3; () for a
      label that no frame has.
    """
    known = {name: count_labelled(batcher.samples, name) > 0 for name in LABELS}
    predicted = compile_predict(potential, stress=known["stress"])
    pairs = {name: ([], []) for name, some in known.items() if some}
    for batch in batcher.batches(shuffle=False):
        prediction, labels = jax.device_get(predicted(params, batch.graph)), batch.labels
        for name, pair in pairs.items():
            mask = np.asarray(getattr(labels, f"{name}_mask"))  # False in the padding
            for part, values in zip(pair, (labels, prediction), strict=True):
                value = getattr(values, name)
                value = value / labels.num_atoms if name == "energy" else value
                part.append(value[mask])
    return tuple(tuple(map(np.concatenate, pairs.get(name, ()))) for name in LABELS)
