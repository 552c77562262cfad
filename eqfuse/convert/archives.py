"""Files of TorchScript and of torch.package, read as records: no code in them is executed."""

import dataclasses
import zipfile

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.pickled import Record, unpickled, value


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A file of TorchScript.

    Attributes:
      module: its records.
      constants: of its code.
      extra: texts that the program has added, by name.
      code: texts of its code by the name of the file, which are read and never executed.
    """

    module: Record
    constants: list
    extra: dict[str, str]
    code: dict[str, str]


def read_compiled(path) -> Compiled:
    """Read what `torch.jit.save(module, path)` wrote.

    Args:
      path: of the file.
    Raises:
      ConvertError: a file of another kind, or a damaged one.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            roots = [n.removesuffix("constants.pkl") for n in names if n.endswith("/constants.pkl")]
            if len(roots) != 1:
                raise ConvertError(f"{path} is no compiled network (TorchScript)")
            [root] = roots
            texts = {
                name.removeprefix(root): archive.read(name).decode("utf-8", "replace")
                for name in names
                if name.startswith((f"{root}extra/", f"{root}code/")) and "debug" not in name
            }
            constants = unpickled(archive, root, path, "constants.pkl", "constants/{}")
            module = unpickled(archive, root, path)
    except OSError as error:
        raise ConvertError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise ConvertError(f"{path} is no compiled network (TorchScript): {error}") from error
    return Compiled(
        module,
        [value(constant) for constant in constants],
        {n.removeprefix("extra/"): text for n, text in texts.items() if n.startswith("extra/")},
        {n.removeprefix("code/"): text for n, text in texts.items() if n.startswith("code/")},
    )


def read_package(path, folder: str, name: str) -> Record:
    """Read a pickle of a file of `torch.package`.

    Args:
      path: of the file.
      folder, name: where the pickle is in it.
    Raises:
      ConvertError: a file of another kind, or a damaged one.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            end = f"/{folder}/{name}"
            [whole] = [n for n in archive.namelist() if n.endswith(end)]
            root = whole.removesuffix(f"{folder}/{name}")
            return unpickled(archive, root, path, f"{folder}/{name}", ".data/{}.storage")
    except OSError as error:
        raise ConvertError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, ConvertError):
            raise
        raise ConvertError(f"{path} is no package of torch: {error}") from error
