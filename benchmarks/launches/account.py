"""An account of the launches of a compiled step: which part of the model they come from.

The instructions that XLA schedules are as many as the launches; those that cannot be attributed are
a line of their own, and so is any difference between the two counts.
"""

from __future__ import annotations

import collections

from benchmarks.launches.hlo import HloProgram

KINDS = {
    "eqfuse": "kernels of eqfuse",
    "products": "matmuls, by XLA",
    "moves": "copies, slices, padding, transposes and constants",
    "others": "element-wise operations, sums, gathers and scatters",
}
NOT_SCHEDULED = "not in the schedule"

_PRODUCTS = {"dot_general", "dot", "conv_general_dilated"}
_MOVES = {
    "broadcast",
    "broadcast_in_dim",
    "concatenate",
    "copy",
    "iota",
    "pad",
    "reshape",
    "slice",
    "split",
    "squeeze",
    "transpose",
}


def kind(program: HloProgram, instruction) -> str:
    """Return one of `KINDS`."""
    named = program.named(instruction)
    inner = program.computations.get(instruction.calls, ())
    if any("eqfuse" in i.target or i.primitive.startswith("eqfuse") for i in (named, instruction)):
        return "eqfuse"
    if named.primitive in _PRODUCTS or "gemm" in f"{instruction.name} {instruction.target}":
        return "products"
    if named.primitive in _MOVES or instruction.opcode == "copy":
        return "moves"
    # What XLA has made itself has no name, but says what it does.
    done = {i.opcode for i in inner} - {"parameter", "constant", "bitcast", "tuple"}
    return "moves" if not named.op_name and done <= _MOVES else "others"


def account(text: str, launches: int) -> dict[str, dict[str, int]]:
    """Return {source: {kind: number of launches}}, those with most launches first.

    Args:
      text: of the compiled program.
      launches: how many there are by the schedule of thunks.
    """
    program, found = HloProgram(text), collections.defaultdict(collections.Counter)
    for instruction in program.entry:
        found[program.source(instruction)][kind(program, instruction)] += 1
    if difference := launches - len(program.entry):
        found[NOT_SCHEDULED]["others"] += difference
    ordered = sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))
    return {source: dict(kinds) for source, kinds in ordered}


def table(name: str, found: dict[str, dict[str, int]]) -> str:
    """Return the account in Markdown."""
    lines = [f"\n| {name} | {' | '.join(KINDS)} | all |", "|---|" + "---|" * (len(KINDS) + 1)]
    totals = collections.Counter()
    for source, kinds in found.items():
        totals.update(kinds)
        lines.append(_line(source, kinds))
    return "\n".join([*lines, _line("sum", totals)])


def _line(name: str, kinds) -> str:
    cells = " | ".join(str(kinds.get(k, "") or "") for k in KINDS)
    return f"| {name} | {cells} | {sum(kinds.values())} |"
