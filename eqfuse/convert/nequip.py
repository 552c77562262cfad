"""Networks of nequip and nequip-allegro, read without torch: no code in their files is executed."""

import zipfile

from eqfuse.convert.archives import read_compiled, read_package
from eqfuse.convert.converted import Converted
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.nequip_allegro import AllegroPackage
from eqfuse.convert.nequip_package import NequIPPackage, energy_parts
from eqfuse.convert.nequip_script import NequIPScript


def read_nequip(path, choice: None = None) -> Converted:
    """Read a network of nequip, or of nequip-allegro.

    Args:
      path: a file of `nequip-deploy build` (nequip 0.5 and 0.6, TorchScript), or a package of
        `nequip-package build` (0.7 and later, .nequip.zip).
      choice: None; the networks have one head.
    Raises:
      ConvertError: a file of another kind, or a network that NequIP or Allegro here cannot
        represent.
    """
    if choice is not None:
        raise ConvertError(f"networks of nequip have one head only, and no {choice!r}")
    if _is_package(path):
        parts = energy_parts(read_package(path, "model", "eager_model.pkl"))
        package = AllegroPackage if parts.get("allegro") is not None else NequIPPackage
        return package(parts).converted()
    compiled = read_compiled(path)
    if not compiled.module.kind.startswith("__torch__.nequip."):
        raise ConvertError(f"{path} holds a {compiled.module.kind}, no network of nequip")
    return NequIPScript(compiled).converted()


def _is_package(path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/model/eager_model.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):  # the reader of other files says what is wrong
        return False
