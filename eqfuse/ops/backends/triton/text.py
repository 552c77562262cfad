"""Emitters of Triton source: lines, and, of dense kernels, names and matmuls."""

import collections
import contextlib
from typing import NamedTuple

from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.ir.form import Form, Operand, Path, SegmentRef, ordered_groups

SLICE = 16
"""Terms of one matmul: as few as Triton takes, since each is code, and loops are not."""
WARPS = 4


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def packed(units, sizes, most: int) -> list[list]:
    """Return units in order, in lists of a size of at most `most`, or of one."""
    result, total = [], 0
    for unit, size in zip(units, sizes, strict=True):
        if not result or total + size > most:
            result.append([])
            total = 0
        total += size
        result[-1].append(unit)
    return result


def component_name(operand: Operand, segment: int, component: int) -> str:
    """Return the variable that holds one component of an operand."""
    return f"{operand.name}_{segment}_{component}"


def component_names(operand: Operand, segment: int) -> list[str]:
    """Return the variables that hold the components of a segment."""
    return [component_name(operand, segment, k) for k in range(operand.segments[segment].dim)]


def _adder(number: int) -> list[str]:
    left, right = ([f"{side}{n}" for n in range(number)] for side in "ab")
    total = ", ".join(f"{a} + {b}" for a, b in zip(left, right, strict=True))
    head = f"def add_{number}({', '.join(left + right)}):"
    return ["", "", "@triton.jit", head, f"    return {total}"]


class Emitter:
    """Collects the lines of one kernel."""

    def __init__(self):
        self.lines: list[str] = []
        self.indent = 1
        self.sums: set[int] = set()  # N of each function `add_N`, of N values and N others

    def emit(self, line: str):
        self.lines.append("    " * self.indent + line)

    def node_index(self, load: str) -> str:
        """Return a loaded index of nodes; one that is out of range becomes the nearest."""
        return f"tl.minimum(tl.maximum({load}, 0), num_nodes - 1)"

    def reduce(self, names: list[str], axis: int, suffix: str = "", keep_dims: bool = False):
        """Sum variables over an axis, all in one reduction; add a suffix to their names."""
        keep = ", keep_dims=True" if keep_dims else ""
        every, results = ", ".join(names), ", ".join(name + suffix for name in names)
        if len(names) == 1:
            self.emit(f"{results} = tl.sum({every}, {axis}{keep})")
        elif names:
            self.sums.add(len(names))
            self.emit(f"{results} = tl.reduce(({every}), {axis}, add_{len(names)}{keep})")

    def spec(
        self, stem: str, note: str, inputs: dict, scalars, outputs: dict, warps: int = WARPS
    ) -> KernelSpec:
        """Return the kernel of the lines so far; inputs and outputs are dtypes by name.

        The pointer of an array `a` is called `a_ptr`.
        """
        names = [f"{n}_ptr" for n in inputs] + list(scalars) + [f"{n}_ptr" for n in outputs]
        notes = [f"# {line}" for line in note.splitlines()]
        adders = [line for number in sorted(self.sums) for line in _adder(number)]
        head = ["import triton", "import triton.language as tl", *adders, "", "", "@triton.jit"]
        lines = [*notes, *head, f"def KERNEL({', '.join(names)}):", *self.lines, ""]
        types = (list(map(pointer_type, arrays.values())) for arrays in (inputs, outputs))
        return KernelSpec.build(stem, "\n".join(lines), *types, scalars, warps)

    @contextlib.contextmanager
    def block(self, head: str):
        """Indent lines inside an `if`, a `for` or a `while`; no head is no block."""
        if head:
            self.emit(head)
        self.indent += bool(head)
        yield
        self.indent -= bool(head)


class DenseEmitter(Emitter):
    """Collects the lines of one dense kernel; `input_precision` is that of matmuls in float32."""

    def __init__(self, dtype: str, input_precision: str = "ieee"):
        super().__init__()
        self.dtype = dtype
        self.input_precision = "ieee" if dtype == "float64" else input_precision
        self.wide = "float64" if dtype == "float64" else "float32"
        self.real = f"tl.{self.wide}"
        self._names = 0

    def fresh(self) -> str:
        """Return a name that is not taken."""
        self._names += 1
        return f"t{self._names}"

    def name(self, text: str) -> str:
        """Return a variable that holds the value of `text`."""
        name = self.fresh()
        self.emit(f"{name} = {text}")
        return name

    def slices(self, size: int, count: int = 1):
        """Return a loop over `count` slices of `size` at once, which start at the variable `at`."""
        # a pipeline of loads would copy the loop's statements
        return self.block(f"for at in tl.range(0, {size}, {count * SLICE}, num_stages=1):")

    def parts(self, tensor: str, count: int) -> list[str]:
        """Return tensor[..., k] of all k below a power of two, in one order for all tensors."""
        if count == 1:
            return [tensor]
        shape = f"[{tensor}.shape[0], {tensor}.shape[1], {count // 2}, 2]"
        pairs = tensor if count == 2 else f"tl.reshape({tensor}, {shape})"
        halves = self.fresh(), self.fresh()
        self.emit(f"{halves[0]}, {halves[1]} = tl.split({pairs})")
        even, odd = (self.parts(half, count // 2) for half in halves)
        return even + odd

    def loaded(self, address: str, mask: str) -> str:
        """Return the text of what lies there, zero where masked, in the precision of sums."""
        return self.widened(f"tl.load({address}, mask={mask}, other=0.0)")

    def load(self, address: str, mask: str) -> str:
        """Return a variable that holds `loaded`."""
        return self.name(self.loaded(address, mask))

    def factor(self, address: str, mask: str) -> str:
        """Return a variable like `load`, in its own precision: a factor of matmuls, which widen."""
        return self.name(f"tl.load({address}, mask={mask}, other=0.0)")

    def widened(self, name: str) -> str:
        """Return the text of a factor in the precision of sums."""
        return name if self.dtype == self.wide else f"{name}.to({self.real})"

    def dot(self, left: str, right: str, scale: float = 1.0) -> str:
        """Return the text of a matmul."""
        product = (
            f"tl.dot({left}, {right}, input_precision={self.input_precision!r}, "
            f"out_dtype={self.real})"
        )
        return product if scale == 1.0 else f"{scale!r} * {product}"


class _Sum(NamedTuple):
    """A value with a sign; "" is one."""

    sign: float
    name: str


class ArithmeticEmitter:
    """Writes the statements of a form, one group of paths at a time.

    `load(operand, segment, component, name)` writes the statement that defines a component of an
    input when it is first used.
    """

    def __init__(self, form: Form, load, emit):
        self.form, self._load, self._emit = form, load, emit
        self._loaded: set[str] = set()
        self._memo: dict = {}
        self._temporaries = 0

    def loaded(self, names):
        """Register components that are in variables already."""
        self._loaded.update(names)

    def new_group(self):
        """Forget the values that only one group shares."""
        self._memo.clear()

    def add_all(self):
        """Add all paths to variables, the components of the outputs."""
        for group in ordered_groups(self.form):
            self.new_group()
            for path in group:
                names = component_names(self.form.outputs[path.output.operand], path.output.segment)
                self.add_path(path, lambda k, value, to=names: self._emit(f"{to[k]} += {value}"))

    def _input(self, ref: SegmentRef, component: int) -> str:
        operand = self.form.inputs[ref.operand]
        name = component_name(operand, ref.segment, component)
        if name not in self._loaded:
            self._loaded.add(name)
            self._load(operand, operand.segments[ref.segment], component, name)
        return name

    def add_path(self, path: Path, accumulate):
        """Add a path; `accumulate(component, expression)` adds to a component of its output."""
        scalars, vectors = [], []
        for position, ref in enumerate(path.factors):
            segment = self.form.inputs[ref.operand].segments[ref.segment]
            (scalars if segment.dim == 1 else vectors).append(position)
        out = self.form.outputs[path.output.operand].segments[path.output.segment]
        terms = []
        for components, value in path.terms:
            names = tuple(self._input(path.factors[p], components[p]) for p in vectors)
            terms.append((names, components[-1:] if out.dim > 1 else (), value))
        scale, values = self._contract(terms)
        factor = self._product([self._input(path.factors[p], 0) for p in scalars])
        factor = self._scaled(scale, factor)
        for index, value in values.items():
            sign = "-" if value.sign < 0 else ""
            names = [name for name in (factor, value.name) if name not in ("", "1.0")]
            accumulate(index[0] if index else 0, sign + (" * ".join(names) or "1.0"))

    def _contract(self, terms):
        """Return a scale, and the sum over terms (names, index, coefficient) for each index."""
        scale = _whole(abs(terms[0][2]))
        terms = [(names, index, _whole(value / scale)) for names, index, value in terms]
        key = self._key(terms)
        if key not in self._memo:
            add = self._sums if len(terms[0][0]) <= 2 else self._nested
            self._memo[key] = add(terms)
        return scale, self._memo[key]

    @staticmethod
    def _key(terms):
        return frozenset(
            (tuple(sorted(names)), index, round(value, 12)) for names, index, value in terms
        )

    def _sums(self, terms):
        """Sum paths of at most two factors: products by name, then one sum for each index."""
        sums = collections.defaultdict(list)
        for names, index, value in terms:
            sums[index].append((value, self._product(names) if names else ""))
        return {index: self._sum(parts) for index, parts in sums.items()}

    def _nested(self, terms):
        """Sum paths of more factors: pull one out, preferably one of which inner sums are known."""
        n = len(terms[0][0])

        def inner(position):
            return [
                (names[:position] + names[position + 1 :], (names[position], *index), value)
                for names, index, value in terms
            ]

        choices = [inner(position) for position in range(n)]
        known = [c for c in choices if self._known(c) is not None]
        if known:
            scale, values = self._known(known[0])
        else:
            fewest = min(choices, key=lambda c: len({(names, index[1:]) for names, index, _ in c}))
            scale, values = self._contract(fewest)
        sums = collections.defaultdict(list)
        for (name, *index), value in values.items():
            product = self._product([name, value.name]) if value.name else name
            sums[tuple(index)].append((value.sign * scale, product))
        return {index: self._sum(parts) for index, parts in sums.items()}

    def _known(self, terms):
        """Return inner sums that a path of this group has named, by the pulled component."""
        scale = abs(terms[0][2])
        component = {index[0]: int(index[0].rpartition("_")[2]) for _, index, _ in terms}
        renamed = [
            (names, (component[index[0]], *index[1:]), value / scale)
            for names, index, value in terms
        ]
        key = self._key(renamed)
        if key not in self._memo:
            return None
        name = {number: name for name, number in component.items()}
        values = self._memo[key].items()
        return scale, {(name[index[0]], *index[1:]): value for index, value in values}

    def _product(self, names) -> str:
        names = sorted(names)
        if not names:
            return "1.0"
        product = names[0]
        for n, name in enumerate(names[1:], start=2):
            product = self._once(tuple(names[:n]), f"{product} * {name}")
        return product

    def _scaled(self, scale: float, name: str) -> str:
        if scale == 1.0:
            return name
        if name == "1.0":
            return repr(scale)
        return self._once((scale, name), f"{scale!r} * {name}")

    def _once(self, key, text: str) -> str:
        """Return the variable that holds the value of `text`, written once in a group."""
        if key not in self._memo:
            self._memo[key] = self._name(text)
        return self._memo[key]

    def _sum(self, parts) -> _Sum:
        """Return the sum of coefficient * name; an empty name stands for one."""
        if len(parts) == 1 and abs(parts[0][0]) == 1.0:
            return _Sum(parts[0][0], parts[0][1])
        text = ""
        for value, name in parts:
            size = abs(value)
            term = repr(size) if not name else name if size == 1.0 else f"{size!r} * {name}"
            sign = "-" if value < 0 else "+"
            text += f" {sign} {term}" if text else f"{'-' if value < 0 else ''}{term}"
        return _Sum(1.0, self._name(text))

    def _name(self, text: str) -> str:
        self._temporaries += 1
        name = f"v{self._temporaries}"
        self._emit(f"{name} = {text}")
        return name


def _whole(value: float) -> float:
    """Return the integer that a coefficient is but for rounding, or the coefficient."""
    return float(round(value)) if abs(value - round(value)) < 1e-14 else value
