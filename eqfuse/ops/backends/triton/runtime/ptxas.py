"""NVIDIA's assembler: triton's, which makes our binaries, and the one that XLA will find."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import subprocess
import tempfile

# triton's default, PTX 9.4, is refused by the assemblers and drivers of CUDA 12; these are the
# oldest that know the target, or 8.7 where that does
_PTX_VERSIONS = {101: 87, 103: 88, 110: 90, 120: 87, 121: 88}

# what XLA passes over: what is older, and one that has a bug
_XLA_OLDEST, _XLA_EXCLUDED = (11, 8, 0), (12, 3, 103)
# NVIDIA's packages for CUDA 13 and 12, beside JAX's plug-in or a folder above it
_NVCC = ("nvidia/cu13", "nvidia/cuda_nvcc")


@dataclasses.dataclass(frozen=True)
class Assembled:
    """What ptxas makes of a kernel: registers and bytes spilled of each thread, machine code."""

    registers: int
    spilled_bytes: int
    cubin: bytes


def ptx_version(target: str) -> int | None:
    """Return the version of PTX that is written for "sm_90" or its like, 87 for 8.7.

    For an unknown target it is None, which leaves the version to triton.
    """
    capability = int(target.removeprefix("sm_"))
    return 87 if capability <= 100 else _PTX_VERSIONS.get(capability)


def assemble(ptx: str) -> Assembled:
    """Assemble PTX for the target that it names.

    Raises:
      ImportError: triton, which brings ptxas, is not installed.
      RuntimeError: ptxas refuses it, with its message.
    """
    name = re.search(r"^\.target (\w+)", ptx, re.M)[1]
    run, cubin = _run(of_triton(name), name, ptx, "-v")
    if run.returncode:
        raise RuntimeError(f"ptxas failed on a kernel for {name}:\n{run.stderr}")
    registers = re.search(r"Used (\d+) registers", run.stderr)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr)
    return Assembled(int(registers[1]), int(spilled[1]) + int(spilled[2]), cubin)


def of_triton(architecture: str) -> pathlib.Path:
    """Return triton's ptxas for "sm_90a" or its like.

    That of CUDA 12 comes first, whose machine code older drivers load too; the newer one is for
    targets that it does not know.
    """
    import triton

    folder = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    first, newer = folder / "ptxas", folder / "ptxas-blackwell"
    return newer if newer.exists() and not _knows(first, architecture) else first


@functools.cache
def _knows(program: pathlib.Path, architecture: str) -> bool:
    text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    return f"'{architecture}'" in text


def version(program: pathlib.Path) -> tuple[int, ...] | None:
    """Return the version of CUDA that a ptxas is of, (12, 9, 86); None of what is no ptxas."""
    try:
        run = subprocess.run([program, "--version"], capture_output=True, text=True)
    except OSError:
        return None
    result = re.search(r"\bV(\d+)\.(\d+)\.(\d+)\b", run.stdout)
    return tuple(map(int, result.groups())) if result and not run.returncode else None


def found_by_xla(plugin: pathlib.Path) -> pathlib.Path | None:
    """Return the ptxas that XLA will find, or None.

    It looks where XLA does (`FindCudaExecutable` of xla/stream_executor/cuda, as it logs it with
    TF_CPP_VMODULE=subprocess_compilation=2): in bin of the current folder, in PATH, in
    /usr/local/cuda, and in NVIDIA's packages.

    Args:
      plugin: the folder of JAX's CUDA plug-in.
    """
    packages = [above / name for above in (plugin.parent, plugin.parent.parent) for name in _NVCC]
    folders = [pathlib.Path(name) for name in os.environ.get("PATH", "").split(os.pathsep)]
    roots = [pathlib.Path("/usr/local/cuda"), *packages]
    for folder in (pathlib.Path("bin"), *folders, *(root / "bin" for root in roots)):
        program = (folder / "ptxas").absolute()
        result = version(program)
        if result and result >= _XLA_OLDEST and result != _XLA_EXCLUDED:
            return program
    return None


def refusal(program: pathlib.Path, target: str) -> str:
    """Return the error of a ptxas for PTX of our version and a target; "" if it takes it."""
    name = architecture(target)
    ptx = f".version {ptx_version(target) / 10}\n.target {name}\n.address_size 64\n"
    run, _ = _run(program, name, ptx + ".visible .entry k() { ret; }\n")
    return "" if not run.returncode else " ".join(run.stderr.split()) or "it fails"


def architecture(target: str) -> str:
    """Return ptxas's name of a target, as triton writes it: "sm_90a" for "sm_90"."""
    return target + "a" * (int(target.removeprefix("sm_")) >= 90)


def _run(program, architecture: str, ptx: str, *options: str):
    with tempfile.TemporaryDirectory() as folder:
        file, out = (pathlib.Path(folder) / name for name in ("kernel.ptx", "kernel.cubin"))
        file.write_text(ptx)
        command = [program, *options, f"--gpu-name={architecture}", file, "-o", out]
        run = subprocess.run(command, capture_output=True, text=True)
        return run, b"" if run.returncode else out.read_bytes()
