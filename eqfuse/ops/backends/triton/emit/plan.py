"""The kernels of a form: as few as its sums allow, and none too large to compile or to hold.

A kernel owns either the receivers or the senders, so a form that sums over both (the derivative of
a backward pass) takes two; outputs per edge go along with one of them. A form that would need too
many registers or too much code is cut between groups of paths, and later kernels add to what
earlier ones began.
"""

import functools

from eqfuse.ops.backends.triton.emit.form_kernel import FormKernel, generate
from eqfuse.ops.backends.triton.emit.form_operands import THREADS, WARP, Task, blocks
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Path, Role
from eqfuse.ops.ir.schedule import ordered_groups, reductions

REGISTERS = {"float32": 190, "bfloat16": 190, "float16": 190, "float64": 160}
"""Registers of a thread at most, by our estimate: no kernel of `benchmarks.products` spills then.

The estimate leaves out addresses, and in float64 the coefficients, which take registers there.
"""

TERMS = {"float32": 2600, "bfloat16": 2600, "float16": 2600, "float64": 450}
"""Terms of one kernel at most: beyond this, compiling takes long or, in float64, kernels spill."""

TERMS_OF_A_WALK = 2100
"""Terms of a kernel that walks edges, at most: one of 2,118 spills on sm_90."""

SIDE_BY_SIDE = 1700
"""Terms of a kernel that has several edges at a time, at most: of 2,358, some spill."""

THREADS_AT_ONCE = 2**15
"""Threads that a GPU of 128 multiprocessors runs at once, if each has as many registers as it may.
"""


def edge_lanes(form: Form, dtype: str, num_rows: int, num_nodes: int) -> int:
    """Return how many edges of a node a program has at a time: several on a small graph.

    As many as leave each lane two edges on the mean, if all programs still run at once: a small
    graph does not fill a GPU, and takes as long as one program.
    """
    threads, count = blocks(form, reduces_channels=True)
    threads = max(threads, WARP) * count * num_nodes
    lanes = 1
    if dtype != "float64":  # whose kernels have no registers left
        while 4 * lanes * num_nodes <= num_rows and 2 * lanes * threads <= THREADS_AT_ONCE:
            lanes *= 2
    return lanes


def refusal(form: Form, dtype: str) -> str:
    """Return why a program cannot sum all that a Linear of its node reads, or ""."""
    if form.max_mul > THREADS:
        return f"a program has at most {THREADS} channels, and these are {form.max_mul}"
    count = len(tasks(form, dtype))
    return "" if count == 1 else f"the sums of a node are {count} kernels: one would spill"


@functools.lru_cache(maxsize=1024)
def kernels(form: Form, dtype: str, edge_lanes: int = 1) -> tuple[FormKernel, ...]:
    """Return the kernels that together compute a form in one dtype, in the order to run.

    Args:
      form: what to compute; at least one output.
      dtype: "float32", "float64", "bfloat16" or "float16".
      edge_lanes: edges of a node that a program has at a time, at most; a power of two.
    """
    return tuple(map(generate, tasks(form, dtype, edge_lanes)))


@functools.lru_cache(maxsize=1024)
def tasks(form: Form, dtype: str, edge_lanes: int = 1) -> tuple[Task, ...]:
    """Return what each of the kernels of a form computes; the arguments are those of `kernels`."""
    found, accumulated = [], set()
    for reduce_over, outputs in reductions(form).items():
        part = [p for p in form.paths if p.output.operand in outputs]
        groups = ordered_groups(Form(form.inputs, form.outputs, tuple(part)))
        chunks = _chunks(form, reduce_over, groups, dtype)
        touched = {(p.output.operand, p.output.segment) for p in part}
        zero_segments = {
            (o, s) for o in outputs for s in range(len(form.outputs[o].segments))
        } - touched
        writers = [{p.output.operand for group in chunk for p in group} for chunk in chunks]
        writers[0] |= {o for o, _ in zero_segments}
        shared = frozenset(o for o in outputs if sum(o in written for written in writers) > 1)
        for chunk in chunks:
            parts = frozenset(accumulated), frozenset(zero_segments), shared
            terms = sum(len(path.terms) for group in chunk for path in group)
            lanes = edge_lanes if terms <= SIDE_BY_SIDE else 1
            found.append(Task(form, chunk, reduce_over, *parts, dtype, lanes))
            accumulated |= found[-1].written
            zero_segments = set()
    return tuple(found)


def _chunks(form: Form, reduce_over: Index, groups, dtype: str):
    """Return groups of paths in runs that fit one kernel."""
    width = 2 if dtype == "float64" else 1
    most = min(TERMS[dtype], TERMS_OF_A_WALK) if reduce_over.is_node else TERMS[dtype]
    chunks, current = [], []
    for group in _within(groups, most):
        longer = [*current, tuple(group)]
        terms = sum(len(path.terms) for g in longer for path in g)
        registers = _registers(form, reduce_over, longer) * width
        if current and (registers > REGISTERS[dtype] or terms > most):
            chunks.append(tuple(current))
            longer = [tuple(group)]
        current = longer
    return [*chunks, tuple(current)]


def _within(groups, limit: int):
    """Yield the groups; those of more terms than `limit` in parts, which share no values."""
    for group in groups:
        part, terms = [], 0
        for path in group:
            if part and terms + len(path.terms) > limit:
                yield part
                part, terms = [], 0
            part.append(path)
            terms += len(path.terms)
        yield part


def _registers(form: Form, reduce_over: Index, groups: list[tuple[Path, ...]]) -> int:
    """Return how many values a thread holds at most: those kept by the loop, and of a group."""
    kept, widest = set(), 0
    for group in groups:
        local = set()
        for path in group:
            output = form.outputs[path.output.operand]
            size = output.segments[path.output.segment].dim
            through_loop = output.index is reduce_over or not output.channels
            place = kept if through_loop else local
            place.add(("out", path.output, size))
            for ref in path.factors:
                operand = form.inputs[ref.operand]
                reused = operand.index is reduce_over or operand.role in (Role.LEFT, Role.RIGHT)
                dim = operand.segments[ref.segment].dim
                (kept if reused else local).add(("in", ref, dim))
        products = max(_pairs(form, path) for path in group)
        widest = max(widest, products + max((size for *_, size in local), default=0))
    return sum(size for *_, size in kept) + widest


def _pairs(form: Form, path: Path) -> int:
    dims = sorted(form.inputs[s.operand].segments[s.segment].dim for s in path.factors)
    return dims[-1] * dims[-2] if len(dims) > 1 else dims[-1]
