"""The handler that XLA calls, as LLVM IR: it checks the call and runs the passes of a kernel.

The handler of every kernel calls `eqfuse_call(frame, spec)`, which compares the buffers of the call
with the kernel's description, looks through the index arrays, and runs the passes, each on as many
of XLA's threads as it is worth.
"""

import contextlib

from llvmlite import ir

from eqfuse.ops.backends.llvm.text import NODE_INDEX, NODES_AND_ONE, OFFSETS, ROW_INDEX, ROWS

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
PTR = ir.PointerType()
NULL = ir.Constant(PTR, None)

# words of XLA_FFI_CallFrame, XLA_FFI_Api and XLA_FFI_Buffer, and their codes
EXTENSION, API, CONTEXT = 1, 2, 3
SIDES = (("argument", 7, 9), ("result", 12, 14))  # count, pointers
ERROR_CREATE, ERROR_DESTROY, SCHEDULE, NUM_THREADS = 6, 8, 17, 18
METADATA_EXTENSION, FLOAT64 = 1, 12
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, OUT_OF_RANGE = 3, 8, 11

# words of a job: see Runtime._parallel
REFERENCES, NEXT, DONE, COUNT, CHUNK, FUNCTION, BUFFERS, NUM_ROWS, SCRATCH, FAILED = range(10)

WORK_OF_A_THREAD = 30_000
"""Vector operations that are worth waking a thread for: about ten microseconds."""

NO_MEMORY = "no memory for %lld bytes of scratch"
INDEX_OUTSIDE = "%s[%lld] is %lld, outside [0, %lld)"
NOT_IN_ORDER = "%s[%lld] is %lld, not in [%lld, %lld]: indices of edges must be in [0, %lld)"

LARGE, LARGE_PAGE, MADV_HUGEPAGE = 1 << 22, 1 << 21, 14
"""Bytes of results worth large pages, bytes of a large page, and Linux's word for them."""


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


class Runtime:
    """Builds the module that every kernel shares.

    `eqfuse_limit` is the most threads that kernels of this process use, `eqfuse_active` how many
    they do. `version` is that of XLA's foreign function interface; `large_pages` asks Linux for
    them where large results are written.
    """

    def __init__(self, version: tuple[int, int], large_pages: bool):
        self.module = ir.Module("eqfuse_runtime")
        self.version, self.large_pages, self._texts = version, large_pages, 0
        self.malloc = self._external("malloc", PTR, [I64])
        self.calloc = self._external("calloc", PTR, [I64, I64])
        self.free = self._external("free", ir.VoidType(), [PTR])
        self.sched_yield = self._external("sched_yield", I32, [])
        if large_pages:
            self.madvise = self._external("madvise", I32, [PTR, I64, I32])
        self.snprintf = self._external("snprintf", I32, [PTR, I64, PTR], var_arg=True)
        self.limit = self._counter("eqfuse_limit", 1)
        self.active = self._counter("eqfuse_active", 0)
        self.work = self._work()
        self.helper = self._helper()
        self.parallel = self._parallel()
        self._call()

    def text(self) -> str:
        return str(self.module)

    def _external(self, name: str, result, arguments, var_arg=False):
        kind = ir.FunctionType(result, arguments, var_arg=var_arg)
        return ir.Function(self.module, kind, name)

    def _counter(self, name: str, first: int):
        """Return a number of the whole process."""
        variable = ir.GlobalVariable(self.module, I64, name)
        variable.initializer = ir.Constant(I64, first)
        return variable

    def _function(self, name: str, result, linkage="internal", **arguments):
        """Return a new function, its builder, and its arguments, given with their types."""
        function = ir.Function(self.module, ir.FunctionType(result, arguments.values()), name)
        function.linkage = linkage
        for argument, n in zip(function.args, arguments, strict=True):
            argument.name = n
        return function, Builder(function.append_basic_block("entry")), function.args

    def _literal(self, text: str):
        """Return a text that ends with zero, as C has them."""
        data = bytearray(text.encode() + b"\0")
        kind = ir.ArrayType(I8, len(data))
        self._texts += 1
        variable = ir.GlobalVariable(self.module, kind, f"text{self._texts}")
        variable.linkage, variable.global_constant = "internal", True
        variable.initializer = ir.Constant(kind, data)
        return variable

    # threads

    def _work(self):
        """Take chunks of a job until there are none."""
        function, b, (job,) = self._function("work", ir.VoidType(), job=PTR)
        memory = b.call(self.malloc, [b.add(b.word(job, SCRATCH), b.number(64))])
        address = b.add(b.ptrtoint(memory, I64), b.number(63))
        scratch = b.inttoptr(b.and_(address, b.number(-64)), PTR)
        missing = b.icmp_unsigned("==", memory, NULL)
        chunk, count = b.word(job, CHUNK), b.word(job, COUNT)
        kind = ir.FunctionType(ir.VoidType(), [PTR, I64, I64, I64, PTR])
        pass_function = b.pointer(job, FUNCTION)
        with b.forever() as done:
            first = b.count(job, NEXT, chunk)
            with b.if_then(b.icmp_signed(">=", first, count)):
                b.branch(done)
            last = b.smaller(b.add(first, chunk), count)
            with b.if_else(missing) as (then, otherwise):
                with then:
                    b.count(job, FAILED, 1)
                with otherwise:
                    arguments = [b.pointer(job, BUFFERS), first, last, b.word(job, NUM_ROWS)]
                    b.call(b.callable(pass_function, kind), [*arguments, scratch])
            b.count(job, DONE, b.sub(last, first))
        b.call(self.free, [memory])
        b.ret_void()
        return function

    def _release(self, b: Builder, job):
        """Drop a reference to a job; the last one frees it."""
        before = b.count(job, REFERENCES, -1)
        with b.if_then(b.icmp_signed("==", before, b.number(1))):
            b.call(self.free, [job])

    def _helper(self):
        """Write what a thread of XLA's pool does: help with the job while there is work."""
        function, b, (job,) = self._function("helper", ir.VoidType(), job=PTR)
        before = b.count(self.active, 0, 1)
        allowed = b.icmp_signed("<", before, b.word(self.limit, 0))
        left = b.icmp_signed("<", b.observe(job, NEXT), b.word(job, COUNT))
        with b.if_then(b.and_(allowed, left)):
            b.call(self.work, [job])
        b.count(self.active, 0, -1)
        self._release(b, job)
        b.ret_void()
        return function

    def _ask(self, b: Builder, api, function: int, words):
        """Call a function of XLA; return whether it answered with an error, which is destroyed."""
        error = self._xla(b, api, function, words)
        failed = b.icmp_unsigned("!=", error, NULL)
        with b.if_then(failed):
            self._xla(b, api, ERROR_DESTROY, [b.ptrtoint(error, I64)], ir.VoidType())
        return failed

    def _xla(self, b: Builder, api, function: int, words, result=PTR):
        """Call a function of XLA's table with a structure of these words."""
        words = [8 * (len(words) + 2), 0, *words]
        with b.goto_entry_block():
            structure = b.alloca(I64, len(words))
        for k, value in enumerate(words):
            b.set_word(structure, k, value)
        kind = ir.FunctionType(result, [PTR])
        return b.call(b.callable(b.pointer(api, function), kind), [structure])

    def _parallel(self):
        """Run one pass on as many threads as it is worth; how many chunks failed for memory."""
        numbers = dict.fromkeys(("count", "rows", "scratch", "work"), I64)
        arguments = {"frame": PTR, "function": PTR, "buffers": PTR, **numbers}
        made, b, args = self._function("parallel", I64, **arguments)
        frame, function, buffers, count, rows, scratch, work = args
        api, context = b.pointer(frame, API), b.word(frame, CONTEXT)
        helpers = b.variable(b.sub(b.word(self.limit, 0), b.number(1)))

        def at_most(value):
            b.store(b.smaller(b.now(helpers), value), helpers)

        at_most(b.sub(count, b.number(1)))
        at_most(b.sdiv(work, b.number(WORK_OF_A_THREAD)))
        with b.if_then(b.icmp_signed(">", b.now(helpers), b.number(0))):
            threads = b.variable(0)
            failed = self._ask(b, api, NUM_THREADS, [context, b.ptrtoint(threads, I64)])
            at_most(b.select(failed, b.number(0), b.now(threads)))
        helping = b.now(helpers)
        helping = b.select(b.icmp_signed("<", helping, b.number(0)), b.number(0), helping)

        job = b.call(self.malloc, [b.number(80)])
        with b.if_then(b.icmp_unsigned("==", job, NULL)):
            b.ret(b.number(1))
        parts = b.mul(b.add(helping, b.number(1)), b.number(8))
        chunk = b.sdiv(b.add(count, b.sub(parts, b.number(1))), parts)
        for k, value in {
            REFERENCES: b.add(helping, b.number(1)),
            NEXT: 0,
            DONE: 0,
            COUNT: count,
            CHUNK: chunk,
            FUNCTION: b.ptrtoint(function, I64),
            BUFFERS: b.ptrtoint(buffers, I64),
            NUM_ROWS: rows,
            SCRATCH: scratch,
            FAILED: 0,
        }.items():
            b.set_word(job, k, value)
        task = b.ptrtoint(self.helper, I64)
        with b.each(helping):
            refused = self._ask(b, api, SCHEDULE, [context, task, b.ptrtoint(job, I64)])
            with b.if_then(refused):
                b.count(job, REFERENCES, -1)
        b.count(self.active, 0, 1)
        b.call(self.work, [job])
        with b.forever() as done:
            with b.if_then(b.icmp_signed(">=", b.observe(job, DONE), count)):
                b.branch(done)
            b.call(self.sched_yield, [])
        b.count(self.active, 0, -1)
        failures = b.observe(job, FAILED)
        self._release(b, job)
        b.ret(failures)
        return made

    # the handler

    def _fail(self, b: Builder, frame, code: int, text: str, *values):
        with b.goto_entry_block():
            message = b.alloca(I8, 512)
        text = self._literal(f"eqfuse: {text}")
        b.call(self.snprintf, [message, b.number(512), text, *values])
        words = [b.ptrtoint(message, I64), code]
        b.ret(self._xla(b, b.pointer(frame, API), ERROR_CREATE, words))

    def _fail_if(self, b: Builder, condition, frame, code: int, text: str, *values, likely=None):
        """Fail where a condition holds; a value may be a function that gives it."""
        with b.if_then(condition, likely=likely):
            self._fail(b, frame, code, text, *(v() if callable(v) else v for v in values))

    def _call(self):
        """Write what handlers call: XLA's question for its version, or a call of the kernel.

        `spec` is what `text.KernelPasses` writes.
        """
        arguments = {"frame": PTR, "spec": PTR}
        _, b, (frame, spec) = self._function("eqfuse_call", PTR, "external", **arguments)
        extension = b.pointer(frame, EXTENSION)
        with b.if_then(b.icmp_unsigned("!=", extension, NULL)):
            kind = b.low_half(extension, 1)
            with b.if_then(b.icmp_unsigned("==", kind, b.number(METADATA_EXTENSION))):
                major, minor = self.version
                b.set_word(b.pointer(extension, 3), 3, (minor << 32) | major)
                b.ret(NULL)
        counts = [b.word(spec, 0), b.word(spec, 1)]
        table, passes = b.pointer(spec, 3), b.pointer(spec, 4)
        buffers = b.alloca(PTR, b.add(*counts))
        rows, nodes = b.variable(-1), b.variable(-1)
        first = b.number(0)
        for (side, *words), count in zip(SIDES, counts, strict=True):
            given = b.word(frame, words[0])
            text, wrong = f"expected %lld {side}s, got %lld", b.icmp_signed("!=", given, count)
            self._fail_if(b, wrong, frame, INVALID_ARGUMENT, text, count, given)
            pointers = b.pointer(frame, words[1])
            with b.each(count) as k:
                entry = b.word_at(table, b.mul(b.add(first, k), b.number(6)))
                self._check_buffer(b, frame, entry, b.pointer(pointers, k), rows, nodes)
                data = b.pointer(b.pointer(pointers, k), 3)
                b.store(data, b.gep(buffers, [b.add(first, k)], source_etype=PTR))
            first = count
        with b.each(counts[0]) as k:
            entry = b.word_at(table, b.mul(k, b.number(6)))
            data = b.load(b.gep(buffers, [k], source_etype=PTR), typ=PTR)
            self._check_indices(b, frame, entry, data, b.now(rows), b.now(nodes))
        if self.large_pages:
            with b.each(counts[1]) as k:
                buffer = b.pointer(b.pointer(frame, SIDES[1][2]), k)
                self._ask_for_large_pages(b, buffer)
        with b.each(b.word(spec, 2)) as k:
            self._run_pass(b, frame, b.word_at(passes, b.mul(k, b.number(6))), buffers, rows, nodes)
        b.ret(NULL)

    def _check_buffer(self, b: Builder, frame, entry, buffer, rows, nodes):
        """Check an entry: dtype, rank, what its rows are, width, role, name."""
        name = b.pointer(entry, 5)
        for k, what in ((2, "type"), (4, "rank")):
            values = b.word(entry, k // 2 - 1), b.low_half(buffer, k)
            text = f"%s must be of {what} %lld, got %lld"
            wrong = b.icmp_unsigned("!=", *values)
            self._fail_if(b, wrong, frame, INVALID_ARGUMENT, text, name, *values)
        dims = b.pointer(buffer, 5)
        is_matrix = b.icmp_signed("==", b.word(entry, 1), b.number(2))
        with b.if_then(is_matrix):
            wide, width = b.word(dims, 1), b.word(entry, 3)
            wrong, text = b.icmp_signed("!=", width, wide), "%s must have %lld columns, got %lld"
            self._fail_if(b, wrong, frame, INVALID_ARGUMENT, text, name, width, wide)
        what = b.word(entry, 2)
        is_rows = b.icmp_signed("==", what, b.number(ROWS))
        more = b.zext(b.icmp_signed("==", what, b.number(NODES_AND_ONE)), I64)
        length = b.sub(b.word(dims, 0), more)
        known = b.select(is_rows, rows, nodes)
        is_fixed = b.icmp_signed("<", what, b.number(0))
        is_first = b.icmp_signed("<", b.now(known), b.number(0))
        with b.if_then(b.and_(is_first, b.not_(is_fixed))):
            b.store(length, known)
        expected = b.select(is_fixed, b.neg(what), b.now(known))
        wrong, text = b.icmp_signed("!=", expected, length), "%s must have %lld rows, got %lld"
        values = name, b.add(expected, more), b.word(dims, 0)
        self._fail_if(b, wrong, frame, INVALID_ARGUMENT, text, *values)

    def _ask_for_large_pages(self, b: Builder, result):
        """Ask for large pages inside a large result, which Linux may decline.

        A large result is often in new memory, and mapping small pages takes half the time.
        """
        dims = b.pointer(result, 5)
        is_double = b.icmp_unsigned("==", b.low_half(result, 2), b.number(FLOAT64))
        item = b.select(is_double, b.number(8), b.number(4))
        size = b.mul(b.mul(b.word(dims, 0), b.word(dims, 1)), item)
        with b.if_then(b.icmp_signed(">=", size, b.number(LARGE))):
            start = b.word(result, 3)
            first = b.and_(b.add(start, b.number(LARGE_PAGE - 1)), b.number(-LARGE_PAGE))
            length = b.and_(b.sub(b.add(start, size), first), b.number(-LARGE_PAGE))
            advice = ir.Constant(I32, MADV_HUGEPAGE)
            b.call(self.madvise, [b.inttoptr(first, PTR), length, advice])

    def _check_indices(self, b: Builder, frame, entry, data, rows, nodes):
        """Check that indices are in range, orders permutations, offsets in order over all rows."""
        role, name = b.word(entry, 4), b.pointer(entry, 5)
        # of an array of a size of its own: its rows, and where its indices or offsets end
        own, limit = b.neg(b.word(entry, 2)), b.word(entry, 3)
        is_own = b.icmp_signed(">", own, b.number(0))
        is_offsets = b.icmp_signed("==", role, b.number(OFFSETS))
        rows = b.select(is_own, b.select(is_offsets, limit, own), rows)
        own_nodes = b.select(is_offsets, b.sub(own, b.number(1)), limit)
        nodes = b.select(is_own, own_nodes, nodes)

        def item(k):
            return b.sext(b.load(b.gep(data, [k], source_etype=I32), typ=I32, align=4), I64)

        is_order = b.icmp_signed("==", role, b.number(ROW_INDEX))
        is_index = b.or_(b.icmp_signed("==", role, b.number(NODE_INDEX)), is_order)
        with b.if_then(is_index):
            limit = b.select(is_order, rows, nodes)
            with b.each(rows) as k:
                outside, text = b.icmp_unsigned(">=", item(k), limit), INDEX_OUTSIDE
                values = name, k, lambda k=k: item(k), limit
                self._fail_if(b, outside, frame, OUT_OF_RANGE, text, *values, likely=False)
        with b.if_then(is_order):
            self._check_permutation(b, frame, name, item, rows)
        with b.if_then(is_offsets):
            self._check_offsets(b, frame, name, item, rows, nodes)

    def _check_permutation(self, b: Builder, frame, name, item, rows):
        seen = b.call(self.calloc, [rows, b.number(1)])
        missing = b.icmp_unsigned("==", seen, NULL)
        self._fail_if(b, missing, frame, RESOURCE_EXHAUSTED, NO_MEMORY, rows)
        with b.each(rows) as k:
            place = b.gep(seen, [item(k)], source_etype=I8)
            twice = b.icmp_unsigned("!=", b.load(place, typ=I8), ir.Constant(I8, 0))
            with b.if_then(twice, likely=False):
                b.call(self.free, [seen])
                text = "%s must be a permutation, and holds %lld twice"
                self._fail(b, frame, INVALID_ARGUMENT, text, name, item(k))
            b.store(ir.Constant(I8, 1), place)
        b.call(self.free, [seen])

    def _check_offsets(self, b: Builder, frame, name, item, rows, nodes):
        before = b.variable(0)
        with b.each(b.add(nodes, b.number(1))) as k:
            last = b.icmp_signed("==", k, nodes)
            least = b.select(last, rows, b.now(before))
            most = b.select(b.icmp_signed("==", k, b.number(0)), b.number(0), rows)
            wrong = b.icmp_signed("<", item(k), least)
            wrong = b.or_(wrong, b.icmp_signed(">", item(k), most))
            values = name, k, lambda k=k: item(k), least, most, nodes
            self._fail_if(b, wrong, frame, OUT_OF_RANGE, NOT_IN_ORDER, *values, likely=False)
            b.store(item(k), before)

    def _run_pass(self, b: Builder, frame, entry, buffers, rows, nodes):
        """Run an entry: function, size and costs as in `text.Pass`, scratch, count."""
        block, rows, nodes = b.word(entry, 1), b.now(rows), b.now(nodes)
        by_node = b.icmp_signed("<", block, b.number(0))
        safe = b.select(by_node, b.number(1), block)
        blocks = b.sdiv(b.add(rows, b.sub(safe, b.number(1))), safe)
        count = b.select(by_node, b.mul(nodes, b.neg(block)), blocks)
        units = b.word(entry, 5)
        is_fixed = b.icmp_signed(">", units, b.number(0))
        count = b.select(is_fixed, units, count)
        # where a call has no rows, the work is that of the whole pass
        none = b.icmp_signed("<", rows, b.number(0))
        work = b.mul(b.word(entry, 2), b.select(none, b.number(1), rows))
        work = b.add(work, b.select(by_node, b.mul(b.word(entry, 3), nodes), b.number(0)))
        size = b.select(b.and_(is_fixed, by_node), nodes, rows)
        arguments = [b.pointer(entry, 0), buffers, count, size, b.word(entry, 4), work]
        failures = b.call(self.parallel, [frame, *arguments])
        failed, size = b.icmp_signed(">", failures, b.number(0)), b.word(entry, 4)
        self._fail_if(b, failed, frame, RESOURCE_EXHAUSTED, NO_MEMORY, size)
