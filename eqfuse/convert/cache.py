"""Networks of other programs as runs in the user's cache, see `eqfuse.convert.names.resolved`."""

import hashlib
import shutil
import sys
from pathlib import Path

from eqfuse import __version__
from eqfuse.convert.conversion import convert
from eqfuse.convert.converted import ConvertError
from eqfuse.convert.registry import cache_folder, find_network, identify, published
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import write_whole

_DONE = "converted"  # the last file that is written


def converted_name(name: str) -> Path:
    network = published()[name]
    digest = (network.sha256 or network.git or "unchecked")[:12]
    return _converted(
        f"{name}-{digest}", network.program, lambda: find_network(name, network.program)
    )


def converted_file(path: Path, program: str) -> Path:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return _converted(f"{path.stem}-{digest}", program, lambda: path)


def _converted(name: str, program: str, find) -> Path:
    """Return the folder of a conversion, which is made now if no earlier process has done so."""
    folder = cache_folder() / "runs" / f"{name}-{__version__}"
    if not (folder / _DONE).exists():
        import fcntl  # which Windows does not have

        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with open(folder.with_name(f".{folder.name}.lock"), "a", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not (folder / _DONE).exists():  # by the process that had the lock before
                    _convert(program, find(), folder)
        except (ConvertError, OSError) as error:
            raise CheckpointError(str(error)) from error
    return folder


def _convert(program: str, path: Path, folder: Path):
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted process has left
    convert(program, path, folder)
    network = identify(path)
    terms = "licence: that of its authors"
    if network is not None:
        terms = f"licence: {network.licence}; cite {network.citation}"
    print(f"converted  {path} once, to {folder}; {terms}", file=sys.stderr, flush=True)
    write_whole(folder / _DONE, f"{program} {path}\n{terms}\n")
