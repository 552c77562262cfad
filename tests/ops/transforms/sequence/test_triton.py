"""`ops.sequence` on a GPU: one block takes all steps, in the interpreter and in the emulator."""

import itertools
import math
import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.networks import random_graph, step_on
from benchmarks.steps import sequences
from eqfuse import ops
from eqfuse.ops.backends.triton import program as triton_program
from eqfuse.ops.backends.triton.interpret import interpret_count
from eqfuse.ops.transforms.sequence.sequence import Sequence
from tests.emulator import functions
from tests.emulator.errors import RaceError
from tests.ops.backends.test_launches import gpu  # noqa: F401
from tests.ops.transforms.sequence.test_sequence import difference

pytest.importorskip("triton", reason="the interpreter is part of triton")
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


def steps_of(function, args):
    """Return the steps of a function, all of it."""
    leaves, tree = jax.tree.flatten(args)
    flat = jax.make_jaxpr(lambda *a: function(*jax.tree.unflatten(tree, a)))(*leaves)
    [stage] = Sequence(flat, math.inf).stages.native
    return stage.program


@pytest.mark.slow
def test_a_training_step_of_tetris_is_one_kernel_that_equals_e3nns():
    """Loss, gradients and Adam: parameters, both moments, and the logits."""
    step, args = sequences.tetris("triton-interpret")
    reference, _ = sequences.tetris("e3nn")
    expected = jax.jit(reference)(*args)
    before = interpret_count()
    found = jax.block_until_ready(ops.sequence(step, most=math.inf)(*args))
    assert interpret_count() - before == 1
    # three layers, each with the roundings of its sums, as in benchmarks/launches/tetris.py
    assert difference(found, expected) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nequip", "mace", "allegro"])
def test_forces_and_gradients_are_those_of_e3nn(name, x64):
    """Compare one layer of 4 channels, in float64: sums of some thousand products of 1e-16 each."""
    timed = step_on(random_graph(40), name, channels=4, layers=1, lmax=1)
    args = jax.tree.map(lambda a: a.astype(float) if a.dtype == np.float32 else a, timed.args)
    expected = jax.jit(timed.function("e3nn"))(*args)
    found = ops.sequence(timed.function("triton-interpret"), most=math.inf)(*args)
    assert difference(found, expected) <= 1e-10


def small(backend: str):
    """Return a product on a graph, a Linear and what is between, with their gradients."""
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3, 16), (16, 16)))
    y = jnp.asarray(rng.normal(size=(5, 4)), jnp.float32)
    edges = ops.Edges.from_arrays(np.array([0, 1, 2, 2, 0]), np.array([1, 0, 0, 1, 1]), 3)

    def loss(x, w):
        mixed = ops.grouped_dense(jnp.tanh(x), [w], scale=0.25, backend=backend)
        features = e3nn.IrrepsArray("4x0e+4x1o", mixed)
        out = ops.graph_tensor_product(
            features, e3nn.IrrepsArray("0e+1o", y), None, edges, backend=backend
        )
        return jnp.sum(out.array**2)

    return jax.value_and_grad(loss, (0, 1)), (x, w)


def bytes_in_conflict(before, after) -> bool:
    """Return whether two steps touch a byte of one memory that one of them writes."""
    (reads, writes), (reads_after, writes_after) = before, after
    pairs = itertools.chain(
        itertools.product(writes, [*reads_after, *writes_after]),
        itertools.product(reads, writes_after),
    )
    return any(a[0] == b[0] and range(max(a[1], b[1]), min(a[2], b[2])) for a, b in pairs)


def test_barriers_stand_between_steps_that_touch_the_same_memory():
    """Each barrier is needed; without any one of them, what it guards is found."""
    step, args = sequences.tetris("triton")
    steps = triton_program.prepared(steps_of(step, args))
    guarded = triton_program.barriers(steps)
    assert len(guarded) > 100
    everything = triton_program.touched(steps)
    pairs = [
        (a, b)
        for b, after in enumerate(everything)
        for a, before in enumerate(everything[:b])
        if bytes_in_conflict(before, after)
    ]
    assert all(any(a < k <= b for k in guarded) for a, b in pairs)
    for one in sorted(guarded)[::20]:
        rest = guarded - {one}
        unguarded = [(a, b) for a, b in pairs if not any(a < k <= b for k in rest)]
        assert any(a < one <= b for a, b in unguarded)


def test_the_emulated_kernel_gives_what_e3nn_gives():
    function, args = small("triton")
    reference, _ = small("e3nn")
    with jax.default_matmul_precision("highest"):
        found = functions.emulate(ops.sequence(function, most=math.inf), *args, target="sm_90")
        expected = jax.jit(reference)(*args)
    assert difference(found, expected) <= 1e-5


@pytest.mark.slow
def test_the_emulated_step_of_tetris_gives_what_e3nn_gives():
    step, args = sequences.tetris("triton")
    reference, _ = sequences.tetris("e3nn")
    with jax.default_matmul_precision("highest"):
        found = functions.emulate(ops.sequence(step, most=math.inf), *args, target="sm_90")
        expected = jax.jit(reference)(*args)
    assert difference(found, expected) <= 1e-4


def test_every_barrier_is_in_the_text():
    """Compilers put some around calls of their own; these do not count."""
    function, args = small("triton")
    kernel = triton_program.generate(steps_of(function, args), "float32")
    main = kernel.spec.source.partition(f"def {kernel.spec.name}(")[2]
    lines = [line.strip() for line in main.splitlines()]
    places = [n for n, line in enumerate(lines) if line.startswith("step_")]
    between = itertools.pairwise([0, *places])
    found = [k for k, (a, b) in enumerate(between) if "tl.debug_barrier()" in lines[a:b]]
    needed = triton_program.barriers(triton_program.prepared(steps_of(function, args)))
    assert found == sorted(needed)
    assert len(found) > 5


def test_missing_barriers_are_races():
    function, args = small("triton")

    def without_barriers(ptx: str) -> str:
        """Remove the barriers of the kernel itself, whose functions stand before it."""
        before, entry, kernel = ptx.partition(".entry")
        assert re.search(r"bar\.sync\s+0;", kernel)
        return before + entry + re.sub(r"bar\.sync\s+0;", "", kernel)

    with pytest.raises(RaceError, match="without a barrier between"):
        functions.emulate(
            ops.sequence(function, most=math.inf), *args, target="sm_90", mend=without_barriers
        )


@pytest.mark.slow
def test_launches_of_a_training_step_of_tetris(gpu):  # noqa: F811
    from benchmarks.launches import count

    step, args = sequences.tetris("triton")
    assert count(ops.sequence(step, most=math.inf), args, gpu).launches <= 3


def test_auto_leaves_a_gpu_as_it_is(capsys):
    """A block takes longer than the launches of all steps, by prediction."""
    function, args = small("triton-interpret")
    ops.sequence(function, report=True)(*args)
    assert "as written: on a GPU" in capsys.readouterr().out
