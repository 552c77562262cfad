"""Compiled programs that one run of the tests leaves to the next."""

import hashlib
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = 2 << 30
"""Bytes of all programs: a default tier leaves a few hundred megabytes at most."""


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
