"""Native kernels on CPUs: any form, any number of threads, no write where there must be none."""

import concurrent.futures
import functools
import itertools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.form import generate
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef, derivatives
from eqfuse.ops.primitives.forms import evaluate
from tests.ops import tiers
from tests.ops.cases import Case, Graph, product_form
from tests.ops.ir.test_form import evaluate as definition
from tests.ops.parity import assert_close, only

NODES, EDGES = 9, 40
REFUSED = (ValueError, jax.errors.JaxRuntimeError)  # as JAX turns the code of an error into one


def random_edges(rng):
    return ops.Edges.from_arrays(*rng.integers(0, NODES, (2, EDGES)), NODES)


def random_operand(rng, name: str, mul: int, on_graph: bool, channels=None) -> Operand:
    """Return segments of `mul` channels in both layouts.

    No segment covers some components of the row.

    One row that all rows share if its name says that it is shared.
    """
    channels = bool(rng.integers(2)) if channels is None else channels
    segments, offset = [], int(rng.integers(3))
    for dim in rng.integers(1, 6, rng.integers(1, 4)).tolist():
        n = mul if channels else 1
        strides = (dim, 1) if rng.integers(2) else (1, n)
        segments.append(Segment(offset, n, dim, *strides))
        offset += n * dim + int(rng.integers(2))
    indices = (Index.ROW, Index.SENDER, Index.RECEIVER)
    index = rng.choice(indices) if on_graph else Index.ROW
    if name.startswith("shared"):
        index = Index.SHARED
    return Operand(name, offset, tuple(segments), channels, index)


def random_form(rng, on_graph: bool) -> Form:
    """Return paths of one to four factors, the same operand several times among them."""
    mul = int(rng.choice([1, 2, 3, 5, 8, 16, 17, 33]))
    names = ["in0", "in1", "in2" if rng.integers(2) else "shared"]
    inputs = [random_operand(rng, name, mul, on_graph) for name in names]
    inputs.append(random_operand(rng, "x", mul, on_graph, channels=True))
    outputs = [random_operand(rng, f"out{n}", mul, on_graph) for n in range(2)]
    if on_graph and not any(o.index.is_node for o in (*inputs, *outputs)):
        return random_form(rng, on_graph)
    paths = []
    for _ in range(rng.integers(1, 6)):
        o = int(rng.integers(len(outputs)))
        # a sum over the channels is of a product of two operands that have them
        factors = [3] if outputs[o].channels else [3, 3]
        factors += rng.integers(0, 4, rng.integers(0, 3)).tolist()
        refs = [SegmentRef(i, int(rng.integers(len(inputs[i].segments)))) for i in factors]
        output = SegmentRef(o, int(rng.integers(len(outputs[o].segments))))
        dims = [inputs[s.operand].segments[s.segment].dim for s in refs]
        dims.append(outputs[o].segments[output.segment].dim)
        terms = {tuple(int(rng.integers(d)) for d in dims): float(rng.normal()) for _ in range(6)}
        paths.append(Path(tuple(refs), output, tuple(sorted(terms.items()))))
    return Form(tuple(inputs), tuple(outputs), tuple(paths))


def run(form: Form, edges=None, num_rows: int = 7, dtype=np.float64):
    """Return what native kernels compute of a form from random operands, and these by name."""
    rows, nodes = (num_rows, 0) if edges is None else (edges.num_edges, edges.num_nodes)
    rng = np.random.default_rng(1)
    arrays = {
        o.name: rng.normal(size=(o.index.count(rows, nodes), o.size)).astype(dtype)
        for o in form.inputs
    }
    with jax.enable_x64(dtype == np.float64):
        found = evaluate(form, list(arrays.values()), edges, backend="llvm")
        return jax.tree.map(np.asarray, found), arrays


def assert_is_definition(form: Form, edges=None, num_rows=7, tolerance=1e-13, least=0.0):
    """Compare a form with its definition in float64; tolerances are of the largest element."""
    found, arrays = run(form, edges, num_rows)
    graph = () if edges is None else (edges.senders, edges.receivers, edges.num_nodes)
    expected = definition(form, arrays, *graph)
    assert_close(found, [expected[o.name] for o in form.outputs], tolerance, least)


@pytest.mark.parametrize("seed", tiers.slow_unless(range(12), *range(48)))
def test_random_forms_and_their_gradients(seed, monkeypatch, x64):
    """Also with the vectors of smaller processors, which every larger one can run."""
    widest, vector_bytes = machine.machine().vector_bytes, (64, 32, 16)[seed // 2 % 3]
    if vector_bytes > widest:
        pytest.skip(f"this processor has vectors of {widest} bytes")
    monkeypatch.setattr(machine, "machine", lambda: Machine(vector_bytes, 16))
    jax.clear_caches()  # of kernels for this processor's own vectors
    rng = np.random.default_rng(seed)
    on_graph = bool(seed % 2)
    form = random_form(rng, on_graph)
    edges = random_edges(rng) if on_graph else None
    for part in (form, derivatives(form)["backward"]):
        part = part.drop_inputs(part.used_inputs())
        with only("llvm"):
            assert_is_definition(part, edges if part.on_graph else None, EDGES, 1e-12, least=1.0)


def assert_bitwise(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_same_for_any_threads(function, *operands):
    """Bit by bit, also of calls at once."""
    try:
        machine.set_threads(1)
        expected = jax.block_until_ready(function(*operands))
        for count in (2, 3, 4, 16):
            machine.set_threads(count)
            for _ in range(3):
                assert_bitwise(function(*operands), expected)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: function(*operands), range(24)):
                assert_bitwise(found, expected)
    finally:
        machine.set_threads(machine.threads())


def test_results_depend_on_no_threads_and_no_other_calls():
    pairs = np.random.default_rng(1).integers(0, 61, (1500, 2)).tolist()
    graph = Graph(61, tuple(map(tuple, pairs)))
    case = Case("graph_tensor_product", "40x0e+40x1o", "0e+1o", graph=graph)
    arrays = [jnp.asarray(a, jnp.float32) for a in case.operands()]

    @jax.jit
    def function(*arrays):
        value, pull = jax.vjp(case.function("llvm"), *arrays)
        return value, pull(value)

    assert_same_for_any_threads(function, *arrays)


def test_results_do_not_depend_on_what_else_is_in_the_batch():
    rng = np.random.default_rng(2)
    xs, ys = (jnp.asarray(rng.normal(size=(37, n)), jnp.float32) for n in (20, 4))

    def product(x, y):
        x, y = e3nn.IrrepsArray("5x0e+5x1o", x), e3nn.IrrepsArray("0e+1o", y)
        return ops.tensor_product(x, y, backend="llvm").array

    whole = product(xs, ys)
    for n in (0, 1, 17, 36):
        assert_bitwise(product(xs[n : n + 1], ys[n : n + 1]), whole[n : n + 1])


def test_a_computation_for_another_device_is_refused():
    def product(x):
        return ops.tensor_product(x, x, backend="llvm")

    x = e3nn.IrrepsArray("2x0e", jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="backend='llvm' runs on CPUs, and this"):
        jax.jit(product).trace(x).lower(lowering_platforms=("cuda",))


class Call:
    """One call of a kernel's handler, as JAX would make it, with anything in its buffers."""

    dtype = np.float32

    def __init__(self):
        self.form = derivatives(product_form("3x0e+3x1o"))["double"]  # by row, sender and receiver
        self.module = generate(self.form, "float32", machine.machine())
        machine.register(self.module.name, self.module.text)
        edges = random_edges(np.random.default_rng(4))
        rows = {Index.ROW: EDGES, Index.SENDER: NODES, Index.RECEIVER: NODES}
        self.arguments = {o.name: np.ones((rows[o.index], o.size), "f") for o in self.form.inputs}
        self.arguments |= {n: np.array(getattr(edges, n)) for n in self.module.index_arrays}
        self.shapes = [result.shape(EDGES, NODES) for result in self.module.results]

    def __call__(self):
        results = [jax.ShapeDtypeStruct(s, self.dtype) for s in self.shapes]
        return jax.block_until_ready(
            jax.ffi.ffi_call(self.module.name, results)(*self.arguments.values())
        )


@pytest.fixture
def call():
    """Return a call that is as it should be, to be damaged; afterwards another one still works."""
    made = Call()
    made()
    yield made
    Call()()


def assert_refused(call, name: str, change, message: str):
    """Expect an error of an index array that is changed, and put it right again."""
    good = call.arguments[name].copy()
    change(call.arguments[name])
    with pytest.raises(REFUSED, match=message):
        call()
    call.arguments[name] = good


@pytest.mark.parametrize("end", ["receiver", "sender"])
def test_wrong_ends_orders_and_offsets_are_errors(call, end):
    ends, order, ptr = (f"{end}{what}" for what in ("s", "_order", "_ptr"))
    for name in (ends, order):
        for value in (-1, EDGES, 2**31 - 1, -(2**31)):
            put = functools.partial(np.put, ind=20, v=value)
            assert_refused(call, name, put, rf"{name}\[20\] is {value}, outside")
    for place, value in itertools.product((0, 4, NODES), (-5, EDGES + 1, 2**31 - 1)):
        put = functools.partial(np.put, ind=place, v=value)
        assert_refused(call, ptr, put, rf"{ptr}\[\d+\] is -?\d+, not in ")
    twice = functools.partial(np.put, ind=3, v=call.arguments[order][7])
    assert_refused(call, order, twice, f"{order} must be a permutation, and hold")
    first, last = call.arguments[order][[0, -1]]
    swapped = functools.partial(np.put, ind=[0, -1], v=[last, first])
    node = call.arguments[ends][last]
    assert_refused(call, order, swapped, rf"{order}\[0\] is {last}, and {ends}.* is {node}, not")


def test_edges_of_a_node_may_be_in_any_order(call):
    expected = call()
    ptr, order = (call.arguments[f"receiver_{name}"] for name in ("ptr", "order"))
    node = int(np.argmax(np.diff(ptr)))
    order[ptr[node] : ptr[node + 1]] = order[ptr[node] : ptr[node + 1]][::-1]
    for a, b in zip(call(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def test_buffers_that_do_not_fit_are_an_error(call):
    good, shapes = dict(call.arguments), list(call.shapes)
    name = call.form.inputs[0].name
    x, fewer = good[name], dict(list(good.items())[:-1])
    for changes, message in (
        ({"dtype": np.float16}, "must be of type 11, got 10"),
        ({"arguments": good | {name: x.astype(np.int32)}}, f"{name} must be of type 11, got 4"),
        ({"arguments": good | {name: x[:, :-1]}}, f"{name} must have 12 columns, got 11"),
        ({"arguments": good | {name: x[:-1]}}, f"must have {NODES - 1} rows, got {NODES}"),
        ({"arguments": good | {name: x.reshape(-1)}}, f"{name} must be of rank 2, got 1"),
        ({"arguments": fewer}, f"expected {len(good)} arguments, got {len(fewer)}"),
        ({"shapes": [(rows + 1, size) for rows, size in shapes]}, "rows, got"),
        ({"shapes": shapes[:-1]}, "results, got"),
    ):
        vars(call).update({"arguments": good, "shapes": shapes, "dtype": np.float32} | changes)
        with pytest.raises(REFUSED, match=message):
            call()
