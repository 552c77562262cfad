"""Triton's assembler takes what we write for every target."""

import os
import re
import subprocess
import sys
import types

import jax
import pytest

pytest.importorskip("triton")

from eqfuse.ops import _backend
from eqfuse.ops.backends.triton import compile, runtime
from eqfuse.ops.backends.triton.compile import compile_kernel
from tests.child import ROOT
from tests.ops.backends.triton.row_sum import spec

pytestmark = pytest.mark.usefixtures("empty_cache")


VERSIONS = {"8.7": (80, 90, 100, 101, 120), "8.8": (103, 121), "9.0": (110,)}


@pytest.mark.parametrize(
    ("target", "version"),
    [*((f"sm_{n}", version) for version, of in VERSIONS.items() for n in of), ("gfx942", None)],
)
def test_every_target_compiles(target, version):
    if version is not None:
        name = target + "a" * (int(target.removeprefix("sm_")) >= 90)  # as triton writes it
        programs = compile.of_triton(name).parent.glob("ptxas*")
        if not any(compile._knows(file, name) for file in programs):
            pytest.skip(f"no ptxas of this triton knows {target}")
    kernel = compile_kernel(spec(), target)
    if version is not None:
        assert f".version {version}\n.target {name}\n" in kernel.assembly
    assert spec().name in kernel.assembly
    assert 1 <= kernel.registers <= 64
    assert (kernel.spilled_bytes, kernel.shared_bytes) == (0, 0)
    assert kernel.binary.startswith(b"\x7fELF")
    assert "fma" not in kernel.assembly  # the kernel only adds


@pytest.mark.parametrize(
    ("target", "message"),
    [(t, "has waves of 32 threads.*backend='xla'") for t in ("gfx1030", "gfx1100", "gfx1201")]
    + [("h100", "is unknown; it looks like 'sm_90'")],
)
def test_unknown_targets_and_gpus_with_waves_of_32_are_refused(target, message):
    with pytest.raises(ValueError, match=f"'{target}' {message}"):
        compile_kernel(spec(), target)


def test_none_does_not_pick_triton_on_waves_of_32(monkeypatch):
    library = types.SimpleNamespace(TritonKernel=None)
    monkeypatch.setitem(sys.modules, "jaxlib.gpu_triton", library)
    monkeypatch.setattr("jaxlib.gpu_triton", library, raising=False)
    monkeypatch.setattr(_backend, "has_gpu", lambda: True)
    for name, reason in (("gfx942", ""), ("gfx1100", "gfx1100 has waves of 32")):
        devices = [types.SimpleNamespace(compute_capability=name)]
        monkeypatch.setattr(jax, "devices", lambda found=devices: found)
        assert reason in _backend._no_device("triton")
        assert bool(reason) == bool(_backend._no_device("triton"))


def device(capability, kind="GPU"):
    """Return what JAX says of a device."""
    platform = "cpu" if capability is None else "gpu"
    return types.SimpleNamespace(compute_capability=capability, device_kind=kind, platform=platform)


def test_different_gpus_in_one_process_are_refused():
    a100, h100 = device("8.0", "NVIDIA A100"), device("9.0", "NVIDIA H100")
    assert runtime.common_target([device(None)]) is None
    assert runtime.common_target([h100, h100]) == "sm_90"
    with pytest.raises(ValueError, match=r"A100 \(sm_80\), .*H100 \(sm_90\).*CUDA_VISIBLE_DEV"):
        runtime.common_target([h100, a100, h100][1:])


def test_a_lowering_refuses_different_gpus():
    client = types.SimpleNamespace(devices=lambda: [device("8.0"), device("9.0")])
    context = types.SimpleNamespace(module_context=types.SimpleNamespace(backend=client))
    with pytest.raises(ValueError, match="GPUs of several kinds"):
        runtime.target_of(context)


def test_a_triton_without_an_assembler_takes_that_of_cuda(tmp_path, monkeypatch):
    import triton

    own = compile.of_triton("sm_80")
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "triton" / "__init__.py"))
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.setenv("PATH", str(own.parent))
    assert compile_kernel(spec(), "sm_80").binary.startswith(b"\x7fELF")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no ptxas, and PATH neither; set TRITON_PTXAS_PATH"):
        compile.of_triton("sm_80")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(own))
    assert compile.of_triton("sm_80") == own


def test_an_unknown_target_is_left_to_triton():
    assert compile.ptx_version("sm_130") is None
    assert "ptx_version" not in compile.compile_options(spec(), "sm_130")


def test_the_advice_on_capturing_is_a_flag_of_xla():
    """The text for users names it; XLA ends the process for a flag or a value that it has not."""
    text = (ROOT / "docs" / "how-to" / "gpu.md").read_text()
    [row] = (line for line in text.splitlines() if "is capturing" in line)
    [flag] = re.findall(r"`XLA_FLAGS=(\S+)`", row)
    for value, accepted in ((flag, True), (f"{flag}S", False)):
        run = subprocess.run(
            [sys.executable, "-c", "import jax; jax.jit(abs)(1.0); print('ran')"],
            env={**os.environ, "XLA_FLAGS": value, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        assert ("ran" in run.stdout) == accepted, run.stderr[-300:]
