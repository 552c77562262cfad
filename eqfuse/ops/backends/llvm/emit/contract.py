"""The arithmetic of paths: what depends on no channel once per row, the rest once per channel.

A term c * y_j * x_i * w of a path, with y shared by the channels, is a number of the row (c * y_j)
times values of the channel. `Scalars` collects the numbers of a row: sums over j of c * y_j, one
for each (i, k). `Contraction` writes what is left, for a vector of channels: out_k += w * sum_i
s_ik x_i, with inner sums named once for all paths that need them.
"""

import functools

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.ir.form import Form, Path, SegmentRef

Component = tuple[int, int, int]
"""Operand, segment and component of an input."""

Number = tuple[tuple[tuple[Component, ...], float], ...]
"""A sum of coefficients times components of shared operands; literal where there are none."""


class Scalars:
    """The numbers of a row, as rows of a table with one lane for each row of a block."""

    def __init__(self):
        self.components: dict[Component, int] = {}
        self.sums: dict[Number, int] = {}

    def row(self, number: Number) -> int:
        """Return the row of the table for a number, which is not a literal."""
        for names, _ in number:
            for name in names:
                self.components.setdefault(name, len(self.components) + len(self.sums))
        if len(number) == 1 and number[0][1] == 1.0 and len(number[0][0]) == 1:
            return self.components[number[0][0][0]]
        return self.sums.setdefault(number, len(self.components) + len(self.sums))

    @property
    def rows(self) -> int:
        return len(self.components) + len(self.sums)

    def write(self, f: Function, table: str, lanes: int):
        """Fill in the sums from the components, for all lanes of the table at once."""
        stride, known = lanes * f.bytes, {}

        def component(name):
            if name not in known:
                known[name] = f.load(f.at(table, self.components[name] * stride), lanes)
            return known[name]

        def product(names):
            if names not in known:
                known[names] = f.mul(product(names[:-1]), component(names[-1]), lanes)
            return known[names]

        for name in self.components:
            known[(name,)] = component(name)
        for number, row in self.sums.items():
            total = None
            for names, coefficient in number:
                c = f.constant(coefficient, lanes)
                p = product(names) if names else f.constant(1.0, lanes)
                total = f.mul(c, p, lanes) if total is None else f.fma(c, p, total, lanes)
            f.store(total, f.at(table, row * stride), lanes)


class Contraction:
    """Writes paths for one vector of channels of one row.

    Args:
      f: the function to write into.
      lanes: channels of the vector.
      load: (operand, segment, component) of an input per channel to its value.
      scalar: row of the table of numbers to its value in every lane.
    """

    def __init__(self, form: Form, f: Function, lanes: int, scalars: Scalars, load, scalar):
        self.form, self.f, self.lanes, self.scalars = form, f, lanes, scalars
        self._load, self._scalar = load, scalar
        self._memo: dict = {}
        self.operations = 0

    def add_path(self, path: Path, accumulate):
        """Add a path by calls of `accumulate(component, factor, value)`; the factor may be None."""
        vectors, factors, entries = split(self.form, path)
        if all(index == (0,) for (_, index), _ in entries):
            # no index, so that the sums of all such paths can be shared
            entries = tuple(((c, ()), number) for (c, _), number in entries)
        sums = self._contract(vectors, entries)
        factor = None
        for ref in factors:
            value = self._input((ref.operand, ref.segment, 0))
            factor = value if factor is None else self._product(factor, value)
        for index, value in sums.items():
            self.operations += 1
            accumulate(index[0] if index else 0, factor, value)

    def _input(self, name: Component) -> str:
        return self._known(name, lambda: self._load(*name))

    def _product(self, a: str, b: str) -> str:
        self.operations += 1
        return self._known(("product", a, b), lambda: self.f.mul(a, b, self.lanes))

    def _known(self, key, make):
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def number(self, number: Number) -> str:
        """Return a number of the row in every lane."""
        if not any(names for names, _ in number):
            return self.f.constant(sum(c for _, c in number), self.lanes)
        return self._known(number, lambda: self._scalar(self.scalars.row(number)))

    def _contract(self, vectors: tuple[SegmentRef, ...], entries) -> dict:
        """Return sums over the components of `vectors`, for each index of the entries."""
        key = (vectors, entries)
        if key not in self._memo:
            self._memo[key] = self._sums(vectors, entries)
        return self._memo[key]

    def _sums(self, vectors, entries):
        if not vectors:
            return {index: self.number(number) for (_, index), number in entries}
        parts: dict = {}
        if len(vectors) == 1:
            [ref] = vectors
            for ((i,), index), number in entries:
                value = self._input((ref.operand, ref.segment, i))
                parts.setdefault(index, []).append((value, self.number(number)))
        else:
            ref, inner = self._pull_out(vectors, entries)
            for (i, *index), value in self._contract(*inner).items():
                name = (ref.operand, ref.segment, i)
                parts.setdefault(tuple(index), []).append((self._input(name), value))
        sums = {}
        for index, products in parts.items():
            total = None
            for a, b in products:
                f, lanes = self.f, self.lanes
                total = f.mul(a, b, lanes) if total is None else f.fma(a, b, total, lanes)
                self.operations += 1
            sums[index] = total
        return sums

    def _pull_out(self, vectors, entries):
        """Return the factor to multiply last: one whose inner sums are known, or are the fewest."""
        choices = []
        for n, ref in enumerate(vectors):
            rest = vectors[:n] + vectors[n + 1 :]
            inner = tuple(
                sorted(
                    ((c[:n] + c[n + 1 :], (c[n], *index)), number) for (c, index), number in entries
                )
            )
            sums = len({index for (_, index), _ in inner})
            choices.append((((rest, inner) not in self._memo, sums), n, ref, (rest, inner)))
        _, _, ref, inner = min(choices, key=lambda choice: choice[:2])
        return ref, inner


@functools.lru_cache(maxsize=4096)
def split(form: Form, path: Path):
    """Return a path as (vectors, factors, entries).

    vectors: slots per channel of several components; factors: of one component. entries:
    ((components of the vectors, (component of the output,)), number), sorted.
    """
    operands = [form.inputs[ref.operand] for ref in path.factors]
    dims = [o.segments[s.segment].dim for o, s in zip(operands, path.factors, strict=True)]
    vector = [n for n, o in enumerate(operands) if o.channels and dims[n] > 1]
    factor = [n for n, o in enumerate(operands) if o.channels and dims[n] == 1]
    shared = [n for n, o in enumerate(operands) if not o.channels]
    numbers: dict = {}
    for components, value in path.terms:
        key = (tuple(components[n] for n in vector), components[-1:])
        names = tuple(
            (path.factors[n].operand, path.factors[n].segment, components[n]) for n in shared
        )
        numbers.setdefault(key, []).append((names, value))
    entries = tuple(sorted((key, tuple(sorted(number))) for key, number in numbers.items()))
    return (
        tuple(path.factors[n] for n in vector),
        tuple(path.factors[n] for n in factor),
        entries,
    )
