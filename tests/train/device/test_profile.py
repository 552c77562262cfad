"""A trace of a few steps: every operation is counted, and attributed to what it comes from."""

import collections
import csv
import gzip
import json
import types

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.train.device import profiling
from eqfuse.train.device.hlo import NOT_ATTRIBUTED, HloProgram
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.run.stopping import TrainingFailed


def mixed(params, x):
    """Two Linears of ours, three matrix products of XLA, and a sort."""
    x = e3nn.IrrepsArray("4x0e+4x1o", x)
    linear = ops.Linear("4x0e+4x1o", backend="llvm")
    for _ in range(2):
        x = linear.apply(params, x)
    with jax.named_scope("layer_1"):
        y = x.array[:, :4]
        for _ in range(3):
            # Neither one product nor fused with its neighbours.
            y = jax.lax.optimization_barrier(jnp.tanh(y @ y.T @ y))[:, :4]
    return x.array.sum() + jnp.sort(y, axis=0)


@pytest.fixture
def step():
    """Return a jitted function and its arguments."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 16)), jnp.float32)
    linear = ops.Linear("4x0e+4x1o", backend="llvm")
    params = linear.init(jax.random.key(0), e3nn.IrrepsArray("4x0e+4x1o", x))
    return jax.jit(mixed), (params, x)


def test_every_operation_is_counted_and_attributed(step, tmp_path):
    function, args = step
    text = profiling.profile(function, args, tmp_path / "profile")
    program = HloProgram(function.lower(*args).compile().as_text())
    rows = profiling.summarise(tmp_path / "profile", program)
    found = collections.Counter()
    for row in rows:
        assert row.milliseconds > 0
        found[row.source] += row.launches
    assert found == collections.Counter(program.source(i) for i in program.entry)
    assert found["Linear"] == sum(r.launches for r in rows if r.kernel == "eqfuse_native") == 2
    # Six products, three times tanh and two slices; XLA may fuse some.
    assert 6 <= found["layer"] <= 11
    assert NOT_ATTRIBUTED not in found
    for row in rows[: profiling.SHOWN]:
        assert f"{row.launches:g}" in text
        assert row.kernel in text


def test_the_files_of_a_trace(step, tmp_path):
    function, args = step
    profiling.profile(function, args, tmp_path)
    [trace] = tmp_path.rglob("*.trace.json.gz")  # Perfetto, in Chrome's trace event format
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    native = [e for e in events if e["name"].startswith("eqfuse_native")]
    assert len(native) >= 2
    for event in native:
        assert event["ts"] > 0 < event["dur"]
        assert {"pid", "tid"} <= set(event)
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1  # TensorBoard
    with open(tmp_path / "operations.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    times = [float(row["milliseconds"]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert {"launches", "kernel", "source"} < set(rows[0])


def test_a_trace_without_operations_is_an_error(step, tmp_path):
    function, args = step
    program = HloProgram(function.lower(*args).compile().as_text())
    with jax.profiler.trace(tmp_path):
        pass
    with pytest.raises(TrainingFailed, match="holds no operation of the training step on cpu"):
        profiling.summarise(tmp_path, program)


GPU_TRACE = """
planes {
  name: "/device:GPU:1"
  event_metadata { key: 1 value { id: 1 name: "of_another_device" } }
  lines { name: "Stream #13(Compute)" events { metadata_id: 1 duration_ps: 9000000000 } }
}
planes {
  name: "/device:GPU:0"
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
  stat_metadata { key: 2 value { id: 2 name: "custom-call.7" } }
  event_metadata { key: 1 value { id: 1 name: "eqfuse_fused_5c1e" } }
  event_metadata { key: 2 value { id: 2 name: "loop_fusion_3" } }
  event_metadata { key: 3 value { id: 3 name: "MemcpyD2D" } }
  lines {
    name: "Stream #13(Compute)"
    events { metadata_id: 1 duration_ps: 3000000000 stats { metadata_id: 1 ref_value: 2 } }
    events { metadata_id: 1 duration_ps: 1000000000 stats { metadata_id: 1 ref_value: 2 } }
    events { metadata_id: 2 duration_ps: 500000000 stats { metadata_id: 1 str_value: "tanh.1" } }
  }
  lines { name: "Stream #14(MemcpyD2D)" events { metadata_id: 3 duration_ps: 20000000 } }
  lines { name: "XLA Ops" events { metadata_id: 2 duration_ps: 500000000 } }
}
planes { name: "/host:CPU" lines { name: "python" } }
"""


def test_the_streams_of_the_first_gpu_are_summarised(tmp_path):
    """A trace as XLA writes it for NVIDIA GPUs, for whoever has none."""
    program = HloProgram(
        """HloModule jit_step

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %custom-call.7 = f32[4]{0} custom-call(%a), custom_call_target="triton_kernel_call", \
metadata={op_name="jit(step)/layer_1/product/eqfuse_form"}
  ROOT %tanh.1 = f32[4]{0} tanh(%custom-call.7), metadata={op_name="jit(step)/layer_1/mlp/tanh"}
}
"""
    )
    folder = tmp_path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    trace = jax.profiler.ProfileData.text_proto_to_serialized_xspace(GPU_TRACE)
    (folder / "host.xplane.pb").write_bytes(trace)
    rows = profiling.summarise(tmp_path, program, steps=2)
    assert [(row.launches, row.milliseconds, row.source) for row in rows] == [
        (1.0, 2.0, "layer/product"),
        (0.5, 0.25, "layer/mlp"),
        (0.5, 0.01, NOT_ATTRIBUTED),
    ]
    assert [row.kernel for row in rows] == ["eqfuse_fused_5c1e", "loop_fusion", "MemcpyD2D"]


def test_no_trace_is_an_error(tmp_path):
    with pytest.raises(TrainingFailed, match="wrote no trace"):
        profiling.summarise(tmp_path, HloProgram("ENTRY %main () -> f32[] {\n}"))


def test_what_xla_makes_comes_from_what_uses_it():
    program = HloProgram(
        """HloModule jit_step

%pad (p: f32[3]) -> f32[4] {
  %p = f32[3]{0} parameter(0)
  ROOT %padded = f32[4]{0} pad(%p, %p), padding=0_1
}

ENTRY %main (x: f32[3]) -> (f32[4], f32[3]) {
  %x = f32[3]{0} parameter(0)
  %loop_pad_fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%pad
  %copy.7 = f32[3]{0} copy(%x)
  %dot.2 = f32[4]{0} dot(%loop_pad_fusion.1, %x), metadata={op_name="jit(step)/layer_2/up/dot"}
  ROOT %out = (f32[4]{0}, f32[3]{0}) tuple(%dot.2, %copy.7)
}
"""
    )
    assert {i.name: program.source(i) for i in program.entry} == {
        "loop_pad_fusion.1": "layer/up",
        "copy.7": NOT_ATTRIBUTED,
        "dot.2": "layer/up",
    }


def test_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="not the text of a compiled program: 'nothing'"):
        HloProgram("nothing")


def test_a_resumed_run_has_a_trace_of_its_own(tmp_path):
    folder = types.SimpleNamespace(path=tmp_path)
    assert RunFolder.profile.fget(folder) == tmp_path / "profile"
    (tmp_path / "profile").mkdir()
    assert RunFolder.profile.fget(folder) == tmp_path / "profile_2"
