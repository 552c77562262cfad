"""Networks of other programs as runs of this one, and back."""

from eqfuse.convert.convert import convert, convert_mace
from eqfuse.convert.converted import ConvertError
from eqfuse.convert.export import export_mace

__all__ = ["ConvertError", "convert", "convert_mace", "export_mace"]


def __dir__() -> list[str]:
    return __all__
