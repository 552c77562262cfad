"""One of several processes: adds up forces of stored frames, and prints which of these it read."""

import json
import sys

import jax.numpy as jnp

from eqfuse.data import Batcher
from eqfuse.data.samples import species_table
from eqfuse.data.store import StoredSamples, samples_of, store_structures
from eqfuse.train.parallel import find_devices

_, _, path, folder = sys.argv
devices = find_devices("distributed")
stored = store_structures([path], folder=folder)
samples = samples_of(stored, 3.0, species_table(stored), dict.fromkeys(species_table(stored), 0.0))
batcher = Batcher(samples, 5, parts=devices.count, own=devices.own)
read, item = [], StoredSamples.item


def recorded(self, k):
    read.append(int(self.indices[k]))
    return item(self, k)


StoredSamples.item = recorded
squares = devices.summed(lambda _, batch: jnp.sum(batch.labels.forces**2))
total = sum(float(squares(0.0, devices.spread(batch))) for batch in batcher.batches(epoch=3))
print(json.dumps({"read": read, "sum": total}))
