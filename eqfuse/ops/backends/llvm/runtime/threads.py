"""The threads of kernels, as LLVM IR: the units of a pass shared out over XLA's own pool.

Threads are those of XLA's pool, so that several calls at once never use more in total. The calling
thread and its helpers take chunks of units from a counter. A helper that starts late finds the
counter exhausted and leaves; nobody ever waits for a helper that has not taken a chunk, so a pool
that is busy, or that a fork has left behind, costs speed and nothing else.
"""

from llvmlite import ir

from eqfuse.ops.backends.llvm.runtime.builder import (
    API,
    ERROR_DESTROY,
    I1,
    I64,
    NULL,
    PTR,
    Builder,
    RuntimeModule,
)

CONTEXT = 3  # word of XLA_FFI_CallFrame
SCHEDULE, NUM_THREADS = 17, 18  # words of XLA_FFI_Api

# words of a job: see Threads._start
REFERENCES, NEXT, DONE, COUNT, CHUNK, FUNCTION, BUFFERS, NUM_ROWS, SCRATCH, FAILED = range(10)
WORK_OF_A_THREAD = 30_000
"""Vector operations that are worth waking a thread for: about ten microseconds."""


class Threads:
    """Adds to a module: `parallel(frame, function, buffers, count, rows, scratch, work)`.

    It runs the units of one pass on as many threads as it is worth, and returns how many chunks
    failed for want of memory. `eqfuse_limit` is the most threads that kernels of this process use,
    `eqfuse_active` how many they do.
    """

    def __init__(self, module: RuntimeModule):
        self.module = module
        self.limit = module.counter("eqfuse_limit", 1)
        self.active = module.counter("eqfuse_active", 0)
        self.work = self._work()
        self.helper = self._helper()
        self.discard = self._discard()
        self.parallel = self._parallel()

    def _work(self):
        """Take chunks of a job until there are none."""
        function, b, (job,) = self.module.function("work", ir.VoidType(), [("job", PTR)])
        memory = b.call(self.module.malloc, [b.add(b.word(job, SCRATCH), b.number(64))])
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
        b.call(self.module.free, [memory])
        b.ret_void()
        return function

    def _release(self, b: Builder, job):
        """Drop a reference to a job; the last one frees it."""
        before = b.count(job, REFERENCES, -1)
        with b.if_then(b.icmp_signed("==", before, b.number(1))):
            b.call(self.module.free, [job])

    def _helper(self):
        """Write what a thread of XLA's pool does: help with the job while there is work."""
        function, b, (job,) = self.module.function("helper", ir.VoidType(), [("job", PTR)])
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
        """Return whether XLA answered with an error, which is destroyed."""
        arguments = [("api", PTR), ("error", PTR)]
        function, b, (api, error) = self.module.function("discard", I1, arguments)
        failed = b.icmp_unsigned("!=", error, NULL)
        with b.if_then(failed):
            message = b.alloca(I64, 3)
            for k, value in enumerate((24, 0, b.ptrtoint(error, I64))):
                b.set_word(message, k, value)
            kind = ir.FunctionType(ir.VoidType(), [PTR])
            b.call(b.callable(b.pointer(api, ERROR_DESTROY), kind), [message])
        b.ret(failed)
        return function

    def _ask(self, b: Builder, api, function: int, words):
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
        made, b, args = self.module.function("parallel", I64, arguments)
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

        job = b.call(self.module.malloc, [b.number(80)])
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
            b.call(self.module.sched_yield, [])
        b.count(self.active, 0, -1)
        failures = b.observe(job, FAILED)
        self._release(b, job)
        b.ret(failures)
        return made
