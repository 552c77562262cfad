"""What kernels of all kinds take of a form together: outputs to reduce over, paths to share."""

import collections
import functools

from eqfuse.ops.ir.form import Form, Index, Path


def reductions(form: Form) -> dict[Index, list[int]]:
    """Return the outputs of each kernel (Triton) or pass (LLVM), by what it reduces over.

    Outputs by row go along with those of the senders or receivers.
    """
    result: dict[Index, list[int]] = {}
    for o, operand in enumerate(form.outputs):
        result.setdefault(operand.index, []).append(o)
    rows = result.pop(Index.ROW, [])
    if rows:
        host = next((i for i in (Index.SENDER, Index.RECEIVER) if i in result), Index.ROW)
        result.setdefault(host, []).extend(rows)
    return result


def ordered_groups(form: Form) -> list[list[Path]]:
    """Return paths in the order in which a kernel computes them, grouped by what they share.

    Two paths are in one group if they come from paths of the original product that read the same
    segments of its two factors.
    """
    groups = collections.OrderedDict()
    for path in sorted(form.paths, key=functools.partial(product_of, form)):
        groups.setdefault(product_of(form, path)[:2], []).append(path)
    return list(groups.values())


def product_of(form: Form, path: Path) -> tuple:
    """Return the segments of the path of the original product that a path comes from, by role."""
    refs = [(form.inputs[s.operand].role, s.segment) for s in path.factors]
    refs.append((form.outputs[path.output.operand].role, path.output.segment))
    return tuple(sorted(refs))
