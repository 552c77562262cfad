"""Networks of other programs as runs of this one, and back."""

from eqfuse._late import late

_LATE = {
    "ConvertError": "eqfuse.convert.converted",
    "convert": "eqfuse.convert.conversion",
    "export_mace": "eqfuse.convert.export",
}
__all__ = [*_LATE]
__getattr__, __dir__ = late(__name__, _LATE)
