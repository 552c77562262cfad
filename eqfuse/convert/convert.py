"""Read a network of another program and write it as a run."""

import contextlib
from pathlib import Path

from eqfuse.convert.converted import Converted
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.mace import read_mace
from eqfuse.convert.nequip import read_nequip
from eqfuse.convert.nequix import read_nequix
from eqfuse.convert.sevennet import read_sevennet
from eqfuse.convert.sevennet_files import sevennet_file
from eqfuse.convert.write import check_shapes, write_run

READERS = {
    "mace": read_mace,
    "sevennet": read_sevennet,
    "nequix": read_nequix,
    "nequip": read_nequip,
}
"""By program; each takes a file, and the name of a head or fidelity or None."""


def convert(program: str, path, run, *, choice: str | None = None) -> Converted:
    """Write the network of a file of another program to the folder of a run.

    The program is not needed, and nothing in the file is executed. The folder can be given to
    `eqfuse.Calculator`, `eqfuse.inference.evaluate`, `load_run` and `start_from=`.

    Args:
      program: one of `READERS`.
      path: the file; for sevennet also the name of a published network, such as "7net-0".
      run: the folder, which must not exist.
      choice: which head (mace) or fidelity (sevennet), of a network with several.
    Returns:
      What the network is.
    Raises:
      ConvertError: a file that cannot be read, or a network that eqfuse cannot represent.
      ConfigError: the folder exists or cannot be written.
    """
    path = find(program, path)
    with reading(program, path):
        converted = READERS[program](path, choice)
        check_shapes(converted)
    write_run(converted, path, run)
    return converted


def find(program: str, path) -> Path:
    """Return the file that is meant, which for sevennet may be the name of a published network."""
    if program == "sevennet" and not Path(path).exists():
        return sevennet_file(str(path))
    return Path(path)


def convert_mace(path, run, *, head: str | None = None) -> Converted:
    """Write the network of a file of mace to the folder of a run; see `convert`."""
    return convert("mace", path, run, choice=head)


@contextlib.contextmanager
def reading(program: str, path):
    """Turn errors of files that are not laid out as they should be into one that says so."""
    try:
        yield
    except ConvertError:
        raise
    except Exception as error:  # damaged or malicious files fail in many ways
        raise ConvertError(
            f"{path} is not laid out as files of {program} are, or damaged ({error!r}); if "
            f"{program} reads it, please report its version"
        ) from error
