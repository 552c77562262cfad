"""Networks of other programs and earlier versions as runs of this one, and back."""

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.convert.old_run import convert_run
from eqfuse.convert.write import convert_mace

__all__ = ["ConvertError", "convert_mace", "convert_run", "export_mace"]
