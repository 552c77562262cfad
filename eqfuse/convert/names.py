"""What may stand in the place of a run: the name of a published network, another program's file."""

import difflib
import os
import re
from pathlib import Path

from eqfuse.convert.registry import known_name, published
from eqfuse.runs.errors import CheckpointError

_PROGRAMS = {".model": "mace", ".pth": "sevennet", ".pt": "sevennet", ".nqx": "nequix"}
_PROGRAMS |= {".zip": "nequip", ".ckpt": "nequip", ".pt2": "nequip"}  # which says what to give
"""By the endings of their files, programs that `eqfuse convert` reads."""


def resolved(run) -> str | Path:
    """Return the path of the run that is meant.

    Whatever takes a run from a user calls this once, and gives the path to all others.

    Args:
      run: the path of a run, or of a file of its network; the name of a published network, such as
        "7net-0", in letters of either case, unless there is a file or a folder of that name; or a
        file of another program. The last two are converted once, into the user's cache.
    Raises:
      CheckpointError: nothing is there, with the names that are nearest; a file that is not here,
        with the command that fetches it, or one that cannot be converted.
    """
    path, text = Path(run).expanduser(), str(run)
    if not text.strip():
        raise CheckpointError("the name of the network is empty; give a run or a published name")
    if os.path.lexists(path) or "\0" in text:  # the latter is refused where it is read
        program = _PROGRAMS.get(path.suffix.lower())
        if program is None or not path.is_file():
            return run
        from eqfuse.convert.cache import converted_file  # which takes a while to import

        return converted_file(path, program)
    if name := known_name(text):
        from eqfuse.convert.cache import converted_name

        return converted_name(name)
    if path.suffix.lower() in (*_PROGRAMS, ".safetensors") or os.path.dirname(text):
        raise CheckpointError(f"no such file or folder: {run}")
    close = difflib.get_close_matches(path.name.lower(), published(), n=2)
    dated = [n for n in close if re.search(r"_\d.*\d{4}$", n + text)]  # a name has no other date
    near = ", ".join(f"{n}, which is another network" if n in dated else n for n in close)
    nearest = f" (nearest: {near})" if close else ""
    raise CheckpointError(
        f"{run} has no checkpoint (best or last); no run, and no published network{nearest}; "
        "`eqfuse convert list` has their names"
    )
