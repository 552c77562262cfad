"""Products of batches that are spread over several devices."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
PROGRAMS = {
    # under jit with sharded operands and inside shard_map, values and gradients are e3nn's, and
    # inside shard_map the gradients of gradients are; explicit axes are refused
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
