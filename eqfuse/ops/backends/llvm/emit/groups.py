"""The arithmetic of a pass: groups of paths that run through the channels together."""

import functools

from eqfuse.ops.backends.llvm.emit.contract import Contraction, split
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import lanes, padded
from eqfuse.ops.backends.llvm.emit.plan import Plan
from eqfuse.ops.backends.llvm.emit.rows import RowsEmitter
from eqfuse.ops.ir.form import Form, Path, Role
from eqfuse.ops.ir.schedule import ordered_groups

LONG = 8
"""Vectors of channels of a segment, from which on rows are long: 128 channels with AVX-512."""


class Groups:
    """Writes groups of paths, each over the channels, and inside over the rows of a block.

    Attributes:
      cost: vector operations of a row, so far.
    """

    def __init__(self, plan: Plan, f: Function, rows: RowsEmitter):
        self.plan, self.f, self.rows = plan, f, rows
        self.cost = len(plan.scalars.sums) // plan.widest + 1
        self._begun: set[tuple[int, int, int]] = set()
        self._prefetched: set[tuple] = set()

    def groups(self) -> list[list[Path]]:
        """Return paths that run through the channels together: same channels, and sums that fit."""
        limit = self.plan.machine.registers * 3 // 4
        part = Form(self.plan.form.inputs, self.plan.form.outputs, tuple(self.plan.paths))
        groups: list[list[Path]] = []
        previous = None
        for shared in ordered_groups(part):
            for path in sorted(shared, key=lambda p: len(split(self.plan.form, p)[0])):
                lead = (self._mul(path), self._lead(path))
                together = [*groups[-1], path] if lead == previous else None
                if together and len(self._accumulators(together)) <= limit:
                    groups[-1] = together
                else:
                    groups.append([path])
                previous = lead
        for group in groups:
            group.sort(key=lambda p: len(split(self.plan.form, p)[0]))
        return groups

    def _mul(self, path: Path) -> int:
        operands = [(self.plan.form.inputs[s.operand], s.segment) for s in path.factors]
        return next((o.segments[s].mul for o, s in operands if o.channels), 1)

    def _lead(self, path: Path):
        refs = [(self.plan.form.inputs[s.operand], s.segment) for s in path.factors]
        refs.append((self.plan.form.outputs[path.output.operand], path.output.segment))
        return next((segment for operand, segment in refs if operand.role is Role.LEFT), None)

    def _accumulators(self, paths) -> list[tuple[int, int, int]]:
        """Return components of owned outputs, which stay in registers through a block."""
        result = {}
        for path in paths:
            if self.plan.is_owned(("out", path.output.operand)):
                for components, _ in path.terms:
                    result[path.output.operand, path.output.segment, components[-1]] = None
        return sorted(result)

    def write(self, group: list[Path], count: str):
        """Write one group, over the rows of the block and the channels.

        A pass that writes long rows goes from one end of a row to the other, 10 to 20% faster then;
        in others, sums of a node stay in registers from row to row, up to 10% faster there.
        Either way every sum has the same order.
        """
        n, length = self._shape(group)[:2]
        writes_rows = any(("out", o) not in self.rows.own for o in self.plan.outputs)
        if writes_rows and length // n >= LONG:
            self._write_by_row(group, count)
        else:
            self._write_by_channel(group, count)
        self._begun |= self._row_outputs(group)

    def _write_by_row(self, group: list[Path], count: str):
        f, n, length, kept, wide = self.f, *self._shape(group)
        with f.loop(count) as rows, f.loop(str(length), step=n) as channels:
            offset = f.times(channels.index, f.bytes)
            places = [self._kept_place(key, offset) for key in kept]
            first = [f.load(place, n, w) for place, w in zip(places, wide, strict=True)]
            sums = dict(zip(kept, first, strict=True))
            own = self._owned_inputs(group, offset, n)
            self._row(group, rows.index, offset, n, length // n, own, sums)
            for key, place, w in zip(kept, places, wide, strict=True):
                f.store(sums[key], place, n, w)

    def _write_by_channel(self, group: list[Path], count: str):
        f, n, length, kept, wide = self.f, *self._shape(group)
        with f.loop(str(length), step=n) as channels:
            offset = f.times(channels.index, f.bytes)
            places = [self._kept_place(key, offset) for key in kept]
            first = [f.load(place, n, w) for place, w in zip(places, wide, strict=True)]
            own = self._owned_inputs(group, offset, n)
            with f.loop(count, carried=first, kinds=[f.vector(n, w) for w in wide]) as rows:
                sums = dict(zip(kept, rows.carried, strict=True))
                self._row(group, rows.index, offset, n, length // n, own, sums)
                rows.next = [sums[key] for key in kept]
            for place, value, w in zip(places, rows.carried, wide, strict=True):
                f.store(value, place, n, w)

    def _shape(self, group: list[Path]):
        """Return lanes, padded channels, components of owned outputs, and which are wide."""
        mul, kept = self._mul(group[0]), self._accumulators(group)
        wide = [self.plan.is_summed(("out", key[0])) for key in kept]
        return lanes(mul, self.plan.widest), padded(mul, self.plan.widest), kept, wide

    def _kept_place(self, key, offset: str) -> str:
        o, segment, component = key
        return self._place(("out", o), segment, component, self.rows.own["out", o], offset)

    def _owned_inputs(self, group, offset: str, n: int) -> dict:
        """Return components of a node's inputs, read once for all its rows."""
        result = {}
        for path in group:
            for position, ref in enumerate(path.factors):
                key = ("in", ref.operand)
                if key in self.rows.own:
                    for components, _ in path.terms:
                        name = (ref.operand, ref.segment, components[position])
                        if name not in result:
                            place = self._place(key, *name[1:], self.rows.own[key], offset)
                            result[name] = self.f.load(place, n)
        return result

    def _row_outputs(self, group) -> set[tuple[int, int, int]]:
        return {
            (path.output.operand, path.output.segment, components[-1])
            for path in group
            if ("out", path.output.operand) not in self.rows.own
            for components, _ in path.terms
        }

    def _place(self, key, segment: int, component: int, row: str, offset: str) -> str:
        layout = self.plan.layouts.get(key)
        if layout is not None:
            return self.f.at(
                self.f.at(row, offset), layout.place(segment, component) * self.f.bytes
            )
        before = self.plan.operand(*key).segments[:segment]
        number = sum(s.dim for s in before) + component
        return self.f.at(row, number * self.plan.sum_bytes)

    def _row(self, group, b: str, offset: str, n: int, chunks: int, own: dict, sums: dict):
        """Return the arithmetic of a group for one row and one vector of channels."""
        f, pointers, next_pointers = self.f, {}, {}
        table = f.at(f.at("%scratch", self.plan.table), b, f.bytes)

        def row_of(key):
            if key not in pointers:
                pointers[key] = self.rows.pointer(key, b)
            return pointers[key]

        def load(i, segment, component):
            if (i, segment, component) in own:
                return own[i, segment, component]
            place = self._place(("in", i), segment, component, row_of(("in", i)), offset)
            prefetch(("in", i), segment, component)
            return f.load(place, n)

        def prefetch(key, segment, component):
            """Ask for the same vector of the next block, once in a pass."""
            if key not in self.plan.ahead or (key, segment, component) in self._prefetched:
                return
            self._prefetched.add((key, segment, component))
            if key not in next_pointers:
                next_pointers[key] = self.rows.next_pointer(key, b)
            place = self._place(key, segment, component, next_pointers[key], offset)
            f.prefetch(place)

        def scalar(row):
            return f.splat(f.load(f.at(table, row * self.plan.widest * f.bytes)), n)

        places = {
            (o, segment, component): self._place(
                ("out", o), segment, component, row_of(("out", o)), offset
            )
            for o, segment, component in sorted(self._row_outputs(group))
        }
        for key, place in places.items():
            if not self.plan.is_summed(("out", key[0])):
                sums[key] = f.load(place, n) if key in self._begun else None

        contraction = Contraction(self.plan.form, f, n, self.plan.scalars, load, scalar)
        parts: dict = {}
        for path in group:
            into = parts if self.plan.is_summed(("out", path.output.operand)) else sums
            contraction.add_path(path, functools.partial(_accumulate, f, n, into, path.output))
        for key, part in parts.items():
            # over rows, channels and groups in float64: many terms, which may cancel
            total = sums[key] if key in sums else f.load(places[key], n, wide=True)
            sums[key] = f.add_wide(total, part, n)
        for key, place in places.items():
            f.store(sums[key], place, n, self.plan.is_summed(("out", key[0])))
        self.cost += contraction.operations * chunks


def _accumulate(f: Function, n: int, sums: dict, output, component: int, factor, value: str):
    key = (output.operand, output.segment, component)
    total = sums.get(key)
    if factor is None:
        sums[key] = value if total is None else f.add(total, value, n)
    elif total is None:
        sums[key] = f.mul(factor, value, n)
    else:
        sums[key] = f.fma(factor, value, total, n)
