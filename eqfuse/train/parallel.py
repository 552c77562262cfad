"""The devices of a run, of one or several processes: data parallel training, and precision."""

import contextlib
import os
import re
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eqfuse import ops
from eqfuse.runs.errors import ConfigError, TrainingFailed

_AXIS = "data"
_FIRST_WITH_TF32 = 8.0  # compute capability


class Devices:
    """The devices of a run; make one with `find_devices`.

    Each has a part of every batch, the same parameters and the same optimiser state. They are two
    or more, of all processes, those of a process next to each other; None for one device, and
    programs that know of no others.
    """

    def __init__(self, devices: list | None = None):
        here = jax.process_index() if devices else 0
        self.count = len(devices or [None])
        # the numbers of those of this process, and whether it is the one that writes and prints
        self.own = [k for k, d in enumerate(devices or []) if d.process_index == here] or [0]
        self.is_main = here == 0
        self._several = len({d.process_index for d in devices or []}) > 1
        self._mesh = Mesh(np.array(devices), (_AXIS,)) if devices else None

    def summed(self, function: Callable) -> Callable:
        """Return `function(params, batch)`, a pytree of sums, of `spread` batches; differentiable.

        It is summed over the parts of a batch, and so are its gradients.
        """
        if self._mesh is None:
            return function

        def of_part(params, batch):
            batch = jax.tree.map(lambda a: a[0], batch)
            return jax.lax.psum(function(params, batch), _AXIS)

        # Unchecked: the derivatives of fused ops are linear transposes, which do not declare what
        # varies between devices. With automatic sharding every device would do all of a graph.
        specs = {"in_specs": (PartitionSpec(), PartitionSpec(_AXIS)), "out_specs": PartitionSpec()}
        return jax.shard_map(of_part, mesh=self._mesh, **specs, check_vma=False)

    def part(self, batch):
        """Return the part of a batch of this process's first device, before it is `spread`."""
        return batch if self._mesh is None else jax.tree.map(lambda a: a[0], batch)

    def spread(self, batch):
        """Return the parts of a batch that this process made, each put on its device, stacked."""
        return self._placed(batch, PartitionSpec(_AXIS))

    def replicated(self, tree):
        """Return a pytree of arrays that every process has alike, on all devices."""
        return self._placed(tree, PartitionSpec())

    def _placed(self, tree, how: PartitionSpec):
        if self._mesh is None:
            return tree
        place, sharding = jax.make_array_from_process_local_data, NamedSharding(self._mesh, how)
        return jax.tree.map(lambda a: place(sharding, np.asarray(a)), tree)

    def agreed(self, elapsed: float, signum: int | None) -> tuple[float, int | None]:
        """Return the time of the main process, and the signal that any process has received.

        All processes have to ask at the same place: what they do next must not differ.
        """
        if not self._several:
            return elapsed, signum
        gathered = multihost_utils.process_allgather(np.array([elapsed, signum or 0]))
        return float(gathered[0, 0]), int(gathered[:, 1].max()) or None

    @contextlib.contextmanager
    def together(self):
        """Return a context that fails in every process if it does in one of them."""
        if not self._several:
            yield
            return
        error = None
        try:
            yield
        except Exception as caught:
            error = caught
        failed = multihost_utils.process_allgather(np.array(error is not None))
        if error is not None:
            raise error
        if failed.any():
            raise TrainingFailed(f"process {int(failed.argmax())} failed; see its output")


def find_devices(setting: str) -> Devices:
    """Return the devices that `devices=` asks for; join the other processes if there are any."""
    if setting == "distributed":  # before anything else uses JAX
        variables = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
        given = {name: int(os.environ[v]) for name, v in variables.items() if v in os.environ}
        try:
            jax.distributed.initialize(**given)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                "devices=distributed: the other processes cannot be found "
                f"({str(error).splitlines()[0]}); start every process by Slurm or Open MPI, or set "
                "JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
            ) from error
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    else:
        devices = jax.local_devices()
    if setting.isdecimal():
        count = int(setting)
        if count > len(devices):
            raise ConfigError(
                f"devices={count}: {len(devices)} {devices[0].platform.upper()} "
                f"device{'s' if len(devices) > 1 else ''} found; devices=all uses all of them"
            )
        devices = devices[:count]
    return Devices(devices if len(devices) > 1 else None)


def matmul_precision(asked: str, dtype: str, device: jax.Device) -> str:
    """Return the precision of matmuls by JAX's name; `asked` is `precision` of a run.

    TF32 alone would cost three digits of the forces; in three products it has the errors of
    float32, see `benchmarks/steps/precision.py`.
    """
    capability = str(getattr(device, "compute_capability", ""))  # "9.0", or "gfx942" of AMD
    number = device.platform == "gpu" and re.fullmatch(r"\d+\.\d+", capability)
    capable = number and float(capability) >= _FIRST_WITH_TF32
    return ops.TF32X3 if capable and asked != "highest" and dtype == "float32" else "highest"
