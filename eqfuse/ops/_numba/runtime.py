"""What every kernel shares, as LLVM IR: the XLA handler with its checks, and the threads.

`eqfuse_call(frame, spec)` is called by XLA through a kernel's own handler. It compares the buffers
of the call with the kernel's description, looks through the index arrays, and runs the passes.

Threads are those of XLA's own pool, so that several calls at once never use more in total. The
calling thread and its helpers take chunks of units from a counter. A helper that starts late finds
the counter exhausted and leaves; nobody ever waits for a helper that has not taken a chunk, so a
pool that is busy, or that a fork has left behind, costs speed and nothing else.

Structures are those of `xla/ffi/api/c_api.h`, read as words of eight bytes.
"""

import contextlib

from llvmlite import ir

I1, I32, I64, PTR = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.PointerType()

# words of XLA_FFI_CallFrame, XLA_FFI_Api and XLA_FFI_Buffer
EXTENSION, API, CONTEXT = 1, 2, 3
SIDES = (("argument", 7, 8, 9), ("result", 12, 13, 14))  # count, types, pointers
FRAME_WORDS, API_WORDS, BUFFER_WORDS = 21, 19, 6
ERROR_CREATE, ERROR_DESTROY, SCHEDULE, NUM_THREADS = 6, 8, 17, 18
METADATA_EXTENSION, BUFFER_TYPE = 1, 1
INVALID_ARGUMENT, OUT_OF_RANGE, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 3, 11, 8, 9

# rows of a buffer, and what an index array may hold
ROWS, NODES, NODES_AND_ONE = 0, 1, 2
DATA, NODE_INDEX, ROW_INDEX, OFFSETS = 0, 1, 2, 3

# words of a job: see _parallel
REFERENCES, NEXT, DONE, COUNT, CHUNK, FUNCTION, BUFFERS, NUM_ROWS, SCRATCH, FAILED = range(10)
WORK_OF_A_THREAD = 30_000
"""Vector operations that are worth waking a thread for: about ten microseconds."""


class _Builder(ir.IRBuilder):
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
        """A number that changes, on the stack of the function."""
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
        """A pointer as a function that can be called."""
        return self.inttoptr(self.ptrtoint(pointer, I64), kind.as_pointer())

    @contextlib.contextmanager
    def each(self, stop, start=0):
        """for i in range(start, stop)"""
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
        """while True; the body leaves by `branch` to the block that this yields."""
        body, done = self.append_basic_block("body"), self.append_basic_block("done")
        self.branch(body)
        self.position_at_end(body)
        yield done
        self.branch(body)
        self.position_at_end(done)


class Runtime:
    """Builds the module."""

    def __init__(self, version: tuple[int, int]):
        self.module = ir.Module("eqfuse_runtime")
        self.version = version
        self.limit = self._global("eqfuse_limit")
        self.active = self._global("eqfuse_active")
        external = {
            "malloc": (PTR, [I64]),
            "free": (ir.VoidType(), [PTR]),
            "sched_yield": (I32, []),
        }
        for name, (result, arguments) in external.items():
            kind = ir.FunctionType(result, arguments)
            setattr(self, name, ir.Function(self.module, kind, name))
        kind = ir.FunctionType(I32, [PTR, I64, PTR], var_arg=True)
        self.snprintf = ir.Function(self.module, kind, "snprintf")
        self._texts = 0
        self.work = self._work()
        self.helper = self._helper()
        self.discard = self._discard()
        self.parallel = self._parallel()
        self._call()

    def text(self) -> str:
        return str(self.module)

    def _global(self, name: str):
        variable = ir.GlobalVariable(self.module, I64, name)
        variable.initializer = ir.Constant(I64, 0 if name == "eqfuse_active" else 1)
        return variable

    def _function(self, name: str, result, arguments, linkage="internal"):
        kind = ir.FunctionType(result, [t for _, t in arguments])
        function = ir.Function(self.module, kind, name)
        function.linkage = linkage
        for argument, (n, _) in zip(function.args, arguments, strict=True):
            argument.name = n
        return function, _Builder(function.append_basic_block("entry")), function.args

    def _text(self, text: str):
        data = bytearray(text.encode() + b"\0")
        kind = ir.ArrayType(ir.IntType(8), len(data))
        self._texts += 1
        variable = ir.GlobalVariable(self.module, kind, f"text{self._texts}")
        variable.linkage, variable.global_constant = "internal", True
        variable.initializer = ir.Constant(kind, data)
        return variable

    def _work(self):
        """Take chunks of a job until there are none."""
        function, b, (job,) = self._function("work", ir.VoidType(), [("job", PTR)])
        memory = b.call(self.malloc, [b.add(b.word(job, SCRATCH), b.number(64))])
        address = b.add(b.ptrtoint(memory, I64), b.number(63))
        scratch = b.inttoptr(b.and_(address, b.number(-64)), PTR)
        missing = b.icmp_unsigned("==", memory, ir.Constant(PTR, None))
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

    def _release(self, b: _Builder, job):
        """Drop a reference to a job; the last one frees it."""
        before = b.count(job, REFERENCES, -1)
        with b.if_then(b.icmp_signed("==", before, b.number(1))):
            b.call(self.free, [job])

    def _helper(self):
        """What a thread of XLA's pool does: help with the job if it may, and while there is any."""
        function, b, (job,) = self._function("helper", ir.VoidType(), [("job", PTR)])
        before = b.count(self.active, 0, 1)
        allowed = b.icmp_signed("<", before, b.word(self.limit, 0))
        left = b.icmp_signed("<", b.observe(job, NEXT), b.word(job, COUNT))
        with b.if_then(b.and_(allowed, left)):
            b.call(self.work, [job])
        b.count(self.active, 0, -1)
        self._release(b, job)
        b.ret_void()
        return function

    def _discard(self):
        """Whether XLA answered with an error, which is destroyed."""
        arguments = [("api", PTR), ("error", PTR)]
        function, b, (api, error) = self._function("discard", I1, arguments)
        failed = b.icmp_unsigned("!=", error, ir.Constant(PTR, None))
        with b.if_then(failed):
            message = b.alloca(I64, 3)
            for k, value in enumerate((24, 0, b.ptrtoint(error, I64))):
                b.set_word(message, k, value)
            kind = ir.FunctionType(ir.VoidType(), [PTR])
            b.call(b.callable(b.pointer(api, ERROR_DESTROY), kind), [message])
        b.ret(failed)
        return function

    def _ask(self, b: _Builder, api, function: int, words):
        """Call a function of XLA's table with a structure of these words; whether it failed."""
        with b.goto_entry_block():
            structure = b.alloca(I64, len(words) + 2)
        for k, value in enumerate((8 * (len(words) + 2), 0, *words)):
            b.set_word(structure, k, value)
        kind = ir.FunctionType(PTR, [PTR])
        error = b.call(b.callable(b.pointer(api, function), kind), [structure])
        return b.call(self.discard, [api, error])

    def _parallel(self):
        """Run one pass on as many threads as it is worth; how many chunks failed."""
        names = ["function", "buffers", "count", "rows", "scratch", "work"]
        kinds = [PTR, PTR, I64, I64, I64, I64]
        arguments = [("frame", PTR), *zip(names, kinds, strict=True)]
        made, b, args = self._function("parallel", I64, arguments)
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
        with b.if_then(b.icmp_unsigned("==", job, ir.Constant(PTR, None))):
            b.ret(b.number(1))
        parts = b.mul(b.add(helping, b.number(1)), b.number(8))
        chunk = b.add(b.sdiv(count, parts), b.number(1))
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
            with b.if_then(self._ask(b, api, SCHEDULE, [context, task, b.ptrtoint(job, I64)])):
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

    def _fail(self, b: _Builder, frame, code: int, text: str, *values):
        """Return an error to XLA."""
        with b.goto_entry_block():
            message = b.alloca(ir.IntType(8), 512)
            structure = b.alloca(I64, 4)
        b.call(self.snprintf, [message, b.number(512), self._text(text), *values])
        for k, value in enumerate((32, 0, b.ptrtoint(message, I64), code)):
            b.set_word(structure, k, value)
        create = b.pointer(b.pointer(frame, API), ERROR_CREATE)
        b.ret(b.call(b.callable(create, ir.FunctionType(PTR, [PTR])), [structure]))

    def _call(self):
        """The handler; `spec` is what `module.py` writes."""
        arguments = [("frame", PTR), ("spec", PTR)]
        _, b, (frame, spec) = self._function("eqfuse_call", PTR, arguments, "external")
        null = ir.Constant(PTR, None)
        extension = b.pointer(frame, EXTENSION)
        with b.if_then(b.icmp_unsigned("!=", extension, null)):
            kind = b.low_half(extension, 1)
            with b.if_then(b.icmp_unsigned("==", kind, b.number(METADATA_EXTENSION))):
                major, minor = self.version
                b.set_word(b.pointer(extension, 3), 3, (minor << 32) | major)
                b.ret(null)
        api = b.pointer(frame, API)
        small = b.icmp_unsigned("<", b.word(frame, 0), b.number(8 * FRAME_WORDS))
        small = b.or_(small, b.icmp_unsigned("<", b.word(api, 0), b.number(8 * API_WORDS)))
        with b.if_then(small):
            text = "eqfuse: XLA's call frame is of an unknown version"
            self._fail(b, frame, FAILED_PRECONDITION, text)

        counts = [b.word(spec, 0), b.word(spec, 1)]
        table, passes = b.pointer(spec, 3), b.pointer(spec, 4)
        buffers = b.alloca(PTR, b.add(*counts))
        rows, nodes = b.variable(-1), b.variable(-1)
        first = b.number(0)
        for (side, *words), count in zip(SIDES, counts, strict=True):
            with b.if_then(b.icmp_signed("!=", b.word(frame, words[0]), count)):
                text = f"eqfuse: expected %lld {side}s, got %lld"
                self._fail(b, frame, INVALID_ARGUMENT, text, count, b.word(frame, words[0]))
            types, pointers = b.pointer(frame, words[1]), b.pointer(frame, words[2])
            with b.each(count) as k:
                entry = b.word_at(table, b.mul(b.add(first, k), b.number(6)))
                kind = b.load(b.gep(types, [k], source_etype=I32), typ=I32)
                self._check_buffer(b, frame, entry, kind, b.pointer(pointers, k), rows, nodes)
                data = b.pointer(b.pointer(pointers, k), 3)
                b.store(data, b.gep(buffers, [b.add(first, k)], source_etype=PTR))
            first = count
        with b.each(counts[0]) as k:
            entry = b.word_at(table, b.mul(k, b.number(6)))
            data = b.load(b.gep(buffers, [k], source_etype=PTR), typ=PTR)
            self._check_indices(b, frame, entry, data, b.now(rows), b.now(nodes))
        with b.each(b.word(spec, 2)) as k:
            self._run_pass(b, frame, b.word_at(passes, b.mul(k, b.number(5))), buffers, rows, nodes)
        b.ret(null)

    def _check_buffer(self, b: _Builder, frame, entry, kind, buffer, rows, nodes):
        """entry: dtype, rank, what its rows are, width, role, name."""
        name = b.pointer(entry, 5)
        wrong = b.icmp_unsigned("!=", kind, ir.Constant(I32, BUFFER_TYPE))
        with b.if_then(wrong):
            self._fail(b, frame, INVALID_ARGUMENT, "eqfuse: %s is not an array", name)
        with b.if_then(b.icmp_unsigned("<", b.word(buffer, 0), b.number(8 * BUFFER_WORDS))):
            text = "eqfuse: the description of %s is of an unknown version"
            self._fail(b, frame, FAILED_PRECONDITION, text, name)
        for k, what in ((2, "type"), (4, "rank")):
            found = b.low_half(buffer, k)
            expected = b.word(entry, k // 2 - 1)
            with b.if_then(b.icmp_unsigned("!=", found, expected)):
                text = f"eqfuse: %s must be of {what} %lld, got %lld"
                self._fail(b, frame, INVALID_ARGUMENT, text, name, expected, found)
        dims = b.pointer(buffer, 5)
        with b.if_then(b.icmp_signed("==", b.word(entry, 1), b.number(2))):
            with b.if_then(b.icmp_signed("!=", b.word(dims, 1), b.word(entry, 3))):
                text = "eqfuse: %s must have %lld columns, got %lld"
                values = [name, b.word(entry, 3), b.word(dims, 1)]
                self._fail(b, frame, INVALID_ARGUMENT, text, *values)
        what = b.word(entry, 2)
        is_rows = b.icmp_signed("==", what, b.number(ROWS))
        more = b.zext(b.icmp_signed("==", what, b.number(NODES_AND_ONE)), I64)
        length = b.sub(b.word(dims, 0), more)
        known = b.select(is_rows, rows, nodes)
        with b.if_then(b.icmp_signed("<", b.now(known), b.number(0))):
            b.store(length, known)
        with b.if_then(b.icmp_signed("!=", b.now(known), length)):
            text = "eqfuse: %s must have %lld rows, got %lld"
            values = [name, b.add(b.now(known), more), b.word(dims, 0)]
            self._fail(b, frame, INVALID_ARGUMENT, text, *values)

    def _check_indices(self, b: _Builder, frame, entry, data, rows, nodes):
        """Every index in range; the offsets of the nodes in order and over all rows."""
        role, name = b.word(entry, 4), b.pointer(entry, 5)

        def item(k):
            return b.sext(b.load(b.gep(data, [k], source_etype=I32), typ=I32, align=4), I64)

        is_index = b.or_(
            b.icmp_signed("==", role, b.number(NODE_INDEX)),
            b.icmp_signed("==", role, b.number(ROW_INDEX)),
        )
        with b.if_then(is_index):
            limit = b.select(b.icmp_signed("==", role, b.number(NODE_INDEX)), nodes, rows)
            with b.each(rows) as k:
                with b.if_then(b.icmp_unsigned(">=", item(k), limit), likely=False):
                    text = "eqfuse: %s[%lld] is %lld, outside [0, %lld)"
                    self._fail(b, frame, OUT_OF_RANGE, text, name, k, item(k), limit)
        with b.if_then(b.icmp_signed("==", role, b.number(OFFSETS))):
            before = b.variable(0)
            with b.each(b.add(nodes, b.number(1))) as k:
                last = b.icmp_signed("==", k, nodes)
                least = b.select(last, rows, b.now(before))
                most = b.select(b.icmp_signed("==", k, b.number(0)), b.number(0), rows)
                wrong = b.icmp_signed("<", item(k), least)
                wrong = b.or_(wrong, b.icmp_signed(">", item(k), most))
                with b.if_then(wrong, likely=False):
                    text = "eqfuse: %s[%lld] is %lld, not in [%lld, %lld]"
                    self._fail(b, frame, OUT_OF_RANGE, text, name, k, item(k), least, most)
                b.store(item(k), before)

    def _run_pass(self, b: _Builder, frame, entry, buffers, rows, nodes):
        """entry: function, rows of a unit or 0 for nodes, cost of a row and of a node, scratch."""
        block, rows, nodes = b.word(entry, 1), b.now(rows), b.now(nodes)
        by_node = b.icmp_signed("==", block, b.number(0))
        safe = b.select(by_node, b.number(1), block)
        blocks = b.sdiv(b.add(rows, b.sub(safe, b.number(1))), safe)
        count = b.select(by_node, nodes, blocks)
        work = b.mul(
            b.word(entry, 2), b.select(b.icmp_signed("<", rows, b.number(0)), b.number(0), rows)
        )
        work = b.add(work, b.select(by_node, b.mul(b.word(entry, 3), nodes), b.number(0)))
        arguments = [b.pointer(entry, 0), buffers, count, rows, b.word(entry, 4), work]
        failures = b.call(self.parallel, [frame, *arguments])
        with b.if_then(b.icmp_signed(">", failures, b.number(0))):
            text = "eqfuse: no memory for %lld bytes of scratch"
            self._fail(b, frame, RESOURCE_EXHAUSTED, text, b.word(entry, 4))
