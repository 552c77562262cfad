"""Emitters of Triton source: lines, and, of dense kernels, names and matmuls."""

import contextlib
from typing import NamedTuple

from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.ir.contraction import Contraction, split
from eqfuse.ops.ir.form import Form, Operand, Path, ordered_groups

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
    """Collects the lines of one dense kernel; `input_precision` is that of matmuls in float32.

    With `by_bits`, "tf32x3" is written out: Triton's own also keeps what inf touches from becoming
    NaN, which takes a third of the instructions of a loop over channels.
    """

    def __init__(self, dtype: str, input_precision: str = "ieee", by_bits: bool = False):
        super().__init__()
        self.dtype, self.by_bits = dtype, by_bits
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
        if self.by_bits:
            (left, a), (right, b) = map(self._halves, (left, right))
            rest = self._dot(left, b, "tf32", self._dot(a, right, "tf32"))
            product = self._dot(left, right, "tf32", rest)
        else:
            product = self._dot(left, right, self.input_precision)
        return product if scale == 1.0 else f"{scale!r} * {product}"

    def _dot(self, left: str, right: str, precision: str, *total: str) -> str:
        arguments = ", ".join([left, right, *total])
        return f"tl.dot({arguments}, input_precision={precision!r}, out_dtype={self.real})"

    def _halves(self, factor: str) -> tuple[str, str]:
        """Return variables of a factor rounded to the 11 bits of TF32, and of what that leaves."""
        factor = self.name(factor)
        bits = f"{factor}.to(tl.int32, bitcast=True) + 4096"
        high = self.name(f"(({bits}) & -8192).to(tl.float32, bitcast=True)")
        return high, self.name(f"{factor} - {high}")


class _Sum(NamedTuple):
    """A variable with a sign; "" is one."""

    sign: float
    name: str


class ArithmeticEmitter(Contraction):
    """Writes the statements of a form, one group of paths at a time.

    `define(operand, segment, component, name)` writes the statement that defines a component of an
    input when it is first used.
    """

    TOGETHER = 2  # a thread has 255 registers
    NUMBERS = False

    def __init__(self, form: Form, define, emit):
        super().__init__(form)
        self._define, self._emit = define, emit
        self._loaded: set[str] = set()
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

    def add_path(self, path: Path, accumulate):
        """Add a path; `accumulate(component, expression)` adds to a component of its output."""
        vectors, _, entries = split(self.form, path, self.NUMBERS)
        for (components, _), _ in entries:
            for ref, component in zip(vectors, components, strict=True):
                self.input((ref.operand, ref.segment, component))
        factor, values = self.values(path)
        for component, (sign, name) in values.items():
            names = [n for n in (factor, name) if n]
            accumulate(component, "-" * (sign < 0) + (" * ".join(names) or "1.0"))

    def load(self, ref: int, number: int, component: int) -> str:
        operand = self.form.inputs[ref]
        name = component_name(operand, number, component)
        if name not in self._loaded:
            self._loaded.add(name)
            self._define(operand, operand.segments[number], component, name)
        return name

    def number(self, number: float) -> float:
        return number

    def multiply(self, a: str, b: str) -> str:
        return self._name(f"{a} * {b}")

    def scaled(self, scale: float, value: str | None) -> str:
        return repr(scale) if value is None else self._name(f"{scale!r} * {value}")

    def total(self, parts: list[tuple]) -> _Sum:
        terms = [self._term(*part) for part in parts]
        if len(terms) == 1 and abs(terms[0].sign) == 1.0:
            return terms[0]
        text = ""
        for number, name in terms:
            size = abs(number)
            term = repr(size) if not name else name if size == 1.0 else f"{size!r} * {name}"
            sign = "-" if number < 0 else "+"
            text += f" {sign} {term}" if text else f"{'-' if number < 0 else ''}{term}"
        return _Sum(1.0, self._name(text))

    def _term(self, number: float, a: str | None, b: _Sum | None) -> _Sum:
        if b is None:
            return _Sum(number, a or "")
        name = self.known((a, b.name), lambda: self.multiply(a, b.name)) if b.name else a
        return _Sum(number * b.sign, name)

    def _name(self, text: str) -> str:
        self._temporaries += 1
        name = f"v{self._temporaries}"
        self._emit(f"{name} = {text}")
        return name
