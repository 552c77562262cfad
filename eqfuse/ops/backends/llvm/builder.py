"""IRBuilder of llvmlite with the words, loops and counters that the runtime is written in."""

import contextlib

from llvmlite import ir

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
PTR = ir.PointerType()
NULL = ir.Constant(PTR, None)


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

    def observe(self, pointer, k):
        return self.load_atomic(self.word_at(pointer, k), "seq_cst", 8, typ=I64)

    def smaller(self, a, b):
        return self.select(self.icmp_signed("<", a, b), a, b)

    def callable(self, pointer, kind: ir.FunctionType):
        """Return a pointer as a function that can be called."""
        return self.inttoptr(self.ptrtoint(pointer, I64), kind.as_pointer())

    def index(self, data, k):
        return self.load(self.gep(data, [k], source_etype=I32), typ=I32, align=4)

    @contextlib.contextmanager
    def each(self, stop, start=None, carried=()):
        """Write `for i in range(start, stop)`, and yield i, what is carried and a list.

        The list gets what is carried to the next turn; `self.carried` is what the loop ends with.
        """
        before = self.block
        head, body, done = (self.append_basic_block(n) for n in ("head", "body", "done"))
        self.branch(head)
        self.position_at_end(head)
        start = self.number(0) if start is None else start
        phis = [self.phi(value.type) for value in (start, *carried)]
        for phi, value in zip(phis, (start, *carried), strict=True):
            phi.add_incoming(value, before)
        i, *held = phis
        self.cbranch(self.icmp_signed("<", i, stop), body, done)
        self.position_at_end(body)
        following = []
        yield i, held, following
        for phi, value in zip(phis, (self.add(i, self.number(1)), *following), strict=True):
            phi.add_incoming(value, self.block)
        self.branch(head)
        self.position_at_end(done)
        self.carried = held

    @contextlib.contextmanager
    def forever(self):
        """Write `while True`; the body leaves by `branch` to the block that this yields."""
        body, done = self.append_basic_block("body"), self.append_basic_block("done")
        self.branch(body)
        self.position_at_end(body)
        yield done
        self.branch(body)
        self.position_at_end(done)
