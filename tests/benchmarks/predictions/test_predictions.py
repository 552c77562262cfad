"""Machine code, the model, and the sums of training steps."""

import dataclasses
import json
import types
import zlib

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.predictions import counts, devices, launches, model, sass, steps, tables
from eqfuse.bench.cases import CASES
from eqfuse.bench.predicted import Predictions
from eqfuse.ops import Edges
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.primitives import forms
from eqfuse.ops.primitives import linear as linear_forms
from eqfuse.ops.show import derivatives

TEXT = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/                   LDG.E R2, desc[UR4][R4.64] ;
        /*0030*/                   FFMA R3, R2, R2, R3 ;
        /*0040*/              @!P0 FADD R3, R3, R3 ;
        /*0050*/                   ISETP.GE.AND P0, PT, R0, R6, PT ;
        /*0060*/               @P0 BRA 0x20 ;                    /* 0x000fe20000000036 */
        /*0070*/                   EXIT ;
        /*0080*/                   BRA 0x80 ;
        /*0090*/                   NOP ;
"""


def test_a_listing_has_loops_and_pipes():
    found = sass.parse(TEXT)
    assert [code.pipe for code in found.codes] == [
        *("memory", "other", "memory", "fp32", "fp32", "integer", "other", "other")
    ]
    assert found.loops == (sass.Loop(2, 6),)
    assert found.codes[4].registers == (("R3",), ("R3", "R3", "P0"))
    assert found.codes[2].registers[1] == ("UR4", "R4", "R5")


def test_a_warp_waits_for_what_it_reads():
    body = sass.parse(TEXT).codes[2:5]
    latency = devices.H100.latency
    assert sass.chain(body) == 3
    # the load, what needs it, and what needs that
    assert sass.cycles(body, latency, load=500) == 1 + 500 + latency["fp32"]
    assert sass.cycles(body[1:], latency, load=500) == 1 + latency["fp32"]


def test_turns_of_loops_are_those_of_ptx():
    listing = sass.parse(TEXT)
    bra = types.SimpleNamespace(name="bra", operands=("$L",), opcode=("bra",))
    load = types.SimpleNamespace(name="ld", operands=(), opcode=("ld", "global", "b32"))
    program = types.SimpleNamespace(instructions=(load, load, bra), labels={"$L": 1})
    run = types.SimpleNamespace(program=program, visits=np.array([3, 30, 30]))
    assert sass.weights(listing, run) == ([3] * 2 + [30] * 5 + [3], "loops")
    # without a loop in PTX, as many turns as make the loads as many: 33 of them
    run.program = types.SimpleNamespace(instructions=(load, load), labels={})
    run.visits = np.array([3, 30])
    assert sass.weights(listing, run) == ([3] * 2 + [33] * 5 + [3], "accesses")


def counted(**fields) -> counts.Counts:
    kernel = types.SimpleNamespace(registers=64, shared_bytes=0, entry="kernel_0123456789abcdef")
    defaults = dict.fromkeys((f.name for f in dataclasses.fields(counts.Counts)), 0.0)
    defaults |= {"kernel": kernel, "blocks": 13_200, "warps": 4, "longest": 1.0, "parts": ()}
    defaults |= {"pipes": {"fp32": 1e6}, "wavefronts": {}, "sector_bytes": 1e6}
    return counts.Counts(**(defaults | fields))


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"missed_bytes": 3e9, "sector_bytes": 3e9}, "bandwidth"),
        ({"missed_bytes": 1e8, "sector_bytes": 3e10}, "level 2"),
        ({"missed_bytes": 3e9, "sector_bytes": 5e9}, "bandwidth + level 2"),
        ({"pipes": {"integer": 1e9}}, "integer"),
        ({"pipes": {"fp32": 1e10, "other": 1e9}}, "issue"),
        ({"wavefronts": {("global", "ld"): 1e9}}, "memory pipe"),
        ({"wavefronts": {("global", "ld"): 1e9}, "pipes": {"other": 1.8e9}}, "memory pipe + other"),
        ({"parts": ((1000.0, sass.parse(TEXT).codes),)}, "latency"),
        ({"parts": ((1000.0, sass.parse(TEXT).codes),), "blocks": 10}, "occupancy"),
    ],
)
def test_a_launch_waits_for_the_slowest(fields, bound):
    found = model.predict(counted(**fields), devices.H100)
    assert found.bound == bound
    first, *second = sorted(
        (found.bounds[n.replace("occupancy", "latency")] for n in bound.split(" + ")), reverse=True
    )
    assert first == max(found.bounds.values())
    assert found.lower == first + devices.H100.launch
    assert found.seconds == first + sum(second) + devices.H100.launch
    assert found.resident == 8  # of 64 registers and 128 threads
    assert found.idle == (122 if bound == "occupancy" else 0)


def test_the_second_bound_is_added_where_it_is_not_hidden():
    assert model.together({"latency": 10, "bandwidth": 7}) == (10, ("latency",))
    assert model.together({"bandwidth": 7.1, "latency": 10, "level 2": 7}) == (
        17.1,
        ("latency", "bandwidth"),
    )
    # an instruction takes its place in the issue and in its pipe at the same time
    assert model.together({"issue": 10, "fp32": 9, "latency": 6}) == (10, ("issue",))


def test_no_kernel_is_shorter_than_the_least():
    found = model.predict(counted(pipes={"fp32": 1.0}), devices.H100)
    assert found.lower < found.seconds == devices.H100.least + devices.H100.launch


@pytest.mark.parametrize(("turns", "share"), [(1.0, 1.0), (50.0, 1.0), (0.25, 0.25)])
def test_cold_code_is_waited_for_once(turns, share):
    """500 instructions that could run in a cycle each, of which 128 bytes are a line."""
    line = "        /*{:04x}*/                   FADD R{}, R2, R2 ;"
    codes = sass.parse("\n".join(line.format(16 * n, n % 200 + 3) for n in range(500))).codes
    work = counted(parts=((turns, codes),), pipes={"fp32": 1e7})
    device = devices.H100
    warm, cold = (model.predict(work, device, is_cold) for is_cold in (False, True))
    # 16 lines of 8 instructions at a time arrive 260 cycles after the first of them before began
    windows, rest = divmod(500 - 1, devices.LINE * devices.LINES_AHEAD)
    line = device.latency["level 2"]
    waited = line + windows * line + rest + 1 - 500
    assert cold.cold == pytest.approx(share * waited / device.clock)
    assert cold.seconds == pytest.approx(warm.seconds + cold.cold)
    assert cold.lower == warm.lower


@pytest.mark.parametrize(("opcode", "columns"), [("HMMA.1688", 8), ("HGMMA.64x96x8", 96)])
def test_what_the_matrix_unit_multiplies(opcode, columns):
    text = f"        /*0000*/                   {opcode}.F32.TF32 R4, R8, R6, R4 ;"
    codes = sass.parse(text).codes
    # a warp multiplies 16 by 8 by columns numbers of TF32, each as two of 16 bits
    work = counted(parts=((1.0, codes),), pipes={"matrix": 13_200 * 4.0})
    assert model.multiplied(work) == 13_200 * 4 * 2 * 16 * 8 * columns
    rate = devices.H100.lanes["matrix"] * devices.H100.processors * devices.H100.clock
    bounds = model.predict(work, devices.H100).bounds
    assert bounds["matrix"] == pytest.approx(model.multiplied(work) / rate)
    [unknown] = sass.parse(text.replace(opcode, "HMMA.9999")).codes
    with pytest.raises(ValueError, match=r"HMMA\.9999"):
        unknown.multiplied  # noqa: B018


def test_a_changed_constant_changes_predictions():
    work = counted(missed_bytes=3e9)
    slow = dataclasses.replace(devices.H100, bandwidth=devices.H100.bandwidth / 2)
    times = [model.predict(work, device).seconds for device in (devices.H100, slow)]
    assert times[1] - slow.launch == pytest.approx(2 * (times[0] - slow.launch))


def test_an_edge_does_not_wait_for_its_indices():
    """They are loaded one turn before; else index, row and arithmetic are a chain of 16."""
    pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")
    from eqfuse.ops.backends.triton.compile import compile_kernel

    [kernel] = plan.kernels(CASES["nequip-64-l2"].forms()["forward"], "float32")
    listing = sass.listing(compile_kernel(kernel.spec, "sm_90").assembly)
    walk = max(listing.loops, key=lambda loop: loop.last - loop.first)
    assert sass.chain(listing.codes[walk.first : walk.last + 1]) <= 12


def counted_linear(rows: int, cotangent: bool):
    """Return the counts of the kernel of a Linear of 64x0e, or of its gradients by both factors."""
    [irreps] = e3nn.Irreps("64x0e")
    linear = linears.linear(e3nn.Irreps([irreps]), (False,), e3nn.Irreps([irreps])).linear_form
    form = derivatives(linear)["backward"] if cotangent else linear
    arrays = [jax.ShapeDtypeStruct(form.shape(o, rows), jnp.float32) for o in form.inputs]

    def function(*arrays):
        return linear_forms.evaluate(form, list(arrays), None, rows, "triton")

    launch, *_ = launches.launches_of(function, *arrays)
    return launch, counts.count(launch, "sm_90", 50e6, lambda kernel, warps: 132)


def test_blocks_of_every_job_are_counted():
    """A Linear's backward has many blocks for rows and few for its weights, which take longer."""
    pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")
    rows = 200_000
    launch, found = counted_linear(rows, cotangent=True)
    of_rows, of_weights = counts._jobs(launch)
    assert of_rows > 10 * of_weights > 0
    # a product of matrices each, in instructions of 32 lanes
    products = 2 * rows * 64 * 64 / 32
    assert found.pipes["fp32"] == pytest.approx(products, rel=0.25)


def test_transposed_matrices_meet_few_conflicts():
    pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")
    forward, backward = (counted_linear(200_000, c)[1] for c in (False, True))
    [one, two] = (c.wavefronts["shared", "ld"] for c in (forward, backward))
    assert two < 2.5 * one


def test_the_kernels_of_a_function_are_found_and_counted():
    """A backward pass walks the edges of each sender once, and writes their gradients."""
    pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")
    form = CASES["tetris-1"].forms()["backward"]
    rng = np.random.default_rng(0)
    # three edges a node on the mean: a program has one at a time
    edges = Edges.from_arrays(*rng.integers(0, 40, (2, 120)), 40)
    edges = jax.tree.map(np.asarray, edges)
    inputs = [
        jax.ShapeDtypeStruct((o.index.count(120, 40), o.size), jnp.float32) for o in form.inputs
    ]

    def function(inputs, edges):
        return forms.evaluate(form, inputs, edges, backend="triton")

    [launch] = launches.launches_of(function, inputs, edges)
    assert launch.grid == (40, 1)
    found = counts.count(launch, "sm_90", 50e6, lambda kernel, warps: 132, edges)
    assert (found.blocks, found.warps, found.edges) == (40, 1, 120)
    assert found.walks == 1
    assert found.turns == pytest.approx(3, rel=0.5)
    # a warp runs the loop once for each edge, and little else
    assert 120 * found.loop < found.instructions < 1.5 * 120 * found.loop
    # an edge has 15 numbers and their gradients, and its 8 of the receiver; of a node x and dx
    rows = 120 * 2 * 15 * 4
    assert rows < found.unique_bytes < 3 * rows
    prediction = model.predict(found, devices.H100)
    assert prediction.bound == "occupancy"
    assert tables.counted("tetris-1", "backward", found, prediction).count("|") == 17


HLO = """HloModule step

%fused (a: f32[6,4], b: f32[4,8]) -> f32[6,8] {
  %a = f32[6,4]{1,0} parameter(0)
  %b = f32[4,8]{1,0} parameter(1)
  ROOT %dot.1 = f32[6,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[6,4], w: f32[4,8]) -> (f32[6,8]) {
  %x = f32[6,4]{1,0} parameter(0)
  %w = f32[4,8]{1,0} parameter(1)
  ROOT %gemm = f32[6,8]{1,0} fusion(%x, %w), kind=kCustom, calls=%fused
}
"""


def test_bytes_and_operations_of_a_matmul():
    shapes = steps.Shapes(HLO)
    assert shapes.bytes("gemm") == 4 * 48
    assert shapes.operations("dot.1", ("a", "b")) == 2 * 6 * 8 * 4
    program = steps.HloProgram(HLO)
    [item] = [steps._other(program, shapes, i, "products", devices.H100) for i in program.entry]
    assert item.bound == "launch"
    assert item.seconds == devices.H100.launch + devices.H100.least_matmul
    assert item.lower == pytest.approx(
        devices.H100.launch + (4 * (24 + 32 + 48)) / devices.H100.cache_bandwidth
    )


def test_matmuls_of_xla_have_the_rate_of_their_precision():
    large = HLO.replace("[6,4]", "[8192,8192]").replace("[4,8]", "[8192,8192]")
    large = large.replace("[6,8]", "[8192,8192]")
    in_parts = large.replace("_dims={0}\n", "_dims={0}, algorithm=dot_tf32_tf32_f32_x3\n")
    for text, rate in ((large, 41.5e12), (in_parts, 69.7e12)):
        program, shapes = steps.HloProgram(text), steps.Shapes(text)
        [item] = [steps._other(program, shapes, i, "products", devices.H100) for i in program.entry]
        assert item.bound == "arithmetic"
        assert item.seconds == pytest.approx(2 * 8192**3 / rate, rel=0.01)


def test_the_name_of_a_kernel_is_in_its_call():
    content = zlib.compress(b"\x0a\x1fdx_dy_sender_0123456789abcdef more")
    special = {0x5C: "\\\\", 0x22: '\\"'}
    opaque = "".join(special.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:02X}") for b in content)
    line = f'custom-call(%a), backend_config={{opaque = "{opaque}"}}'
    assert steps.kernel_name(line) == "dx_dy_sender_0123456789abcdef"
    with pytest.raises(ValueError, match="no name of a kernel"):
        steps.kernel_name('custom-call(%a), backend_config={opaque = ""}')


def test_a_breakdown_sums_and_sorts():
    items = [
        steps.Item("others", "gate", 1e-6, 1e-6, "launch"),
        steps.Item("eqfuse", "kernel_0", 6e-6, 4e-6, "latency", cold=2e-6),
        steps.Item("others", "gate", 2e-6, 1e-6, "bandwidth"),
    ]
    assert steps.breakdown(items) == [
        ("eqfuse", "kernel_0", 1, 6e-6, "latency"),
        ("others", "gate", 2, 3e-6, "bandwidth"),
    ]
    text = tables.step("a step", items, host_launch=4e-6)
    assert "predicted 0.009 ms in 3 launches, of which 0.002 are for cold code" in text
    assert "lower bound 0.006 ms" in text
    assert "| kernels of eqfuse | 1 | 6 | 67 % |" in text


def test_predictions_stand_beside_what_is_measured(tmp_path):
    file = tmp_path / "predictions.json"
    row = {"case": "mixed", "order": "backward", "size": [3, 4]}
    results = [
        row | {"predicted_seconds": {"H100 SXM": s, "A100 SXM 80 GB": 1}} for s in (1e-3, 2e-3)
    ]
    others = [{"precisions": ["tf32x3"]}, {"precisions": ["ieee"], "radial": "table"}]
    results += [results[0] | other for other in others]  # neither is measured
    file.write_text(json.dumps({"results": results}))
    measured = row | {"group": "kernels", "dtype": "float32", "sides": {}}
    found = Predictions("NVIDIA H100 80GB HBM3", file)
    assert found.add(measured)["predicted_ms"] == 3.0  # of both kernels
    for other in ({"size": [3, 5]}, {"dtype": "float64"}, {"group": "parity"}):
        assert "predicted_ms" not in found.add(measured | other)
    assert "predicted_ms" not in Predictions("NVIDIA L4", file).add(measured)
    assert Predictions("NVIDIA H100", tmp_path / "none").add(measured) == measured
    file.write_text("[]")
    with pytest.raises(ValueError, match="holds no predictions"):
        Predictions("NVIDIA H100", file)
