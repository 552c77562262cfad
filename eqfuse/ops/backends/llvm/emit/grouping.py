"""Which paths of a pass run through the channels together, and in which order."""

from eqfuse.ops.backends.llvm.emit.plan import Plan
from eqfuse.ops.backends.llvm.emit.scalars import split
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Path, Role
from eqfuse.ops.ir.schedule import ordered_groups, product_of

Component = tuple[int, int, int]
"""Operand, segment and component of an output."""


def grouped(plan: Plan) -> list[list[Path]]:
    """Return the paths of a plan that run together: same channels, and sums that fit.

    Those that come from one path of the original product follow each other, so that what they
    share is not kept for longer.
    """
    limit = plan.machine.registers * 3 // 4
    part = Form(plan.form.inputs, plan.form.outputs, tuple(plan.paths))
    groups: list[list[Path]] = []
    previous = None
    for shared in ordered_groups(part):
        for path in sorted(shared, key=lambda p: len(split(plan.form, p)[0])):
            lead = (mul_of(plan, path), _lead(plan, path))
            together = [*groups[-1], path] if lead == previous else None
            if together and len(accumulators(plan, together)) <= limit:
                groups[-1] = together
            else:
                groups.append([path])
            previous = lead
    for group in groups:
        group.sort(key=lambda p: (product_of(part, p), len(split(plan.form, p)[0])))
    return groups


def folded(form: Form, group: list[Path]) -> list[list[Path]]:
    """Return the paths of a group, those together that have an output and all numbers in common.

    The sum over components is one then, of a sum of products. Paths stay apart where that of one
    of them is needed besides, for a path with another vector.
    """
    vectors = {path: split(form, path)[0] for path in group}
    alone = {refs[0] for refs in vectors.values() if len(refs) == 1}
    result: dict = {}
    for path, refs in vectors.items():
        _, factors, entries = split(form, path)
        key = path.output, len(refs), entries
        others = {r for v in vectors.values() if len(v) > 1 and set(refs) & set(v) for r in v}
        is_apart = len(refs) > 1 or not factors or others - set(refs) - alone
        if is_apart or (refs and any(vectors[p] == refs for p in result.get(key, ()))):
            key = path
        result.setdefault(key, []).append(path)
    return list(result.values())


def mul_of(plan: Plan, path: Path) -> int:
    """Return the number of channels of a path."""
    operands = [(plan.form.inputs[s.operand], s.segment) for s in path.factors]
    return next((o.segments[s].mul for o, s in operands if o.channels), 1)


def _lead(plan: Plan, path: Path) -> int | None:
    refs = [(plan.form.inputs[s.operand], s.segment) for s in path.factors]
    refs.append((plan.form.outputs[path.output.operand], path.output.segment))
    return next((segment for operand, segment in refs if operand.role is Role.LEFT), None)


def accumulators(plan: Plan, paths) -> list[Component]:
    """Return components of owned outputs, which stay in registers through a block."""
    owned = (p for p in paths if plan.is_owned(("out", p.output.operand)))
    return sorted({key for path in owned for key in components_out(path)})


def components_out(path: Path) -> list[Component]:
    """Return the components of its output that a path adds to."""
    found = {components[-1] for components, _ in path.terms}
    return sorted((path.output.operand, path.output.segment, c) for c in found)
