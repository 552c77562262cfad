"""Compile functions for an H100 ahead of time, without a GPU, and count what they launch."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import tempfile
import time

import jax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

H100 = pathlib.Path(__file__).with_name("h100.txtpb")


class PluginMissingError(RuntimeError):
    """jax's CUDA plug-in, which compiles for a GPU, is not installed."""


@dataclasses.dataclass(frozen=True)
class Launches:
    """What one call of a compiled function issues.

    Attributes:
      launches: kernels, library calls and copies.
      custom_calls: those among them that are our own kernels and library calls.
      temp_bytes: scratch memory that XLA allocates for intermediates.
      compile_s: seconds of lowering and compiling, our own kernels included.
      kinds: launches by XLA's name of their kind.
      graphs, recorded: CUDA graphs, and the launches that are recorded in them.
    """

    launches: int
    custom_calls: int
    temp_bytes: int
    compile_s: float
    kinds: dict[str, int]
    graphs: int
    recorded: int


def device(description: pathlib.Path = H100):
    """Return the GPU of a description, as a jax device to compile for.

    Raises:
      PluginMissingError: jax's CUDA plug-in is missing, or JAX did not take it.
    """
    try:
        topology = topologies.get_topology_desc(
            "", platform="cuda", topology="1x1x1", target_config=description.read_text()
        )
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise PluginMissingError(
            f"cannot compile for {description.stem}: jax's CUDA plug-in is missing, of another "
            "version, or refuses to start, which JAX_PLATFORMS=cpu prevents; "
            f"pip install jax[cuda13-local]=={jax.__version__} ({error})"
        ) from error
    return topology.devices[0]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A function compiled for a GPU.

    Attributes:
      text: of its HLO after all passes.
      thunks: the sequence of what it launches, as XLA writes it.
      passed: the same with what is recorded in CUDA graphs, indented below them.
      temp_bytes, compile_s: see `Launches`.
    """

    text: str
    thunks: str
    passed: str
    temp_bytes: int
    compile_s: float

    @property
    def launches(self) -> Launches:
        kinds = collections.Counter(re.findall(r"^\s*\d+: (k\w+)", self.thunks, re.MULTILINE))
        del kinds["kDynamicSliceFusion"]  # issues nothing itself: the call that it holds is listed
        return Launches(
            launches=kinds.total(),
            custom_calls=kinds["kCustomCall"],
            temp_bytes=self.temp_bytes,
            compile_s=self.compile_s,
            kinds=dict(kinds),
            graphs=len(re.findall(r"^\d+: kCommandBuffer", self.passed, re.MULTILINE)),
            recorded=len(re.findall(r"^ +\d+: k(?!DynamicSlice)\w+", self.passed, re.MULTILINE)),
        )


def compiled(function, args, gpu=None) -> Compiled:
    """Compile `function` for one GPU, an H100 if none is given.

    Args:
      function: what would be jitted.
      args: its arguments, arrays or jax.ShapeDtypeStructs in any pytree.
      gpu: a device, as from `device`.
    Raises:
      PluginMissingError: jax's CUDA plug-in is missing.
    """
    sharding = NamedSharding(Mesh([gpu or device()], ("x",)), PartitionSpec())
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), args)
    start = time.perf_counter()
    lowered = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as folder:
        result = lowered.compile(compiler_options={"xla_dump_to": folder})
        seconds = time.perf_counter() - start
        names = "*thunk_sequence.txt", "*thunk_sequence_after_thunk_passes.txt"
        dumps = ([path.read_text() for path in pathlib.Path(folder).glob(name)] for name in names)
        thunks, passed = (max(texts, key=len, default="") for texts in dumps)
    memory = result.memory_analysis()
    return Compiled(result.as_text(), thunks, passed, memory.temp_size_in_bytes, round(seconds, 1))


def count(function, args, gpu=None) -> Launches:
    """Return the launches of `function`; arguments as of `compiled`."""
    return compiled(function, args, gpu).launches
