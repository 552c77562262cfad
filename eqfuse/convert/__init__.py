"""Networks of other programs as runs of this one, and back."""

from eqfuse._late import late

_LATE = {
    "eqfuse.convert.conversion": "convert",
    "eqfuse.convert.converted": "ConvertError",
    "eqfuse.convert.export": "export_mace",
}
__all__, __getattr__, __dir__ = late(__name__, _LATE)
