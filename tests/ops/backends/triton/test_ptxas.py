"""The assemblers: triton's takes what we write for every target, and XLA's is found and asked."""

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import types

import jax
import pytest

pytest.importorskip("triton")

from eqfuse.ops import _backend, info
from eqfuse.ops.backends.triton import compile, runtime
from eqfuse.ops.backends.triton.compile import compile_kernel

ROOT = pathlib.Path(__file__).parents[4]
case = runpy.run_path(str(pathlib.Path(__file__).with_name("row_sum.py")))
spec = case["spec"]


pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.mark.parametrize(
    ("target", "version"),
    [
        ("sm_80", "8.7"),
        ("sm_90", "8.7"),
        ("sm_100", "8.7"),
        ("sm_101", "8.7"),
        ("sm_103", "8.8"),
        ("sm_110", "9.0"),
        ("sm_120", "8.7"),
        ("sm_121", "8.8"),
    ],
)
def test_every_nvidia_target_compiles(target, version):
    program = compile.of_triton(compile.architecture(target))
    programs = program.parent.glob("ptxas*")
    if not any(compile._knows(file, compile.architecture(target)) for file in programs):
        pytest.skip(f"no ptxas of this triton knows {target}")
    compiled = compile_kernel(spec(), target)
    assert f".version {version}\n.target {compile.architecture(target)}\n" in compiled.assembly
    assert compiled.binary.startswith(b"\x7fELF")
    assert not compile.unsupported_reason(program, target)


@pytest.mark.parametrize("target", ["gfx1030", "gfx1100", "gfx1201"])
def test_gpus_with_waves_of_32_are_refused(target):
    with pytest.raises(ValueError, match=f"'{target}' has waves of 32 threads.*backend='xla'"):
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


def program(folder: pathlib.Path, version: str) -> pathlib.Path:
    """Write a ptxas that says that it is of this version of CUDA, and assembles as triton's."""
    folder.mkdir(parents=True)
    file = folder / "ptxas"
    said = f"Cuda compilation tools, release 1, V{version}"
    real = compile.of_triton("sm_90a")
    file.write_text(
        f'#!/bin/sh\ntest "$1" = --version && echo "{said}" && exit\nexec "{real}" "$@"\n'
    )
    file.chmod(0o700)
    return file


def test_what_is_too_old_or_has_a_bug_is_passed_over(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in "abcd"]
    found = [
        program(folder, version)
        for folder, version in zip(
            folders, ("11.7.99", "12.3.103", "12.9.1", "13.0.1"), strict=True
        )
    ]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    monkeypatch.chdir(tmp_path)
    assert compile.found_by_xla(tmp_path / "plugin") == found[2]
    current = program(tmp_path / "bin", "12.8.1")
    assert compile.found_by_xla(tmp_path / "plugin") == current
    shutil.rmtree(current.parent)
    monkeypatch.setenv("PATH", "")
    packaged = program(tmp_path / "nvidia" / "cu13" / "bin", "13.0.1")
    system = pathlib.Path("/usr/local/cuda/bin/ptxas")
    expected = system if compile.version(system) else packaged
    assert compile.found_by_xla(tmp_path / "plugin") == expected


def test_it_is_the_one_that_xla_takes(tmp_path, monkeypatch):
    """XLA logs which it takes, and which it passes over, when it assembles PTX."""
    from jaxlib import gpu_triton

    if not (hasattr(gpu_triton, "TritonKernel") and runtime.takes_cubins()):
        pytest.skip("needs jaxlib 0.11.1, which assembles ahead of time, and its CUDA plug-in")
    monkeypatch.chdir(tmp_path)
    old, bug, good = (
        program(tmp_path / name, version)
        for name, version in (("a", "11.7.99"), ("b", "12.3.103"), ("c", "12.9.1"))
    )
    folders = os.pathsep.join(str(file.parent) for file in (old, bug, good))
    code = (
        "import runpy; from benchmarks import launches\n"
        "from eqfuse.ops.backends.triton import runtime\n"
        "runtime.takes_cubins = lambda: False\n"
        f"case = runpy.run_path({str(ROOT / 'tests/ops/backends/triton/row_sum.py')!r})\n"
        "launches.compiled(case['row_sum'], (case['values'](), case['ROW_START']))\n"
    )
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((folders, os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "subprocess_compilation=2",
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert f"Using {good} with version 12.9.1" in run.stderr
    monkeypatch.setenv("PATH", environment["PATH"])
    assert compile.found_by_xla(tmp_path / "plugin") == good


@pytest.fixture
def plugin():
    """Skip where there is no plug-in for NVIDIA's GPUs."""
    from jaxlib import gpu_triton

    if "cuda" not in getattr(getattr(gpu_triton, "TritonKernel", None), "__module__", ""):
        pytest.skip("jaxlib's GPU plug-in is not installed; it is the extra launches")


def test_info_says_what_jaxlib_is_given(plugin, monkeypatch):
    monkeypatch.setattr(runtime, "takes_cubins", lambda: True)
    assert "launch      cubin: jaxlib loads what triton's ptxas (CUDA 1" in info.info()
    monkeypatch.setattr(runtime, "takes_cubins", lambda: False)
    assert "launch      PTX, which XLA's ptxas assembles" in info.info()


def test_info_asks_the_ptxas_that_xla_will_find(plugin, tmp_path, monkeypatch):
    fine = program(tmp_path / "fine", "13.0.1")
    monkeypatch.setenv("PATH", str(fine.parent))
    monkeypatch.chdir(tmp_path)
    assert info._launch()[1] == (
        f"ptxas       XLA finds {fine} (CUDA 13.0.1), which takes PTX 8.7 for sm_90"
    )
    fine.write_text(fine.read_text().replace("exec", "echo PTX is too new >&2; exit 1 #"))
    assert "which REFUSES PTX 8.7 for sm_90: PTX is too new" in info._launch()[1]
    monkeypatch.setattr(compile, "found_by_xla", lambda folder: None)
    assert "XLA finds none; pip install 'eqfuse[cuda]'" in info._launch()[1]


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
