"""The arithmetic of a pass: groups of paths that run through the channels together.

For example, for four channels of one row, the scalar of two vectors x and y times a weight w. The
three Clebsch-Gordan coefficients are one number, 1/sqrt(3), which is a factor of the weight.

    %v1 = fmul contract <4 x float> %x0, %y0
    %v2 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %x1, <4 x float> %y1, <4 x float> %v1)
    %v3 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %x2, <4 x float> %y2, <4 x float> %v2)
    %v4 = fmul contract <4 x float> splat (float 0x3FE279A740000000), %w0
    %v5 = fmul contract <4 x float> %v4, %v3
"""

import collections
import functools

from eqfuse.ops.backends.llvm.layout import Plan, Scalars, lanes, padded
from eqfuse.ops.backends.llvm.row_access import Row, RowsEmitter
from eqfuse.ops.backends.llvm.text import Function
from eqfuse.ops.ir.contraction import Component, Contraction, Number, split
from eqfuse.ops.ir.form import Form, Path, Role, ordered_groups, product_of


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


class RowContraction(Contraction):
    """Writes paths for one vector, of `lanes` channels, of one row.

    `load` gives the value of (operand, segment, component) of an input, `scalar` that of a row of
    the table of numbers, in every lane.
    """

    def __init__(self, form: Form, f: Function, lanes: int, scalars: Scalars, load, scalar):
        super().__init__(form)
        self.f, self.lanes, self.scalars = f, lanes, scalars
        self.load, self._scalar = load, scalar
        self.operations = 0

    def number(self, number: Number) -> str:
        """Return a number of the row in every lane."""
        if isinstance(number, float):
            return self.f.constant(number, self.lanes)
        return self.known(number, lambda: self._scalar(self.scalars.row(number)))

    def multiply(self, a: str, b: str) -> str:
        self.operations += 1
        return self.f.mul(a, b, self.lanes)

    def scaled(self, scale: float, value: str | None) -> str:
        number = self.f.constant(scale, self.lanes)
        return number if value is None else self.multiply(number, value)

    def total(self, parts: list[tuple]) -> str | None:
        """Return the sum of number * a * b over parts, where a and b may be one; None is one."""
        total, f, lanes, one = None, self.f, self.lanes, self.f.constant(1.0, self.lanes)
        if parts == [(one, None, None)]:
            return None
        for number, a, b in parts:
            factors = [factor for factor in (a, b or number) if factor not in (None, one)] or [one]
            self.operations += bool(total) or len(factors) == 2
            if len(factors) == 2:
                total = f.fma(*factors, total, lanes) if total else f.mul(*factors, lanes)
            else:
                total = f.add(total, factors[0], lanes) if total else factors[0]
        return total

    def add(self, paths: list[Path], accumulate):
        """Add paths of one output by calls of `accumulate(component, factor, value)`.

        Several of them have the same numbers, and what these are multiplied with is added first.
        The factor or the value may be None, which is one.
        """
        if len(paths) > 1:
            for (components, (component,)), number in split(self.form, paths[0])[2]:
                value = self.sum_of_products(tuple(self.names(p, components) for p in paths))
                self.operations += 1
                accumulate(component, self.number(number), value)
            return
        factor, values = self.values(paths[0])
        for component, value in values.items():
            self.operations += 1
            accumulate(component, factor, value)

    def names(self, path: Path, components, order=(0,)) -> tuple[Component, ...]:
        """Return the factors of a path, then these components of its vectors, in some order."""
        vectors, factors, _ = split(self.form, path)
        chosen = ((vectors[v], components[v]) for v in order[: len(vectors)])
        pairs = (*((ref, 0) for ref in factors), *chosen)
        return tuple((ref.operand, ref.segment, component) for ref, component in pairs)

    def add_times(self, total: str, terms: tuple[tuple[Component, ...], ...], last: Component):
        """Return total + last * the sum of products of inputs."""
        self.operations += 1
        value = self.input(last)
        if terms == ((),):
            return self.f.add(total, value, self.lanes)
        return self.f.fma(self.sum_of_products(terms), value, total, self.lanes)

    def sum_of_products(self, terms: tuple[tuple[Component, ...], ...]) -> str:
        *before, (*first, last) = terms
        if not before:
            return self.product(terms[0])

        def add():
            return self.add_times(self.sum_of_products(terms[:-1]), (tuple(first),), last)

        return self.known(terms, add)


class Groups:
    """Writes groups of paths, each over the channels, and inside over the rows of a block."""

    def __init__(self, rows: RowsEmitter):
        self.plan, self.f, self.rows = rows.plan, rows.f, rows
        self.groups = grouped(self.plan)
        short = (group for group in self.groups if not self._is_long(group))
        summed = {("out", path.output.operand) for group in short for path in group}
        rows.zeroed = set(filter(self.plan.is_summed, summed))
        # vector operations of a row, so far
        self.cost = len(self.plan.scalars.sums) // self.plan.widest + 1
        self._begun: set[tuple[int, int, int]] = set()
        self._prefetched: set[tuple] = set()

    @functools.cached_property
    def _written_once(self) -> set[tuple[int, int, int]]:
        """Return components of outputs of rows to which only one group adds."""
        counts = collections.Counter(
            key for group in self.groups for key in self._row_outputs(group)
        )
        return {key for key, count in counts.items() if count == 1}

    def write_rows(self, unit: str, start: str, stop: str):
        """Write the rows `start` to `stop` of a unit, block by block."""
        f, plan = self.f, self.plan
        with f.loop(stop, start=start, step=plan.block) as blocks:
            left = f.value(f"sub nsw i64 {stop}, {blocks.index}")
            count = f.minimum(left, str(plan.block))
            with f.loop(count) as loop:
                self.rows.begin_row(unit, blocks.index, loop.index)
            plan.scalars.write(f, f.at("%scratch", plan.table), plan.widest)
            for group in self.groups:
                self._write(group, count)
            if any(key in plan.row_place and key[0] == "out" for key in plan.operands()):
                with f.loop(count) as loop:
                    self.rows.finish_row(loop.index)

    def _write(self, group: list[Path], count: str):
        """Write one group, over the rows of the block and the channels.

        Long rows are taken from one end to the other where some are written: lines of memory are
        read and written in order then. Otherwise sums of a node stay in registers from row to row.
        """
        if self._is_long(group) and self._row_outputs(group):
            self._write_by_row(group, count)
        else:
            self._write_by_channel(group, count)
        self._begun |= self._row_outputs(group)

    def _is_long(self, group: list[Path]) -> bool:
        return self.plan.is_long(mul_of(self.plan, group[0]))

    def _write_by_row(self, group: list[Path], count: str):
        f = self.f
        summed = [p for p in group if self._is_sum_of_row(p)]
        direct = [p for p in group if not self._is_sum_of_row(p)]
        with f.loop(count) as rows:
            row = Row(self.rows, rows.index)
            row.load_pointers(group)
            if direct:
                n, length = self._shape(direct)[:2]
                with f.loop(str(length), step=n) as channels:
                    offset = f.times(channels.index, f.bytes)
                    own = self._owned_inputs(direct, offset, n)
                    self._row(direct, row, offset, n, length // n, own, {})
            if summed:
                self._write_sums(summed, row)

    def _write_by_channel(self, group: list[Path], count: str):
        f, n, length, kept, wide = self.f, *self._shape(group)
        with f.loop(str(length), step=n) as channels:
            offset = f.times(channels.index, f.bytes)
            places = [
                self._place(("out", o), segment, component, self.rows.own["out", o], offset)
                for o, segment, component in kept
            ]
            first = [f.load(place, n, w) for place, w in zip(places, wide, strict=True)]
            own = self._owned_inputs(group, offset, n)
            with f.loop(count, carried=first, kinds=[f.vector(n, w) for w in wide]) as rows:
                sums = dict(zip(kept, rows.carried, strict=True))
                row = Row(self.rows, rows.index)
                self._row(group, row, offset, n, length // n, own, sums)
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
        numbers = RowContraction(self.plan.form, f, n, self.plan.scalars, None, row.scalar(n))
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
        for key, part in sorted(parts.items()):
            place = self._place_out(key, row, "0")
            total = f.load(place, n, wide=True) if key in self._begun else None
            f.store(f.add_wide(total, part, n), place, n, wide=True)

    def _sums(self, paths: list[Path], products, row: Row, n: int, length: int) -> dict:
        """Return the sums over channels of products of components of the paths' vectors.

        What several paths multiply with the same component is added up first.
        """
        f = self.f
        zeros, kinds = [f.constant(0.0, n)] * len(products), [f.vector(n)] * len(products)
        with f.loop(str(length), step=n, carried=zeros, kinds=kinds) as channels:
            offset, sums = f.times(channels.index, f.bytes), list(channels.carried)

            def load(i, segment, component):
                at = row.pointer(("in", i))
                self._prefetch(("in", i), segment, component, row, offset)
                return f.load(self._place(("in", i), segment, component, at, offset), n)

            contraction = RowContraction(self.plan.form, f, n, self.plan.scalars, load, None)
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
            self._prefetch(("in", i), segment, component, row, offset)
            return f.load(place, n)

        carried, parts = set(sums), {}
        together = folded(self.plan.form, group)
        last = {key: n for n, [path, *_] in enumerate(together) for key in components_out(path)}
        contraction = RowContraction(self.plan.form, f, n, self.plan.scalars, load, row.scalar(n))
        for number, paths in enumerate(together):
            path = paths[0]
            summed = self.plan.is_summed(("out", path.output.operand))
            keys = () if summed else [k for k in components_out(path) if k not in carried]
            for key in keys:
                if key not in sums:
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

    def _prefetch(self, key, segment: int, component: int, row: Row, offset: str):
        """Ask for the same vector of the next block, once in a pass."""
        if key in self.plan.ahead and (key, segment, component) not in self._prefetched:
            self._prefetched.add((key, segment, component))
            place = row.pointer(key, ahead=True)
            self.f.prefetch(self._place(key, segment, component, place, offset))

    def _place_out(self, key, row: Row, offset: str) -> str:
        """Return the address of a component of an output, of the row or of its node."""
        return self._place(("out", key[0]), *key[1:], row.pointer(("out", key[0])), offset)

    def _before(self, key, row: Row, offset: str, n: int) -> str | None:
        """Return the value that a component of an output already holds; None for nothing."""
        if ("out", key[0]) in self.rows.own or key in self._begun:
            return self.f.load(self._place_out(key, row, offset), n)
        return None

    def _store(self, key, value: str, place: str, n: int):
        output = "out", key[0]
        in_place = output in self.rows.streamed and output not in self.plan.row_place
        if in_place and key in self._written_once:
            stores = (functools.partial(s, value, place, n) for s in (self.f.stream, self.f.store))
            self.f.either(self.rows.streamed[output], *stores)
        else:
            self.f.store(value, place, n)


def _accumulate(f: Function, n: int, sums: dict, output, component: int, factor, value):
    key = (output.operand, output.segment, component)
    total = sums.get(key)
    if factor is None or value is None:
        value = factor if value is None else value
        sums[key] = value if total is None else f.add(total, value, n)
    elif total is None:
        sums[key] = f.mul(factor, value, n)
    else:
        sums[key] = f.fma(factor, value, total, n)
