"""A module of LLVM IR: the passes of a kernel, and the tables that the runtime reads."""

import dataclasses
import enum
import hashlib

from eqfuse.ops.backends.llvm.emit import ir
from eqfuse.ops.backends.llvm.emit.arguments import Arguments

VERSION = 3
"""Version of the generated code and its interface to the runtime; part of every kernel's name."""

SIGNATURE = "(ptr %buffers, i64 %begin, i64 %end, i64 %rows, ptr %scratch)"


class Axis(enum.Enum):
    """What the work of a pass is cut along; a set of weights counts as a node."""

    ROWS = "rows"
    NODES = "nodes"


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of work of a pass.

    Attributes:
      axis: what they are cut along. A function is given how many of these there are for `rows` if
        `count` is known.
      size: rows of a unit, or units of a node.
      count: how many there are, if the call does not decide it; otherwise 0.
    """

    axis: Axis
    size: int = 1
    count: int = 0

    def number(self, num_rows: int, num_nodes: int) -> int:
        """Return how many there are in a call, as the runtime counts them."""
        if self.axis is Axis.ROWS:
            return -(-num_rows // self.size)
        return num_nodes * self.size

    @property
    def words(self) -> tuple[int, int]:
        """Return the two words that the runtime reads."""
        return (self.size if self.axis is Axis.ROWS else -self.size), self.count


@dataclasses.dataclass(frozen=True)
class Pass:
    """One function of a kernel.

    Attributes:
      name, text: of the function, which computes units `begin` to `end`.
      units: what they are.
      row_cost, node_cost: vector operations of a row, and of a node.
      scratch: bytes of memory that a thread needs.
    """

    name: str
    text: str
    units: Units
    row_cost: int = 0
    node_cost: int = 0
    scratch: int = 0


@dataclasses.dataclass(frozen=True)
class Module:
    """A kernel as LLVM IR.

    Called with its inputs, then `index_arrays`; results are the outputs, then an array of rows of
    scratch memory for each width in `copies`.
    """

    name: str
    text: str
    index_arrays: tuple[str, ...]
    copies: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KernelPasses:
    """The passes of a kernel, before they are put together.

    Attributes:
      arguments: the arrays that they are called with.
      functions: the texts of functions that they call, by name.
      passes: in the order in which they run.
      index_arrays, copies: see `Module`.
      declared: the declarations of the functions that they call, besides `ir.declarations`.
    """

    arguments: Arguments
    functions: dict[str, str]
    passes: list[Pass]
    index_arrays: tuple[str, ...]
    copies: tuple[int, ...]
    declared: frozenset[str] = frozenset()

    def module(self, dtype: str) -> Module:
        """Return the kernel."""
        texts = [ir.declarations(dtype), *self.functions.values(), *(p.text for p in self.passes)]
        text, name = assemble(texts, self.arguments, self.passes)
        return Module(name, text, self.index_arrays, self.copies)


def assemble(texts, arguments: Arguments, passes) -> tuple[str, str]:
    """Return a module's text and its name.

    The text has the functions, what the runtime checks and runs, and the handler.

    Args:
      texts: of the functions.
      arguments: the arrays.
      passes: in the order in which they run.
    """
    names, checks = [], []
    for n, entry in enumerate(arguments.entries):
        text = entry.name.encode() + b"\\00"
        names.append(f'@name{n} = internal constant [{len(text) - 2} x i8] c"{text.decode()}"')
        words = (entry.dtype, entry.rank, entry.rows, entry.width, entry.role)
        numbers = ", ".join(f"i64 {w}" for w in words)
        checks.append(f"{{i64, i64, i64, i64, i64, ptr}} {{{numbers}, ptr @name{n}}}")
    runs = [
        "{ptr, i64, i64, i64, i64, i64} {"
        f"ptr @{p.name}, i64 {size}, i64 {p.row_cost}, i64 {p.node_cost}, i64 {p.scratch}, "
        f"i64 {count}}}"
        for p in passes
        for size, count in [p.units.words]
    ]
    num_arguments = arguments.num_arguments
    counts = f"i64 {num_arguments}, i64 {len(checks) - num_arguments}, i64 {len(passes)}"
    text = "\n".join(
        [
            *texts,
            *names,
            f"@buffers = internal constant [{len(checks)} x {{i64, i64, i64, i64, i64, ptr}}] "
            f"[{', '.join(checks)}]",
            f"@passes = internal constant [{len(runs)} x {{ptr, i64, i64, i64, i64, i64}}] "
            f"[{', '.join(runs)}]",
            "@spec = internal constant {i64, i64, i64, ptr, ptr} "
            f"{{{counts}, ptr @buffers, ptr @passes}}\n",
        ]
    )
    name = f"eqfuse_{VERSION}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    text += (
        "declare ptr @eqfuse_call(ptr, ptr)\n"
        f"define ptr @{name}(ptr %frame) {{\n"
        "  %r = call ptr @eqfuse_call(ptr %frame, ptr @spec)\n  ret ptr %r\n}\n"
    )
    return text, name
