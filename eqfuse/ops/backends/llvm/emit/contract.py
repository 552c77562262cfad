"""The arithmetic of paths for each channel: out_k += w * sum_i s_ik x_i, with s_ik of `scalars`.

Inner sums are named once for all paths that need them.
"""

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.scalars import Component, Number, Scalars, split
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Path, SegmentRef


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
