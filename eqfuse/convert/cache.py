"""Networks of other programs as runs in the user's cache, see `eqfuse.convert.names.resolved`."""

import hashlib
import sys
from pathlib import Path

from eqfuse import __version__
from eqfuse.convert.conversion import convert
from eqfuse.convert.converted import ConvertError
from eqfuse.convert.registry import cache_folder, find_network, identify, published
from eqfuse.ops._kept import Kept
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import write_whole


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
    kept = Kept(cache_folder() / "runs", name=f"{name}-{__version__}")

    def made(folder: Path):
        path = find()
        convert(program, path, folder)
        network, terms = identify(path), "licence: that of its authors"
        if network is not None:
            terms = f"licence: {network.licence}; cite {network.citation}"
        write_whole(folder / "converted", f"{program} {path}\n{terms}\n")
        print(f"converted  {path} once, to {kept.path}; {terms}", file=sys.stderr, flush=True)

    try:
        return kept.made(made)
    except (ConvertError, OSError) as error:
        raise CheckpointError(str(error)) from error
