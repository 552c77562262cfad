"""What the emitters of Triton kernels share: lines; of dense ones also names and matmuls."""

import contextlib
from collections.abc import Iterable

from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.ir.operands import Operand

SLICE = 16
"""Terms of one matmul: as few as Triton takes, since each is code, and loops are not."""
WARPS = 4


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def component_name(operand: Operand, segment: int, component: int) -> str:
    """Return the variable that holds one component of an operand."""
    return f"{operand.name}_{segment}_{component}"


def program(note: str, names: list[str], lines: list[str], sums: Iterable[int] = ()) -> str:
    """Return the source of a kernel of the parameters `names`, with a note above it.

    Before it stand functions `add_N` that add N values to N others, for each N of `sums`.
    """
    return "\n".join(
        [
            *(f"# {line}" for line in note.splitlines()),
            "import triton",
            "import triton.language as tl",
            *(line for number in sorted(sums) for line in _adder(number)),
            "",
            "",
            "@triton.jit",
            f"def KERNEL({', '.join(names)}):",
            *lines,
            "",
        ]
    )


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

    def emit(self, line: str):
        self.lines.append("    " * self.indent + line)

    @contextlib.contextmanager
    def block(self, head: str):
        """Indent lines inside an `if`, a `for` or a `while`."""
        self.emit(head)
        self.indent += 1
        yield
        self.indent -= 1


class DenseEmitter(Emitter):
    """Collects the lines of one dense kernel.

    Args:
      dtype: of the operands, a numpy name.
      input_precision: of matmuls in float32, as `tl.dot` names it.
    """

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
        """Return variables for tensor[..., k] of each k less than `count`, a power of two.

        Their order is not that of k, but the same for all tensors.
        """
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
        """Return a variable that holds what lies there, zero where masked, in its own precision.

        It is a factor of matmuls: the matrix unit multiplies 16-bit numbers, and adds in float32.
        """
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

    def spec(
        self, stem: str, note: str, inputs, integers, scalars, outputs, warps: int = WARPS, sums=()
    ) -> KernelSpec:
        """Return the kernel with these parameters and the lines written so far.

        Args:
          stem: of its name.
          note: a comment above it.
          inputs: names of its inputs; the pointer of `a` is called `a_ptr`.
          integers: those that are int32.
          scalars: names of scalars.
          outputs: the dtype of each output by its name.
          warps: of a program.
          sums: see `program`.
        """
        names = [f"{n}_ptr" for n in inputs] + list(scalars) + [f"{n}_ptr" for n in outputs]
        source = program(note, names, self.lines, sums)
        types = [pointer_type("int32" if n in integers else self.dtype) for n in inputs]
        results = [pointer_type(dtype) for dtype in outputs.values()]
        return KernelSpec.build(stem, source, types, results, scalars, warps)
