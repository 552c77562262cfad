"""Products of batches that are spread over several devices."""

import os
import pathlib
import subprocess
import sys

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.launches import H100
from eqfuse import ops

HERE = pathlib.Path(__file__).parent
PROGRAMS = {
    # under jit with sharded operands and inside shard_map, values and gradients are e3nn's, and
    # inside shard_map the gradients of gradients are
    "sharded": (HERE / "sharded_program.py", 4, ["xla", "llvm", "triton"]),
    # on a mesh, sharded, replicated, on explicit axes and inside shard_map
    "sequence": (HERE.parent / "transforms/sequence/sharded_sequence.py", 4, ["llvm"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"), [(name, b) for name, (*_, backends) in PROGRAMS.items() for b in backends]
)
def test_several_host_devices(name, backend):
    if backend == "triton":
        pytest.importorskip("triton", reason="the interpreter is part of triton")
    program, devices, _ = PROGRAMS[name]
    result = subprocess.run(
        [sys.executable, program, backend],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(HERE.parents[2]),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        },
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith(" ok\n")


def test_every_gpu_computes_its_own_rows():
    """Compiled for four H100s, forward and backward launch on 2 of 8 rows and move nothing."""
    pytest.importorskip("triton", reason="kernels are compiled by triton")
    topologies = pytest.importorskip("jax.experimental.topologies")
    try:
        topology = topologies.get_topology_desc(
            "", platform="cuda", topology="1x1x4", target_config=H100.read_text()
        )
    except Exception as error:  # jax raises different types where the plug-in is missing
        pytest.skip(f"jax's CUDA plug-in is not installed: {error}")
    mesh = Mesh(np.array(topology.devices), ("data",))
    by_row = NamedSharding(mesh, PartitionSpec("data", None))

    def product(x, y):
        return ops.tensor_product(
            e3nn.IrrepsArray("5x0e+5x1o", x), e3nn.IrrepsArray("0e+1o", y), backend="triton"
        ).array

    def backward(x, y, cotangent):
        return jax.vjp(product, x, y)[1](cotangent)

    shapes = [jax.ShapeDtypeStruct((8, n), jnp.float32, sharding=by_row) for n in (20, 4, 80)]
    for function, arguments in ((product, shapes[:2]), (backward, shapes)):
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
        text = lowered.compile().as_text()
        assert text.count("custom-call(") == 1
        assert "f32[2,80]" in text
        assert "f32[8," not in text
        assert not any(word in text for word in ("all-gather", "all-reduce", "all-to-all"))
