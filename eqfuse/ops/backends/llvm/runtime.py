"""The handler that XLA calls, as LLVM IR: it checks the call and runs the passes of a kernel.

The handler of every kernel calls `eqfuse_call(frame, spec)`, which compares the buffers of the call
with the kernel's description, looks through the index arrays, and runs the passes, each on as many
of XLA's threads as it is worth.
"""

from llvmlite import ir

from eqfuse.ops.backends.llvm.builder import I1, I8, I32, I64, NULL, PTR, Builder
from eqfuse.ops.backends.llvm.text import NODE_INDEX, NODES_AND_ONE, OFFSETS, ROW_INDEX, ROWS

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
NOT_SORTED = "%s[%lld] is %lld, and %s[%lld] is %lld, not %lld: make edges by Edges.from_arrays"

LANES = 8
"""Indices that are compared at a time."""

LARGE, LARGE_PAGE, MADV_HUGEPAGE = 1 << 22, 1 << 21, 14
"""Bytes of results worth large pages, bytes of a large page, and Linux's word for them."""


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
        self.in_range, self.in_order = self._in_range(), self._in_order()
        self.check_indices, self.check_sorted = self._check_indices(), self._check_sorted()
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
            with b.each(count) as (k, *_):
                entry = b.word_at(table, b.mul(b.add(first, k), b.number(6)))
                self._check_buffer(b, frame, entry, b.pointer(pointers, k), rows, nodes)
                data = b.pointer(b.pointer(pointers, k), 3)
                b.store(data, b.gep(buffers, [b.add(first, k)], source_etype=PTR))
            first = count

        def entry_of(k):
            return b.word_at(table, b.mul(k, b.number(6)))

        def data_of(k):
            return b.load(b.gep(buffers, [k], source_etype=PTR), typ=PTR)

        size = b.now(rows), b.now(nodes)
        with b.each(counts[0]) as (k, *_):
            self._check_ends(b, frame, entry_of(k), data_of(k), *size)
        with b.each(b.word(spec, 5)) as (k, *_):
            row = b.word_at(b.pointer(spec, 6), b.mul(k, b.number(3)))
            self._check_order(b, frame, row, entry_of, data_of, *size)
        if self.large_pages:
            with b.each(counts[1]) as (k, *_):
                buffer = b.pointer(b.pointer(frame, SIDES[1][2]), k)
                self._ask_for_large_pages(b, buffer)
        with b.each(b.word(spec, 2)) as (k, *_):
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

    def _size(self, b: Builder, entry, rows, nodes):
        """Return the rows and the nodes of an index array; one of a size of its own has its own."""
        role, own, limit = b.word(entry, 4), b.neg(b.word(entry, 2)), b.word(entry, 3)
        is_own = b.icmp_signed(">", own, b.number(0))
        is_offsets = b.icmp_signed("==", role, b.number(OFFSETS))
        own_rows = b.select(is_offsets, limit, own)
        own_nodes = b.select(is_offsets, b.sub(own, b.number(1)), limit)
        return b.select(is_own, own_rows, rows), b.select(is_own, own_nodes, nodes)

    def _in_range(self):
        """Write a pass that marks a job's table where an index is not below a limit.

        The table of this and of `_in_order` is what `_checked` writes.
        """
        function, b, (table, begin, end, *_) = self._pass("in_range")
        data, limit = b.pointer(table, 1), b.trunc(b.word(table, 2), I32)
        lanes = ir.VectorType(I32, LANES)
        limits = ir.Constant(lanes, ir.Undefined)
        for lane in range(LANES):
            limits = b.insert_element(limits, limit, ir.Constant(I32, lane))
        whole = b.sdiv(b.sub(end, begin), b.number(LANES))
        none = ir.Constant(ir.VectorType(I1, LANES), [0] * LANES)
        with b.each(whole, carried=[none]) as (k, [wrong], following):
            place = b.gep(data, [b.add(begin, b.mul(k, b.number(LANES)))], source_etype=I32)
            values = b.load(place, typ=lanes, align=4)
            following.append(b.or_(wrong, b.icmp_unsigned(">=", values, limits)))
        [wrong] = b.carried
        some = b.bitcast(wrong, ir.IntType(LANES))
        some = b.icmp_unsigned("!=", some, ir.Constant(some.type, 0))
        first = b.add(begin, b.mul(whole, b.number(LANES)))
        with b.each(end, first, carried=[some]) as (k, [wrong], following):
            following.append(b.or_(wrong, b.icmp_unsigned(">=", b.index(data, k), limit)))
        self._mark(b, table, b.carried[0])
        return function

    def _in_order(self):
        """Write a pass that marks a job's table where nodes do not have their edges in turn.

        Those of node i are order[ptr[i]] to order[ptr[i + 1]], ever higher numbers of edges whose
        end is i; so an order that passes is a permutation. All are numbers of edges.
        """
        function, b, (table, begin, end, *_) = self._pass("in_order")
        order, ends, ptr = (b.pointer(table, k) for k in (1, 3, 4))
        rows, zero = b.trunc(b.word(table, 2), I32), ir.Constant(I32, 0)
        with b.each(end, begin, carried=[zero, zero]) as (node, [other, falls], following):
            here, there = (b.index(ptr, b.add(node, b.number(n))) for n in (0, 1))
            falls = b.or_(b.or_(falls, here), b.or_(b.sub(rows, there), b.sub(there, here)))
            outside = b.icmp_signed("<", falls, zero)  # its sign says that something was negative
            first, last = (b.sext(n, I64) for n in (b.select(outside, there, here), there))
            of_node, before = b.trunc(node, I32), ir.Constant(I32, -1)
            carried = [other, falls, before]
            with b.each(last, first, carried=carried) as (k, [other, falls, before], inner):
                edge = b.index(order, k)
                end_of = b.index(ends, b.sext(edge, I64))
                inner.append(b.or_(other, b.xor(end_of, of_node)))
                inner.append(b.or_(falls, b.sub(b.sub(edge, before), ir.Constant(I32, 1))))
                inner.append(edge)
            following += b.carried[:2]
        other, falls = b.carried
        wrong = b.or_(b.icmp_signed("!=", other, zero), b.icmp_signed("<", falls, zero))
        self._mark(b, table, wrong)
        return function

    def _pass(self, name: str):
        words = dict.fromkeys(("begin", "end", "rows"), I64)
        return self._function(name, ir.VoidType(), table=PTR, **words, scratch=PTR)

    def _mark(self, b: Builder, table, wrong):
        with b.if_then(wrong, likely=False):
            b.set_word(table, 0, 1)
        b.ret_void()

    def _checked(self, b: Builder, frame, function, count, work, *words):
        """Run a pass of a check over a table of words, shared among threads; whether it failed."""
        with b.goto_entry_block():
            table = b.alloca(I64, len(words) + 1)
        for k, word in enumerate((b.number(0), *words)):
            b.set_word(table, k, b.ptrtoint(word, I64) if word.type == PTR else word)
        none = b.number(0)
        is_small = b.icmp_signed("<", work, b.number(2 * WORK_OF_A_THREAD))
        with b.if_else(is_small) as (alone, shared):
            with alone:
                b.call(function, [table, none, count, none, NULL])
            with shared:
                failures = b.call(self.parallel, [frame, function, table, count, none, none, work])
                with b.if_then(b.icmp_signed(">", failures, none)):
                    b.set_word(table, 0, 1)
        return b.icmp_unsigned("!=", b.word(table, 0), none)

    def _check_ends(self, b: Builder, frame, entry, data, rows, nodes):
        """Check that the ends of edges, or sets of weights, are in range."""
        with b.if_then(b.icmp_signed("==", b.word(entry, 4), b.number(NODE_INDEX))):
            rows, nodes = self._size(b, entry, rows, nodes)
            work = b.sdiv(rows, b.number(LANES))
            wrong = self._checked(b, frame, self.in_range, rows, work, data, nodes)
            with b.if_then(wrong, likely=False):
                self._refuse(b, self.check_indices, frame, entry, data, rows, nodes)

    def _check_order(self, b: Builder, frame, spec_row, entry_of, data_of, rows, nodes):
        """Check an order with its ends and offsets: numbers of entries, of which ends may be -1."""
        entries = [b.word(spec_row, k) for k in range(3)]
        order, ends, offsets = (data_of(n) for n in entries)
        rows, _ = self._size(b, entry_of(entries[0]), rows, nodes)
        _, nodes = self._size(b, entry_of(entries[2]), rows, nodes)
        some = b.variable(1)
        few, work = b.sdiv(rows, b.number(LANES)), b.sdiv(b.add(rows, nodes), b.number(2))
        outside = self._checked(b, frame, self.in_range, rows, few, order, rows)
        with b.if_then(b.not_(outside)):
            words = order, rows, ends, offsets
            wrong = self._checked(b, frame, self.in_order, nodes, work, *words)
            b.store(b.zext(wrong, I64), some)
        wrong = b.icmp_unsigned("!=", b.now(some), b.number(0))
        first, last = b.index(offsets, b.number(0)), b.index(offsets, nodes)
        wrong = b.or_(wrong, b.icmp_unsigned("!=", first, ir.Constant(I32, 0)))
        wrong = b.or_(wrong, b.icmp_unsigned("!=", b.sext(last, I64), rows))
        with b.if_then(wrong, likely=False):
            for n, data in ((entries[2], offsets), (entries[0], order)):
                self._refuse(b, self.check_indices, frame, entry_of(n), data, rows, nodes)
            names = [b.pointer(entry_of(n), 5) for n in entries[:2]]
            self._refuse(b, self.check_sorted, frame, *names, order, ends, offsets, nodes)

    def _refuse(self, b: Builder, check, *arguments):
        """Call a check that returns an error or null, and return the error."""
        error = b.call(check, arguments)
        with b.if_then(b.icmp_unsigned("!=", error, NULL)):
            b.ret(error)

    def _check_indices(self):
        """Write what finds the error of an index array, an order or offsets."""
        arguments = dict.fromkeys(("frame", "entry", "data"), PTR) | {"rows": I64, "nodes": I64}
        function, b, args = self._function("check_indices", PTR, **arguments)
        frame, entry, data, rows, nodes = args
        role, name = b.word(entry, 4), b.pointer(entry, 5)

        def item(k):
            return b.sext(b.index(data, k), I64)

        is_order = b.icmp_signed("==", role, b.number(ROW_INDEX))
        is_index = b.or_(b.icmp_signed("==", role, b.number(NODE_INDEX)), is_order)
        with b.if_then(is_index):
            limit = b.select(is_order, rows, nodes)
            with b.each(rows) as (k, *_):
                outside, text = b.icmp_unsigned(">=", item(k), limit), INDEX_OUTSIDE
                values = name, k, lambda k=k: item(k), limit
                self._fail_if(b, outside, frame, OUT_OF_RANGE, text, *values, likely=False)
        with b.if_then(is_order):
            self._check_permutation(b, frame, name, item, rows)
        with b.if_then(b.icmp_signed("==", role, b.number(OFFSETS))):
            self._check_offsets(b, frame, name, item, rows, nodes)
        b.ret(NULL)
        return function

    def _check_sorted(self):
        """Write what finds an edge that an order, a permutation, lists for a node not its end."""
        arguments = dict.fromkeys(
            ("frame", "name_of_order", "name_of_ends", "order", "ends", "ptr"), PTR
        )
        function, b, args = self._function("check_sorted", PTR, **arguments, nodes=I64)
        frame, name, of, order, ends, ptr, nodes = args
        with b.each(nodes) as (node, *_):
            first, last = (b.sext(b.index(ptr, b.add(node, b.number(n))), I64) for n in (0, 1))
            with b.each(last, first) as (k, *_):
                edge = b.sext(b.index(order, k), I64)
                end = b.sext(b.index(ends, edge), I64)
                wrong = b.icmp_signed("!=", end, node)
                values = name, k, edge, of, edge, end, node
                self._fail_if(b, wrong, frame, INVALID_ARGUMENT, NOT_SORTED, *values, likely=False)
        b.ret(NULL)
        return function

    def _check_permutation(self, b: Builder, frame, name, item, rows):
        seen = b.call(self.calloc, [rows, b.number(1)])
        missing = b.icmp_unsigned("==", seen, NULL)
        self._fail_if(b, missing, frame, RESOURCE_EXHAUSTED, NO_MEMORY, rows)
        with b.each(rows) as (k, *_):
            place = b.gep(seen, [item(k)], source_etype=I8)
            twice = b.icmp_unsigned("!=", b.load(place, typ=I8), ir.Constant(I8, 0))
            with b.if_then(twice, likely=False):
                b.call(self.free, [seen])
                text = "%s must be a permutation, and holds %lld twice"
                self._fail(b, frame, INVALID_ARGUMENT, text, name, item(k))
            b.store(ir.Constant(I8, 1), place)
        b.call(self.free, [seen])

    def _check_offsets(self, b: Builder, frame, name, item, rows, nodes):
        with b.each(b.add(nodes, b.number(1)), carried=[b.number(0)]) as (k, [before], following):
            last = b.icmp_signed("==", k, nodes)
            least = b.select(last, rows, before)
            most = b.select(b.icmp_signed("==", k, b.number(0)), b.number(0), rows)
            wrong = b.icmp_signed("<", item(k), least)
            wrong = b.or_(wrong, b.icmp_signed(">", item(k), most))
            values = name, k, lambda k=k: item(k), least, most, nodes
            self._fail_if(b, wrong, frame, OUT_OF_RANGE, NOT_IN_ORDER, *values, likely=False)
            following.append(item(k))

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
