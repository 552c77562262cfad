"""LoRA: a network is tuned by a product of two narrow matrices beside each of its matrices."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import yaml

from eqfuse.train.flat import Flat
from eqfuse.train.run.checkpoint import Checkpoints, read_checkpoint
from eqfuse.train.run.files import CheckpointError, RunFolder, require_one_head
from eqfuse.train.start import of_elements


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Matrices W + a b / sqrt(rank) of a network, of which a [rows, rank] and b [rank, columns].

    It has Linears and dense layers; a matrix that has fewer numbers than its a and b is trained
    itself, as a change of W, and all other parameters stay as they are. Before the first step b is
    zero, and the network is as it was.

    Attributes:
      base: the variables of the network before.
      initial: what is trained: a nested dict with `a` and `b`, or `change`, by parameter.
      layout: of what is trained, in one array, once it is known.

    References: Hu et al. 2021, arXiv:2106.09685.
    """

    base: dict
    initial: dict
    layout: Flat | None = None

    @classmethod
    def of(cls, params: dict, rank: int, seed: int) -> "Adapter":
        """Return the adapter of a network, whose a are random."""
        leaves, _ = jax.tree.flatten_with_path(params)
        initial: dict = {}
        for number, (path, w) in enumerate(leaves):
            *above, name = [key.key for key in path]
            if w.ndim != 2 or not name.startswith(("w[", "kernel")):
                continue
            rows, columns = w.shape
            parts = {"change": jnp.zeros_like(w)}
            if rank * (rows + columns) < rows * columns:
                key = jax.random.fold_in(jax.random.key(seed), number)
                a = jax.random.normal(key, (rows, rank), w.dtype)
                parts = {"a": a, "b": jnp.zeros((rank, columns), w.dtype)}
            node = initial
            for key in above:
                node = node.setdefault(key, {})
            node[name] = parts
        return cls(params, initial)

    def merged(self, trained: dict) -> dict:
        """Return the variables of the network with what was trained."""
        return _merged(self.base, trained)

    def flatten(self, trained: dict) -> jax.Array:
        """Return what is trained as one array."""
        return self.layout.flatten(trained)

    def unflatten(self, array) -> dict:
        """Return the variables of the network for such an array."""
        return self.merged(self.layout.unflatten(array))


def merge_adapter(adapter, network, run):
    """Write the network of a run with `adapter=lora`, of its adapter alone, to the folder of a run.

    Args:
      adapter: the file `adapter.safetensors` of that run, of its best network.
      network: the run, or file, that it started from.
      run: the folder to write, which must not exist.
    Raises:
      CheckpointError: files that cannot be read, no adapter, or one of another network.
      ConfigError: the folder exists or cannot be written.
    """
    trained, metadata, _ = read_checkpoint(adapter, ("best",))
    if not metadata.pop("is_adapter", False):
        raise CheckpointError(f"{adapter} is no adapter, which a run with adapter=lora writes")
    require_one_head(network)
    params, theirs, _ = read_checkpoint(network, ("best", "last"))
    started = metadata["started_from"]
    if theirs["arrays_sha256"] != started["arrays_sha256"]:
        raise CheckpointError(
            f"{adapter} is an adapter of another network than that in {network}: it started from "
            f"{started['run']}; give this one, as it was"
        )
    if theirs["species"] != metadata["species"]:
        params, _ = of_elements(params, theirs, metadata["species"])
    dtype = metadata["config"]["dtype"]
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(lambda p: jnp.asarray(p, dtype), params)
        merged = jax.device_get(Adapter(params, trained).merged(trained))
    folder = RunFolder(run, yaml.safe_dump(metadata["config"], sort_keys=False))
    with contextlib.closing(folder):
        checkpoints = Checkpoints(folder.checkpoints, metadata)
        checkpoints.offer("best", metadata["step"], lambda: merged, {})
        checkpoints.flush()


def _merged(base, trained: dict):
    if "change" in trained:
        return base + trained["change"]
    if "a" in trained:
        a, b = trained["a"], trained["b"]
        return base + (a @ b) * a.shape[1] ** -0.5
    return base | {name: _merged(base[name], own) for name, own in trained.items()}
