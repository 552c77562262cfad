"""Networks of other programs as runs of this one, and back."""

from eqfuse.convert.convert import convert, convert_mace
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.convert.old_run import convert_run

__all__ = ["ConvertError", "convert", "convert_mace", "convert_run", "export_mace"]
