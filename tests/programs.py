"""Compiled programs that one run of the tests leaves to the next."""

import hashlib
import importlib.util
import mmap
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = 2 << 30
"""Bytes of all programs: a default tier leaves a few hundred megabytes at most."""


def known_to_xla(flag: str) -> bool:
    """Return whether JAX's library has a flag of XLA: one that it does not know ends a process.

    Names of flags are strings of C; those that XLA had before are inside of others.
    """
    name = b"\0%s\0" % flag.strip("-").partition("=")[0].encode()
    for library in Path(importlib.util.find_spec("jaxlib").origin).parent.glob("*jax_common*"):
        with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            if m.find(name) >= 0:
                return True
    return False


def folder_of_programs(root: Path = ROOT / ".pytest_cache", kept: int = KEPT) -> Path:
    """Return the folder of the programs for this processor; the least used beyond `kept` go."""
    host = runpy.run_path(str(ROOT / "eqfuse" / "ops" / "_host.py"))
    machine = "\n".join([*host["description"](), str(host["num_processors"]())])
    folder = root / "programs" / hashlib.sha256(machine.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    found = [(path, path.stat()) for path in folder.parent.glob("*/*-cache")]
    for path, status in sorted(found, key=lambda f: -max(f[1].st_atime, f[1].st_mtime)):
        kept -= status.st_size
        if kept < 0:
            path.unlink(missing_ok=True)
    return folder
