"""Writes what the runtime is made of: words of structures, loops and atomic counters.

Structures are those of `xla/ffi/api/c_api.h`, read as words of eight bytes.
"""

import contextlib

from llvmlite import ir

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
PTR = ir.PointerType()
NULL = ir.Constant(PTR, None)

API, ERROR_DESTROY = 2, 8  # words of XLA_FFI_CallFrame and XLA_FFI_Api


class Builder(ir.IRBuilder):
    """IRBuilder with words, loops and atomic counters."""

    def number(self, value: int):
        return ir.Constant(I64, value)

    def word_at(self, pointer, k):
        k = self.number(k) if isinstance(k, int) else k
        return self.gep(pointer, [k], source_etype=I64)

    def word(self, pointer, k):
        return self.load(self.word_at(pointer, k), typ=I64, align=8)

    def pointer(self, pointer, k):
        return self.load(self.word_at(pointer, k), typ=PTR, align=8)

    def low_half(self, pointer, k):
        return self.zext(self.load(self.word_at(pointer, k), typ=I32, align=4), I64)

    def set_word(self, pointer, k, value):
        value = self.number(value) if isinstance(value, int) else value
        self.store(value, self.word_at(pointer, k), align=8)

    def variable(self, first):
        """Return a number that changes, on the stack of the function."""
        with self.goto_entry_block():
            place = self.alloca(I64)
        self.store(self.number(first) if isinstance(first, int) else first, place)
        return place

    def now(self, variable):
        return self.load(variable, typ=I64)

    def count(self, pointer, k, value):
        """Add to an atomic counter; what it held before."""
        value = self.number(value) if isinstance(value, int) else value
        return self.atomic_rmw("add", self.word_at(pointer, k), value, "seq_cst")

    def observe(self, pointer, k, kind=I64):
        return self.load_atomic(self.word_at(pointer, k), "seq_cst", 8, typ=kind)

    def smaller(self, a, b):
        return self.select(self.icmp_signed("<", a, b), a, b)

    def callable(self, pointer, kind: ir.FunctionType):
        """Return a pointer as a function that can be called."""
        return self.inttoptr(self.ptrtoint(pointer, I64), kind.as_pointer())

    @contextlib.contextmanager
    def each(self, stop, start=0):
        """Write `for i in range(start, stop)`."""
        i = self.variable(start)
        head, body, done = (self.append_basic_block(n) for n in ("head", "body", "done"))
        self.branch(head)
        self.position_at_end(head)
        now = self.now(i)
        self.cbranch(self.icmp_signed("<", now, stop), body, done)
        self.position_at_end(body)
        yield now
        self.store(self.add(now, self.number(1)), i)
        self.branch(head)
        self.position_at_end(done)

    @contextlib.contextmanager
    def forever(self):
        """Write `while True`; the body leaves by `branch` to the block that this yields."""
        body, done = self.append_basic_block("body"), self.append_basic_block("done")
        self.branch(body)
        self.position_at_end(body)
        yield done
        self.branch(body)
        self.position_at_end(done)


class RuntimeModule:
    """A module of LLVM IR with its functions and texts, and the C functions that they call.

    Args:
      name: of the module.
      linux: whether it may call what only Linux has: madvise.
    """

    def __init__(self, name: str, linux: bool = False):
        self.module = ir.Module(name)
        self._texts = 0
        self.malloc = self._external("malloc", PTR, [I64])
        self.calloc = self._external("calloc", PTR, [I64, I64])
        self.free = self._external("free", ir.VoidType(), [PTR])
        self.sched_yield = self._external("sched_yield", I32, [])
        self.usleep = self._external("usleep", I32, [I32])
        if linux:
            self.madvise = self._external("madvise", I32, [PTR, I64, I32])
        self.snprintf = self._external("snprintf", I32, [PTR, I64, PTR], var_arg=True)

    def __str__(self):
        return str(self.module)

    def _external(self, name: str, result, arguments, var_arg=False):
        kind = ir.FunctionType(result, arguments, var_arg=var_arg)
        return ir.Function(self.module, kind, name)

    def counter(self, name: str, first: int):
        """Return a number of the whole process."""
        variable = ir.GlobalVariable(self.module, I64, name)
        variable.initializer = ir.Constant(I64, first)
        return variable

    def function(self, name: str, result, arguments, linkage="internal"):
        """Return a new function, its builder, and its arguments, given as (name, type)."""
        kind = ir.FunctionType(result, [t for _, t in arguments])
        function = ir.Function(self.module, kind, name)
        function.linkage = linkage
        for argument, (n, _) in zip(function.args, arguments, strict=True):
            argument.name = n
        return function, Builder(function.append_basic_block("entry")), function.args

    def literal(self, text: str):
        """Return a text that ends with zero, as C has them."""
        data = bytearray(text.encode() + b"\0")
        kind = ir.ArrayType(I8, len(data))
        self._texts += 1
        variable = ir.GlobalVariable(self.module, kind, f"text{self._texts}")
        variable.linkage, variable.global_constant = "internal", True
        variable.initializer = ir.Constant(kind, data)
        return variable
