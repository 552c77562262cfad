"""Run by test_parallel.py in a process with two host devices."""

import dataclasses
import sys
import warnings

import jax
import numpy as np

from eqfuse import data, models
from eqfuse.models import predict
from eqfuse.train.metrics import Loss, error_sums
from eqfuse.train.parallel import find_devices
from eqfuse.train.step import initial_parameters

LOSS = Loss(energy=1.0, forces=1.0, stress=1.0, force_scale=1.0)
TOLERANCE = 1e-11
"""Error of gradients in float64 over the largest one: sums of some thousand terms, reordered."""


def results(potential, params, samples, devices):
    """Loss, error sums and gradient of each batch of 8 samples."""

    @devices.summed
    def errors(params, batch):
        prediction = predict(potential, params, batch.graph, stress=True)
        return error_sums(prediction, batch.labels, batch.graph)

    @jax.jit
    def step(params, batch):
        def loss(params):
            sums = errors(params, batch)
            return LOSS(sums), sums

        return jax.value_and_grad(loss, has_aux=True)(params)

    batcher = data.Batcher(samples, 8, dtype="float64", max_shapes=1, parts=devices.count)
    batches = map(devices.spread, batcher.batches(shuffle=False))
    params = devices.replicated(params)
    return [jax.device_get(step(params, batch)) for batch in batches]


def main(model: str, backend: str):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    several, one = find_devices("all"), find_devices("1")
    assert (several.count, several.own, several.is_main, one.count) == (2, [0, 1], True, 1)
    # 8 samples are unlike parts, of molecules and crystals; 1 leaves a device with padding only.
    # Some lack a label, so that a device may have none of it in its part of a batch.
    structures = [*data.read_embedded("ethanol")[:4], *data.read_embedded("lif")[:6]]
    for number, label in ((1, "energy"), (2, "forces"), (5, "stress"), (8, "forces")):
        structures[number] = dataclasses.replace(structures[number], **{label: None})
    dataset = data.Dataset.build(structures, cutoff=3.0, val_size=1)
    species = len(dataset.species)
    settings = {"num_species": species, "channels": 2, "layers": 1, "lmax": 1, "cutoff": 3.0}
    network = models.build(model, irreps_out="0e", backend=backend, **settings)
    potential = models.Potential(network, scale=(1.0,) * species, shift=(0.0,) * species)
    graph = next(data.Batcher(dataset.train, 9).batches()).graph
    params = initial_parameters(potential, 0, graph, "float64")
    found = [results(potential, params, dataset.train, devices) for devices in (one, several)]
    assert len(found[0]) == 2
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * max(np.abs(a).max(), 1e-3))
    assert all(
        max(np.abs(g).max() for g in jax.tree.leaves(gradient)) > 0 for _, gradient in found[1]
    )
    print("parallel ok")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main(*sys.argv[1:])
