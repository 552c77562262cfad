"""Compare the presets, or a run, with radial functions from tables and from networks, in float64.

    python -m benchmarks.steps.radial_accuracy [--only TEXT] [--in-box] SETTING=VALUE ...
    python -m benchmarks.steps.radial_accuracy --run RUN [--in-box] SETTING=VALUE ...

Settings are those of `eqfuse train`, of the data at least: `data=FILE`. The first training frame is
computed with the initial parameters of each preset, or with those of a run. A table has the knots
that a run would choose by its bound. Printed are the largest differences of the energy, forces,
stress and the gradient of a loss on energy and forces by all parameters, relative to the largest
number, and the error of slopes that a run reports.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import models
from eqfuse.data import Shape, collate
from eqfuse.train import load_run
from eqfuse.train.molecule import build_potential, load_dataset
from eqfuse.train.settings.options import PRESETS, parse
from eqfuse.train.step import initial_parameters

BOX = 30.0
"""Edge of the cell of a molecule, Å, whose stress is compared, too."""
LABELS = "energy", "forces", "stress", "gradient"


def results(potential, params, batch) -> dict:
    """Return energy, forces and stress, and the gradients of a loss by all parameters."""

    def loss(params):
        out = models.predict(potential, params, batch.graph, stress=True)
        energy = jnp.sum((out.energy - batch.labels.energy) ** 2)
        return energy + jnp.sum((out.forces - batch.labels.forces) ** 2), out

    gradient, out = jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(params))
    return {name: getattr(out, name) for name in LABELS[:-1]} | {"gradient": gradient}


def differences(found: dict, exact: dict) -> list[float]:
    """Return the largest difference for each of `LABELS`, relative to the largest number."""
    errors = []
    for name in LABELS:
        pairs = list(zip(*map(jax.tree.leaves, (found[name], exact[name])), strict=True))
        errors.append(max(np.abs(a - b).max() for a, b in pairs))
        errors[-1] /= max(np.abs(b).max() for _, b in pairs)
    return errors


def batch_of(sample):
    """Return a batch of one sample, in float64."""
    return collate([sample], Shape(sample.num_atoms + 1, sample.num_edges, 2), np.float64)


def row(name: str, potential, params, sample) -> str:
    """Return a row of the table."""
    batch = batch_of(sample)
    with_model = functools.partial(dataclasses.replace, potential.model)
    tables = potential.clone(model=with_model(radial="table", radial_knots=None))
    tables, accuracy = models.with_knots(tables, params, sample.num_edges)
    exact = results(potential.clone(model=with_model(radial="network")), params, batch)
    errors = differences(results(tables, params, batch), exact)
    cells = [name, f"{sample.num_edges}", f"{accuracy.knots}"]
    cells += [f"{error:.0e}".replace("e-0", "e-") for error in (*errors, accuracy.error)]
    return f"| {' | '.join(cells)} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("settings", nargs="+", help="of eqfuse train, data=FILE among them")
    parser.add_argument("--only", default="", help="only presets whose name contains this")
    parser.add_argument("--run", help="the folder of a run, whose network is compared")
    parser.add_argument("--in-box", action="store_true", help=f"in a cell of {BOX:.0f} Å")
    options = parser.parse_args()
    names = [(m, p) for m in PRESETS for p in PRESETS[m] if options.only in f"{m}-{p}"]
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        for model, preset in names[:1] if options.run else names:
            config = parse([*options.settings, f"model={model}", f"preset={preset}"])
            if options.run:
                potential, params, metadata = load_run(options.run)
                cutoff = metadata["model_fields"]["cutoff"]
                config = parse([*options.settings, "model=nequip", f"cutoff={cutoff}"])
            dataset, _ = load_dataset(config)
            sample = dataset.train[0]
            if options.in_box:
                sample = dataclasses.replace(sample, cell=BOX * np.eye(3))
            if not options.run:
                potential, _ = build_potential(config.model, dataset, None)
                graph = batch_of(sample).graph
                params = initial_parameters(potential, config.seed, graph, "float64")
            params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), params)
            print(row(options.run or f"{model}, {preset}", potential, params, sample), flush=True)


if __name__ == "__main__":
    main()
