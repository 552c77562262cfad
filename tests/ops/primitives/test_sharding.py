"""Products of batches that are spread over several devices."""

import os
import pathlib
import subprocess
import sys

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from eqfuse import ops

HERE = pathlib.Path(__file__).parent
PROGRAMS = {
    # under jit with sharded operands and inside shard_map, values and gradients are e3nn's, and
    # inside shard_map the gradients of gradients are
    "sharded": (HERE / "sharded_program.py", 4, ["xla", "llvm", "triton"]),
    # on a mesh, sharded, replicated, on explicit axes and inside shard_map
    "sequence": (HERE.parent / "transforms/sharded_sequence.py", 4, ["llvm"]),
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


@pytest.mark.parametrize("backend", ["xla", "llvm"])
@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec(None, "data")])
def test_arrays_on_explicit_axes_are_refused(backend, spec):
    """Those of the kind of mesh that `jax.make_mesh` makes; what is not sharded runs there."""

    def product(x):
        x = e3nn.IrrepsArray("2x0e+2x1o", x)
        return ops.tensor_product(x, x, backend=backend).array

    x = jnp.ones((4, 3, 8), jnp.float32)
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        assert jax.jit(product)(x).shape == (4, 3, 64)
        for run in (product, jax.jit(product)):
            with pytest.raises(ValueError, match=r"call it inside jax\.shard_map"):
                run(jax.device_put(x, NamedSharding(mesh, spec)))
