"""The report of `fuse`: what was replaced, what was not and why, and what to do about it."""

from __future__ import annotations

import dataclasses

HEADER = ("where", "pattern", "computed by", "why not", "what to do")
NOTHING = "nothing to replace: the trace has no product of ops.tensor_product"
GATHER = "gather the features of nodes inside of the function, as x[senders]"
ADVICE = {
    "channels on an axis": "give the product [edges, irreps]: axis_to_mul before it",
    "no operand of the product is gathered": GATHER,
    "several index arrays": "multiply with features of one end; gather those of the other apart",
    "weights are gathered": "multiply the features of nodes with them before the gather",
    "components of one irrep": "give each irrep one weight, as in messages * weights",
    "dtypes change": "convert after the sum, or before the gather",
    "tanh": "apply the function after the sum",
    "goes into the Linear": "apply a Linear to the sum alone, and add the other one",
    "several products are added": "sum each to the nodes, and add the sums",
    "neither to nodes nor": "sum them by e3nn.scatter_sum, or give them to ops.Linear",
    "is taken inside": "wrap the energy by ops.fuse, and differentiate what it returns",
    "no Linear of ops": "take the Linear behind the sum from ops, ops.haiku or ops.equinox",
}
"""What to do, by a part of the reason."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of the report.

    Attributes:
      where: file and line of the code.
      pattern: what stands there.
      op: what computes it now; "" if it is as it was.
      reason: why nothing took its place, or no more than this op.
    """

    where: str
    pattern: str
    op: str
    reason: str

    @property
    def advice(self) -> str:
        """Return what to do about the reason, if there is something."""
        return next((text for part, text in ADVICE.items() if part in self.reason), "")


def table(entries: list[Entry]) -> str:
    """Return the report, a line for each place in the code."""
    if not entries:
        return NOTHING
    lines = [HEADER]
    lines += [(e.where, e.pattern, e.op or "as written", e.reason, e.advice) for e in entries]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = (" | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(row.rstrip(" |") for row in rows)
