"""Gradients of the fused ops through `jax.shard_map`, which checks what varies over the devices."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.ops import tiers


@pytest.mark.slow
@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], "xla", "llvm", "triton-interpret"))
def test_two_host_devices(backend):
    """Gradients of data and parameters, first and second order, are those of e3nn, half by half."""
    if backend == "triton-interpret":
        pytest.importorskip("triton", reason="the interpreter is part of triton")
    flags = "--xla_force_host_platform_device_count=2"
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    program = pathlib.Path(__file__).parent / "shard_map_program.py"
    result = subprocess.run(
        [sys.executable, program, backend],
        capture_output=True,
        text=True,
        env={**os.environ, **flags},
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "gradients ok" in result.stdout
