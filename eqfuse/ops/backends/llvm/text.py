"""LLVM IR as text, one function at a time: values by name, loops as `with` blocks."""

import contextlib
import dataclasses
import hashlib
import math
import struct
from collections.abc import Callable

from eqfuse.ops.ir.program import BYTES

TYPES = {"bool": "i1", "int32": "i32", "float32": "float", "float64": "double"}
STORED = {**TYPES, "bool": "i8"}
SUFFIX = {"float32": "f32", "float64": "f64"}
OF_A_PASS = "ptr %buffers, i64 %begin, i64 %end, i64 %rows, ptr %scratch"


def kind(dtype: str, lanes: int, stored: bool = False) -> str:
    """Return the type of `lanes` numbers, in registers or as they are stored."""
    name = (STORED if stored else TYPES)[dtype]
    return name if lanes == 1 else f"<{lanes} x {name}>"


def suffix(name: str, lanes: int) -> str:
    """Return the end of the name of an intrinsic of `lanes` numbers."""
    return name if lanes == 1 else f"v{lanes}{name}"


def literal(value: float, dtype: str, lanes: int = 1) -> str:
    """Return a constant, in every lane."""
    if dtype == "bool":
        text = "true" if value else "false"
    elif dtype == "int32":
        text = str(int(value))
    else:
        value = float(value)
        if dtype == "float32" and math.isfinite(value):
            value = struct.unpack("f", struct.pack("f", value))[0]
        text = f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
    return text if lanes == 1 else f"splat ({TYPES[dtype]} {text})"


class Loop:
    """A running loop: its counter, and the values that it carries from turn to turn."""

    def __init__(self, index: str, carried: list[str]):
        self.index, self.carried = index, carried
        self.next: list[str] = list(carried)


class Function:
    """Writes the statements of one function; of a pass, it computes units `%begin` to `%end`.

    A vector has at most `widest` lanes; floating point values are of `dtype`.
    """

    def __init__(self, dtype: str, widest: int = 1, parameters: str = OF_A_PASS):
        self.dtype, self.widest, self.parameters = dtype, widest, parameters
        self.declared: dict[str, str] = {}  # functions of the C library that it calls
        self.bytes = BYTES[dtype]
        self._lines: list[str] = ["entry:"]
        self._count = 0
        self._block = "entry"

    def text(self, name: str) -> str:
        """Return the function under a name."""
        statements = "\n  ".join(self._lines)
        return f"define internal void @{name}({self.parameters}) {{\n{statements}\n  ret void\n}}\n"

    def do(self, statement: str):
        self._lines.append(statement)

    def value(self, expression: str) -> str:
        """Name the value of an instruction."""
        self._count += 1
        self._lines.append(f"%v{self._count} = {expression}")
        return f"%v{self._count}"

    def _label(self, label: str):
        self._lines.append(f"{label}:")
        self._block = label

    @contextlib.contextmanager
    def loop(self, stop, start="0", step: int = 1, carried=(), kinds=()):
        """Write `for index in range(start, stop, step)`.

        `carried` are the first values of what is carried from turn to turn, of types `kinds`.
        """
        self._count += 1
        n, before = self._count, self._block
        index, after = f"%i{n}", f"%i{n}n"
        loop = Loop(index, [f"%c{n}_{k}" for k in range(len(carried))])
        self.do(f"br label %head{n}")
        self._label(f"head{n}")
        place = len(self._lines)
        inside = self.value(f"icmp slt i64 {index}, {stop}")
        self.do(f"br i1 {inside}, label %body{n}, label %done{n}")
        self._label(f"body{n}")
        yield loop
        self.do(f"{after} = add nsw i64 {index}, {step}")
        self.do(f"br label %head{n}")
        last = self._block
        phis = [f"{index} = phi i64 [{start}, %{before}], [{after}, %{last}]"]
        values = zip(loop.carried, kinds, carried, loop.next, strict=True)
        for name, kind, first, follow in values:
            phis.append(f"{name} = phi {kind} [{first}, %{before}], [{follow}, %{last}]")
        self._lines[place:place] = phis
        self._label(f"done{n}")

    def vector_loops(self, size: int):
        """Yield loops over `size` elements and the elements of a turn: whole vectors, then rest."""
        lanes = self.widest if size >= self.widest else 1
        whole = size // lanes * lanes
        for start, stop, count in ((0, whole, lanes), (whole, size, 1)):
            if start < stop:
                with self.loop(str(stop), start=str(start), step=count) as loop:
                    yield loop, count

    def vector(self, lanes: int, wide: bool = False) -> str:
        """Return the type of `lanes` real numbers, of float64 where it is `wide`."""
        return kind("float64" if wide else self.dtype, lanes)

    def constant(self, number: float, lanes: int = 1) -> str:
        """Return a literal, repeated in every lane."""
        return literal(number, self.dtype, lanes)

    def at(self, pointer: str, offset="0", unit: int = 1) -> str:
        """Return `pointer + offset * unit` in bytes; `offset` is a number or an i64."""
        if offset in (0, "0"):
            return pointer
        if isinstance(offset, int):
            offset *= unit
        elif unit != 1:
            offset = self.times(offset, unit)
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def times(self, index: str, factor) -> str:
        return self.value(f"mul nsw i64 {index}, {factor}")

    def plus(self, a: str, b) -> str:
        return self.value(f"add nsw i64 {a}, {b}")

    def whole(self, start: str, stop: str, step: int) -> str:
        """Return the end of the whole steps from `start` that do not go beyond `stop`."""
        rest = self.value(f"srem i64 {self.value(f'sub nsw i64 {stop}, {start}')}, {step}")
        return self.value(f"sub nsw i64 {stop}, {rest}")

    def minimum(self, a: str, b) -> str:
        less = self.value(f"icmp slt i64 {a}, {b}")
        return self.value(f"select i1 {less}, i64 {a}, i64 {b}")

    def maximum(self, a: str, b) -> str:
        more = self.value(f"icmp sgt i64 {a}, {b}")
        return self.value(f"select i1 {more}, i64 {a}, i64 {b}")

    def load(self, pointer: str, lanes: int = 1, wide: bool = False) -> str:
        return self.value(f"load {self.vector(lanes, wide)}, ptr {pointer}, align {self.bytes}")

    def store(self, value: str, pointer: str, lanes: int = 1, wide: bool = False):
        self.do(f"store {self.vector(lanes, wide)} {value}, ptr {pointer}, align {self.bytes}")

    def prefetch(self, pointer: str):
        """Ask for a cache line in level 2; any address is allowed, it need not be memory."""
        self.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")

    def stream(self, value: str, pointer: str, lanes: int):
        """Store past the caches, to where whole vectors lie."""
        kind, align = self.vector(lanes), lanes * self.bytes
        self.do(f"store {kind} {value}, ptr {pointer}, align {align}, !nontemporal !0")

    def either(self, condition: str, then: Callable, otherwise: Callable):
        """Write both alternatives, of which an i1 chooses one."""
        self._count += 1
        n = self._count
        self.do(f"br i1 {condition}, label %then{n}, label %else{n}")
        for name, statements in (("then", then), ("else", otherwise)):
            self._label(f"{name}{n}")
            statements()
            self.do(f"br label %end{n}")
        self._label(f"end{n}")

    def load_pointer(self, pointer: str) -> str:
        return self.value(f"load ptr, ptr {pointer}, align 8")

    def load_index(self, array: str, index: str) -> str:
        """Load an element of an array of 32-bit integers, as i64."""
        value = self.value(f"load i32, ptr {self.at(array, index, 4)}, align 4")
        return self.value(f"sext i32 {value} to i64")

    def splat(self, scalar: str, lanes: int, dtype: str = "") -> str:
        """Return a number, of the function's dtype if none is given, in every lane."""
        if lanes == 1:
            return scalar
        dtype = dtype or self.dtype
        vector, one = kind(dtype, lanes), TYPES[dtype]
        first = self.value(f"insertelement {vector} poison, {one} {scalar}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.value(f"shufflevector {vector} {first}, {vector} poison, {mask}")

    def mul(self, a: str, b: str, lanes: int) -> str:
        return self.value(f"fmul contract {self.vector(lanes)} {a}, {b}")

    def add(self, a: str, b: str, lanes: int) -> str:
        return self.value(f"fadd contract {self.vector(lanes)} {a}, {b}")

    def fma(self, a: str, b: str, c: str, lanes: int) -> str:
        """Return a * b + c, in one instruction where the machine has it."""
        v, name = self.vector(lanes), f"@llvm.fmuladd.{suffix(SUFFIX[self.dtype], lanes)}"
        return self.value(f"call {v} {name}({v} {a}, {v} {b}, {v} {c})")

    def add_wide(self, total: str | None, value: str, lanes: int) -> str:
        """Return total + value, with the total in float64; None is zero."""
        kind = self.vector(lanes, wide=True)
        if self.dtype == "float32":
            value = self.value(f"fpext {self.vector(lanes)} {value} to {kind}")
        if total is None:
            return value
        return self.value(f"fadd contract {kind} {total}, {value}")

    def sum_lanes(self, value: str, lanes: int) -> str:
        """Return the sum of all lanes of a wide vector, always in the same order on one machine."""
        if lanes > 1:
            kind = self.vector(lanes, wide=True)
            name = f"@llvm.vector.reduce.fadd.v{lanes}f64"
            value = self.value(f"call reassoc double {name}(double 0.0, {kind} {value})")
        if self.dtype == "float32":
            value = self.value(f"fptrunc double {value} to float")
        return value

    def zero(self, pointer: str, num_bytes: int, times: str = "1"):
        """Clear memory, or leave it as it is where `times` (i64) is 0."""
        if times != "1":
            num_bytes = self.times(times, num_bytes)
        self.do(f"call void @llvm.memset.p0.i64(ptr {pointer}, i8 0, i64 {num_bytes}, i1 false)")


DTYPES = {"bool": 1, "float32": 11, "float64": 12, "int32": 4}  # XLA_FFI_DataType
DATA, NODE_INDEX, ROW_INDEX, OFFSETS, SENDER_INDEX = 0, 1, 2, 3, 4  # what an array holds
# how many rows it has; nodes are those that receive, or all where as many send
ROWS, NODES, NODES_AND_ONE, SENDERS, SENDERS_AND_ONE = 0, 1, 2, 3, 4
INDEX_ROLES = {
    "senders": (ROWS, SENDER_INDEX),
    "receivers": (ROWS, NODE_INDEX),
    "receiver_order": (ROWS, ROW_INDEX),
    "sender_order": (ROWS, ROW_INDEX),
    "receiver_ptr": (NODES_AND_ONE, OFFSETS),
    "sender_ptr": (SENDERS_AND_ONE, OFFSETS),
    "index": (ROWS, NODE_INDEX),
    "order": (ROWS, ROW_INDEX),
    "offsets": (NODES_AND_ONE, OFFSETS),
}
ENDS_OF = {
    "receiver_order": ("receivers", "receiver_ptr"),
    "sender_order": ("senders", "sender_ptr"),
    "order": ("index", "offsets"),
}
"""By the name of an order: the ends that it sorts, and the offsets of nodes in it."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the runtime checks of an array: `DATA` [rows, width], or an index array [rows].

    The width of an index array of n rows is what its indices are less than, or where its offsets
    end.
    """

    dtype: str
    rows: int  # what its rows are; -n where there are n, whatever the call
    width: int
    name: str  # for errors
    role: int = DATA  # what it holds

    @classmethod
    def of_index(cls, name: str, size: int = 0, limit: int = 0) -> "Entry":
        """Return that of an index array; of one whose size is known, with its `width`."""
        rows, role = INDEX_ROLES[name]
        return cls("int32", -size if size else rows, limit, name, role)

    def shape(self, num_rows: int, num_nodes) -> tuple[int, int]:
        """Return its shape in a call; nodes may be those that receive, and that send."""
        nodes = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        counts = {ROWS: num_rows, NODES: nodes[0], SENDERS: nodes[1]}
        return counts.get(self.rows, -self.rows), self.width


class Arguments:
    """The arrays of a kernel, by keys such as ("in", 0), in the order in which they are added.

    Every pass of the kernel is given a table of pointers to them. Those that XLA hands over come
    first: the arguments, then the results. A kernel may add words of its own to the table.
    """

    def __init__(self, dtype: str):
        self.dtype, self.num_arguments = dtype, 0
        self.numbers: dict[tuple, int] = {}  # places in the table
        self.entries: list[Entry] = []  # of the arrays that XLA hands over

    def add(self, key: tuple, rows: int, width: int, name: str):
        """Add an array [rows, width]; see `Entry`."""
        self.add_entry(key, Entry(self.dtype, rows, width, name))

    def add_indices(self, names):
        for name in names:
            self.add_entry(("index", name), Entry.of_index(name))

    def add_entry(self, key: tuple, entry: Entry):
        self.add_word(key)
        self.entries.append(entry)

    def end(self):
        """End the arguments: what follows are results."""
        self.num_arguments = len(self.entries)

    @property
    def index_arrays(self) -> tuple[str, ...]:
        """Return the names of those of `add_indices`."""
        return tuple(name for side, name in self.numbers if side == "index")

    @property
    def results(self) -> tuple[Entry, ...]:
        return tuple(self.entries[self.num_arguments :])

    def add_word(self, key: tuple):
        """Add a word of the table that the kernel itself fills."""
        self.numbers[key] = len(self.numbers)

    def place(self, f: Function, *key) -> str:
        return f.at("%buffers", self.numbers[key] * 8)

    def load(self, f: Function, *key) -> str:
        return f.load_pointer(self.place(f, *key))


VERSION = 5
"""Version of the generated code and its interface to the runtime; part of every kernel's name."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One function of a kernel, which computes units `begin` to `end` of its work.

    A set of weights counts as a node. The function is given how many rows, or nodes, there are for
    `rows` if `count` is known.
    """

    name: str
    function: Function
    axis: int  # ROWS, NODES or SENDERS
    size: int = 1  # rows of a unit, or units of a node
    count: int = 0  # units, if the call does not decide how many there are
    row_cost: int = 0  # vector operations
    node_cost: int = 0
    scratch: int = 0  # bytes of memory that a thread needs

    def num_units(self, num_rows: int, num_nodes: int) -> int:
        """Return the number of units in a call, as the runtime counts them."""
        return -(-num_rows // self.size) if self.axis == ROWS else num_nodes * self.size


@dataclasses.dataclass(frozen=True)
class Module:
    """A kernel as LLVM IR, but for its handler, see `with_handler`.

    Called with its inputs, then `index_arrays`; results are the outputs, then scratch memory that
    its threads share.
    """

    name: str
    text: str
    index_arrays: tuple[str, ...]
    results: tuple[Entry, ...]
    others: tuple[str, ...] = ()  # texts for other machines, see `machine.recording`


@dataclasses.dataclass(frozen=True)
class KernelPasses:
    """The passes of a kernel, in order, before they are put together to a `Module`."""

    arguments: Arguments
    functions: dict[str, str]  # the texts or declarations of functions that they call, by name
    passes: list[Pass]
    orders: list[tuple[int, ...]] | None = None  # see `ENDS_OF`; by name if None

    def module(self) -> Module:
        """Return the kernel: its functions, what the runtime checks and runs, and the handler."""
        arguments, entries = self.arguments, self.arguments.entries
        # the mark of `Function.stream`; LLVM's parser declares intrinsics itself
        texts = ["!0 = !{i32 1}\n", *self.functions.values()]
        texts += [p.function.text(p.name) for p in self.passes]
        for n, entry in enumerate(entries):
            size = len(entry.name.encode()) + 1
            texts.append(f'@name{n} = internal constant [{size} x i8] c"{entry.name}\\00"')
        checks = [
            (DTYPES[e.dtype], 1 + (e.role == DATA), e.rows, e.width, e.role, f"@name{n}")
            for n, e in enumerate(entries)
        ]
        runs = []
        for p in self.passes:  # the runtime takes the units of nodes as negative sizes
            size = p.size if p.axis == ROWS else -p.size
            work = p.row_cost, p.node_cost, p.scratch, p.count, int(p.axis == SENDERS)
            runs.append((f"@{p.name}", size, *work))
        inputs = arguments.num_arguments
        counts = inputs, len(entries) - inputs, len(self.passes)
        orders = self.orders
        if orders is None:
            places = {e.name: n for n, e in enumerate(entries[:inputs]) if e.role != DATA}
            found = (n for n in ENDS_OF if n in places)
            orders = [tuple(places[k] for k in (n, *ENDS_OF[n])) for n in found]
        tables = {"buffers": checks, "passes": runs, "orders": orders or [(0, 0, 0)]}
        texts += [_table(name, rows) for name, rows in tables.items()]
        spec = _words((*counts, "@buffers", "@passes", len(orders), "@orders"))
        texts.append(f"@spec = internal constant {spec}\n")
        text = "\n".join(texts)
        name = f"eqfuse_{VERSION}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        return Module(name, text, arguments.index_arrays, arguments.results)


def with_handler(text: str, name: str) -> str:
    """Return the text of a module with what XLA calls, under a name."""
    return (
        f"{text}declare ptr @eqfuse_call(ptr, ptr)\n"
        f"define ptr @{name}(ptr %frame) {{\n"
        "  %r = call ptr @eqfuse_call(ptr %frame, ptr @spec)\n  ret ptr %r\n}\n"
    )


def _words(words) -> str:
    """Return a constant of words: numbers, and names of what they point to."""
    kinds = ["ptr" if isinstance(word, str) else "i64" for word in words]
    pairs = ", ".join(f"{kind} {word}" for kind, word in zip(kinds, words, strict=True))
    return f"{{{', '.join(kinds)}}} {{{pairs}}}"


def _table(name: str, rows) -> str:
    """Return a constant array of rows of words, at least one."""
    texts = [_words(row) for row in rows]
    kind = texts[0].partition("}")[0] + "}"
    return f"@{name} = internal constant [{len(texts)} x {kind}] [{', '.join(texts)}]"
