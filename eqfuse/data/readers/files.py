"""What can be read as a file."""

import os
import stat

from eqfuse.data.errors import DataError


def require_regular(path: str | os.PathLike) -> None:
    """Refuse pipes, devices and sockets: opening or reading them can last for ever.

    A path that leads nowhere, or to a folder, is left for `open` to refuse.

    Raises:
      DataError: one of them.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise DataError(
            f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')} and no file; write what it "
            "gives to a file, and name that one"
        )
