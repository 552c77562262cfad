"""Networks of other programs as runs of this one, and back."""

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.convert.write import convert_mace

__all__ = ["ConvertError", "convert_mace", "export_mace"]
