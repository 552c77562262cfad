"""The arithmetic of a pass: groups of paths that run through the channels together."""

import collections
import functools

from eqfuse.ops.backends.llvm.emit.contract import Contraction
from eqfuse.ops.backends.llvm.emit.grouping import (
    accumulators,
    components_out,
    folded,
    grouped,
    mul_of,
)
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import lanes, padded
from eqfuse.ops.backends.llvm.emit.plan import Plan
from eqfuse.ops.backends.llvm.emit.rows import Row, RowsEmitter
from eqfuse.ops.backends.llvm.emit.scalars import split
from eqfuse.ops.ir.operands import Path


class Groups:
    """Writes groups of paths, each over the channels, and inside over the rows of a block.

    Attributes:
      groups: of paths, see `grouping.grouped`.
      cost: vector operations of a row, so far.
    """

    def __init__(self, plan: Plan, f: Function, rows: RowsEmitter):
        self.plan, self.f, self.rows = plan, f, rows
        self.groups = grouped(plan)
        self.cost = len(plan.scalars.sums) // plan.widest + 1
        self._begun: set[tuple[int, int, int]] = set()
        self._prefetched: set[tuple] = set()

    @functools.cached_property
    def _written_once(self) -> set[tuple[int, int, int]]:
        """Return components of outputs of rows to which only one group adds."""
        counts = collections.Counter(
            key for group in self.groups for key in self._row_outputs(group)
        )
        return {key for key, count in counts.items() if count == 1}

    def write(self, group: list[Path], count: str):
        """Write one group, over the rows of the block and the channels.

        Long rows are taken from one end to the other: lines of memory are read and written in order
        then. With short ones, sums of a node stay in registers from row to row.
        """
        if self.plan.is_long(mul_of(self.plan, group[0])):
            self._write_by_row(group, count)
        else:
            self._write_by_channel(group, count)
        self._begun |= self._row_outputs(group)

    def _write_by_row(self, group: list[Path], count: str):
        f = self.f
        summed = [p for p in group if self._is_sum_of_row(p)]
        direct = [p for p in group if not self._is_sum_of_row(p)]
        with f.loop(count) as rows:
            row = Row(self.plan, f, self.rows, rows.index)
            row.load_pointers(group)
            if direct:
                self._write_channels(direct, row)
            if summed:
                self._write_sums(summed, row)

    def _write_channels(self, group: list[Path], row: Row):
        """Write the paths to outputs with channels, and to sums of a node, for one row."""
        f, (n, length) = self.f, self._shape(group)[:2]
        with f.loop(str(length), step=n) as channels:
            offset = f.times(channels.index, f.bytes)
            own = self._owned_inputs(group, offset, n)
            self._row(group, row, offset, n, length // n, own, {})

    def _write_by_channel(self, group: list[Path], count: str):
        f, n, length, kept, wide = self.f, *self._shape(group)
        with f.loop(str(length), step=n) as channels:
            offset = f.times(channels.index, f.bytes)
            places = [self._kept_place(key, offset) for key in kept]
            first = [f.load(place, n, w) for place, w in zip(places, wide, strict=True)]
            own = self._owned_inputs(group, offset, n)
            with f.loop(count, carried=first, kinds=[f.vector(n, w) for w in wide]) as rows:
                sums = dict(zip(kept, rows.carried, strict=True))
                self._row(
                    group,
                    Row(self.plan, f, self.rows, rows.index),
                    offset,
                    n,
                    length // n,
                    own,
                    sums,
                )
                rows.next = [sums[key] for key in kept]
            for place, value, w in zip(places, rows.carried, wide, strict=True):
                f.store(value, place, n, w)

    def _is_sum_of_row(self, path: Path) -> bool:
        """Return whether a path adds to an output without channels of a row."""
        key = ("out", path.output.operand)
        return self.plan.is_summed(key) and key not in self.rows.own

    def _write_sums(self, paths: list[Path], row: Row):
        """Write the paths to outputs without channels of one row.

        Products of components are summed over the channels first, each in a register; what they
        are multiplied with comes once for a row. All of it is in float32 (or float64) within a
        group, and in float64 over the groups: many terms, which may cancel.
        """
        f, (n, length) = self.f, self._shape(paths)[:2]
        numbers = Contraction(self.plan.form, f, n, self.plan.scalars, None, row.scalar(n))
        alike: dict = {}
        for path in paths:
            alike.setdefault((path.output, split(self.plan.form, path)[2]), []).append(path)
        parts: dict = {}
        for (output, entries), same in alike.items():
            products = list(dict.fromkeys(components for (components, _), _ in entries))
            limit = max(1, self.plan.machine.registers - 6)
            pieces = -(-len(products) // limit)
            size = -(-len(products) // pieces)
            for start in range(0, len(products), size):
                sums = self._sums(same, products[start : start + size], row, n, length)
                for (components, (component,)), number in entries:
                    if components in sums:
                        add = functools.partial(_accumulate, f, n, parts, output, component)
                        add(numbers.number(number), sums[components])
                        self.cost += 1
        for (o, segment, component), part in sorted(parts.items()):
            place = self._place(("out", o), segment, component, row.pointer(("out", o)), "0")
            f.store(f.add_wide(f.load(place, n, wide=True), part, n), place, n, wide=True)

    def _sums(self, paths: list[Path], products, row: Row, n: int, length: int) -> dict:
        """Return the sums over channels of products of components of the paths' vectors.

        What several paths multiply with the same component is added up first.
        """
        f = self.f
        zeros, kinds = [f.constant(0.0, n)] * len(products), [f.vector(n)] * len(products)
        with f.loop(str(length), step=n, carried=zeros, kinds=kinds) as channels:
            offset, sums = f.times(channels.index, f.bytes), list(channels.carried)

            def load(i, segment, component):
                key = "in", i
                at = self.rows.own[key] if key in self.rows.own else row.pointer(key)
                return f.load(self._place(key, segment, component, at, offset), n)

            contraction = Contraction(self.plan.form, f, n, self.plan.scalars, load, None)
            vectors = [split(self.plan.form, p)[0] for p in paths]

            def most(v):
                return -len({refs[v] for refs in vectors}), len({c[v] for c in products})

            order = sorted(range(len(vectors[0])), key=most)
            for k, components in enumerate(products):
                terms: dict = {}
                for path in paths:
                    *first, last = contraction.names(path, components, order)
                    terms.setdefault(last, []).append(tuple(first))
                for last, firsts in terms.items():
                    sums[k] = contraction.add_times(sums[k], tuple(firsts), last)
            self.cost += contraction.operations * length // n
            channels.next = sums
        return dict(zip(products, channels.carried, strict=True))

    def _shape(self, group: list[Path]):
        """Return lanes, padded channels, components of owned outputs, and which are wide."""
        mul, kept = mul_of(self.plan, group[0]), accumulators(self.plan, group)
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
        paths = (p for p in group if ("out", p.output.operand) not in self.rows.own)
        return {key for path in paths for key in components_out(path)}

    def _place(self, key, segment: int, component: int, row: str, offset: str) -> str:
        layout = self.plan.layouts.get(key)
        if layout is not None:
            return self.f.at(
                self.f.at(row, offset), layout.place(segment, component) * self.f.bytes
            )
        before = self.plan.operand(*key).segments[:segment]
        number = sum(s.dim for s in before) + component
        return self.f.at(row, number * self.plan.sum_bytes)

    def _row(self, group, row: Row, offset: str, n: int, chunks: int, own: dict, sums: dict):
        """Write the arithmetic of a group for one row and one vector of channels."""
        f = self.f

        def load(i, segment, component):
            if (i, segment, component) in own:
                return own[i, segment, component]
            place = self._place(("in", i), segment, component, row.pointer(("in", i)), offset)
            prefetch(("in", i), segment, component)
            return f.load(place, n)

        def prefetch(key, segment, component):
            """Ask for the same vector of the next block, once in a pass."""
            if key not in self.plan.ahead or (key, segment, component) in self._prefetched:
                return
            self._prefetched.add((key, segment, component))
            f.prefetch(self._place(key, segment, component, row.next_pointer(key), offset))

        carried, parts = set(sums), {}
        together = folded(self.plan.form, group)
        last = {key: n for n, [path, *_] in enumerate(together) for key in components_out(path)}
        contraction = Contraction(self.plan.form, f, n, self.plan.scalars, load, row.scalar(n))
        for number, paths in enumerate(together):
            path = paths[0]
            summed = self.plan.is_summed(("out", path.output.operand))
            keys = () if summed else [k for k in components_out(path) if k not in carried]
            for key in keys:
                if key not in sums:
                    if ("out", key[0]) in self.plan.sums:
                        prefetch(("out", key[0]), *key[1:])
                    sums[key] = self._before(key, row, offset, n)
            into = parts if summed else sums
            contraction.add(paths, functools.partial(_accumulate, f, n, into, path.output))
            for key in keys:
                if last[key] == number:
                    self._store(key, sums.pop(key), self._place_out(key, row, offset), n)
        for key, part in parts.items():
            # over rows, channels and groups in float64: many terms, which may cancel
            place = self._place_out(key, row, offset)
            total = sums[key] if key in carried else f.load(place, n, wide=True)
            sums[key] = f.add_wide(total, part, n)
            if key not in carried:
                f.store(sums[key], place, n, wide=True)
        self.cost += contraction.operations * chunks

    def _place_out(self, key, row: Row, offset: str) -> str:
        """Return where a component of an output is, of the row or of its node."""
        if ("out", key[0]) in self.rows.own:
            return self._kept_place(key, offset)
        return self._place(("out", key[0]), *key[1:], row.pointer(("out", key[0])), offset)

    def _before(self, key, row: Row, offset: str, n: int) -> str | None:
        """Return what a component of an output already holds; None for nothing."""
        out = "out", key[0]
        if out in self.rows.own or out in self.plan.sums or key in self._begun:
            return self.f.load(self._place_out(key, row, offset), n)
        return None

    def _store(self, key, value: str, place: str, n: int):
        streams = self.rows.streamed_in_place.get(("out", key[0]))
        if streams and key in self._written_once:
            self.f.store_or_stream(value, place, n, streams)
        else:
            self.f.store(value, place, n)


def _accumulate(f: Function, n: int, sums: dict, output, component: int, factor, value: str):
    key = (output.operand, output.segment, component)
    total = sums.get(key)
    if factor is None:
        sums[key] = value if total is None else f.add(total, value, n)
    elif total is None:
        sums[key] = f.mul(factor, value, n)
    else:
        sums[key] = f.fma(factor, value, total, n)
