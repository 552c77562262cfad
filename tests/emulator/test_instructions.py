"""Single instructions, each in a kernel of its own, against what the PTX manual says they do."""

import ml_dtypes
import numpy as np
import pytest

from tests.emulator import ptx, warps
from tests.emulator.arrays import Array
from tests.emulator.errors import RaceError, UnknownInstructionError
from tests.emulator.group import Group
from tests.emulator.machine import Machine

KERNEL = """
.version 8.7
.target sm_90a
.visible .entry kernel(.param .u64 .ptr .global .align 1 a, .param .u64 .ptr .global .align 1 b)
.reqntid {threads}
{{
    .reg .b32 %r<40>;
    ld.param.b64 %rd1, [a];
    ld.param.b64 %rd2, [b];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd3, %r1, 4, %rd1;
    mad.wide.u32 %rd4, %r1, 4, %rd2;
    ld.global.b32 {{ %r2 }}, [ %rd3 + 0 ];
    {body}
    st.global.b32 [ %rd4 + 0 ], {{ %r3 }};
    ret;
}}
"""
rng = np.random.default_rng(0)
WORDS = rng.integers(0, 2**32, 64, dtype=np.uint32)


def to_tf32(bits):
    """Return float32 rounded to 11 bits, half away from zero, by arithmetic."""
    mantissa, exponent = np.frexp(bits.view(np.float32).astype(np.float64))
    whole = np.trunc(mantissa * 2**11 + np.copysign(0.5, mantissa))
    return np.ldexp(whole, exponent - 11).astype(np.float32).view(np.uint32)


def run(body: str, values=WORDS, shared: int = 0) -> np.ndarray:
    """Return what a kernel of one block stores in %r3, of what it loads into %r2."""
    found = np.zeros(len(values), np.uint32)
    machine = Machine(KERNEL.format(threads=len(values), body=body), shared)
    warps_of = len(values) // 32
    machine.run([Array.input("a", values), Array.output("b", found, warps_of)], (1,))
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("cvt.rna.tf32.f32 %r3, %r2;", to_tf32),
        ("bfe.u32 %r3, %r2, 6, 5;", lambda v: v >> 6 & 31),
        ("bfe.s32 %r3, %r2, 4, 8;", lambda v: (v >> 4).astype(np.int8).astype(np.int32)),
        ("bfi.b32 %r3, %r2, 0, 8, 4;", lambda v: (v & 15) << 8),
        ("prmt.b32 %r3, %r2, 0, 0x0123;", lambda v: v.byteswap()),
        ("lop3.b32 %r3, %r2, 255, 7, 0xE8;", lambda v: (v & 255) | (v & 7) | 7),
        ("shf.l.wrap.b32 %r3, %r2, %r2, 5;", lambda v: v << 5 | v >> 27),
        ("shr.u32 %r3, %r2, 40;", lambda v: v * 0),
        ("shr.s32 %r3, %r2, 40;", lambda v: v.view(np.int32) >> 31),
        ("mul.hi.u32 %r3, %r2, 10;", lambda v: v.astype(np.uint64) * 10 >> 32),
        ("redux.sync.max.u32 %r3, %r2, -1;", lambda v: v.reshape(-1, 32).max(1).repeat(32)),
        ("shfl.sync.idx.b32 %r3, %r2, 3, 31, -1;", lambda v: v.reshape(-1, 32)[:, 3].repeat(32)),
        (
            "shfl.sync.down.b32 %r3, %r2, 16, 31, -1;",
            lambda v: np.concatenate([v.reshape(-1, 2, 16)[:, 1]] * 2, axis=1),
        ),
        ("cvt.rn.bf16.f32 %rs1, 0f3F8147AE;\ncvt.u32.u16 %r3, %rs1;", lambda v: v * 0 + 0x3F81),
    ],
)
def test_an_instruction_does_what_its_manual_says(body, expected):
    wanted = np.asarray(expected(WORDS)).ravel().astype(np.int64).astype(np.uint32)
    np.testing.assert_array_equal(run(body), wanted)


SHARED = "shl.b32 %r4, %r1, 2;\nst.shared.b32 [%r4], %r2;\n{barrier}\nxor.b32 %r5, %r4, {other};\n"
SHARED += "ld.shared.b32 %r3, [%r5];"


def test_warps_may_exchange_values_across_a_barrier_only():
    other = 32 * 4  # the other warp's
    found = run(SHARED.format(barrier="bar.sync 0;", other=other), shared=256)
    np.testing.assert_array_equal(found, WORDS.reshape(2, 32)[::-1].ravel())
    with pytest.raises(RaceError, match="is read where another wrote"):
        # the second warp's values are there before the first reads them: all warps run in step
        run(SHARED.format(barrier="", other=other), shared=256)


def test_a_warp_that_writes_what_another_has_read_is_a_race():
    again = SHARED.format(barrier="bar.sync 0;", other=128) + "st.shared.b32 [%r4], %r2;"
    with pytest.raises(RaceError, match="was read by another warp"):
        run(again, shared=256)
    run(SHARED.format(barrier="bar.sync 0;", other=0) + "st.shared.b32 [%r4], %r2;", shared=256)


def test_lanes_of_a_warp_may_write_copies_of_a_value_and_nothing_else():
    same = "and.b32 %r4, %r1, 0;\nst.shared.b32 [%r4], {value};\nmov.b32 %r3, 0;"
    run(same.format(value="%r4"), WORDS[:32], shared=16)
    with pytest.raises(RaceError, match="two threads write different values"):
        run(same.format(value="%r2"), WORDS[:32], shared=16)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("m16n8k8.row.col.f32.tf32.tf32.f32", np.float32),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", ml_dtypes.bfloat16),
        ("m8n8k4.row.col.f64.f64.f64.f64", np.float64),
        ("m16n8k4.row.col.f64.f64.f64.f64", np.float64),
    ],
)
def test_products_of_small_matrices(name, dtype):
    """Fragments are laid out as the manual's figures have them, element by element."""
    m, n, k = (
        int(x) for x in name.split(".")[0].replace("n", "m").replace("k", "m").split("m")[1:]
    )
    a, b = rng.integers(-8, 8, (m, k)).astype(float), rng.integers(-8, 8, (k, n)).astype(float)
    c = rng.integers(-8, 8, (m, n)).astype(float)
    lane, pair = np.arange(32), 2 if dtype is ml_dtypes.bfloat16 else 1
    row, column = lane // 4, lane % 4

    def left(e):  # rows repeat every 8, columns every 4 registers' worth
        halves = m // 8
        return a[
            row + 8 * (e // pair % halves),
            column * pair + e % pair + 4 * pair * (e // (pair * halves)),
        ]

    def right(e):
        return b[column * pair + e % pair + 4 * pair * (e // pair), row]

    def packed(values):
        values = [v.astype(dtype) for v in values]
        if pair == 1:
            return values
        bits = [v.view(np.uint16).astype(np.uint32) for v in values]
        return [low | high << 16 for low, high in zip(bits[::2], bits[1::2], strict=True)]

    names = {}
    group = Group(
        ptx.Program("", (), 32, (), {}, {}, ""), None, np.arange(1), (1, 1, 1), None, None
    )
    wide = np.float64 if dtype is np.float64 else np.float32
    sums = [c[row + 8 * (e // 2), 2 * column + e % 2].astype(wide) for e in range(m // 4)]
    for letter, values in (
        ("a", packed([left(e) for e in range(m * k // 32)])),
        ("b", packed([right(e) for e in range(n * k // 32)])),
        ("c", sums),
    ):
        names[letter] = [f"%{letter}{i}" for i in range(len(values))]
        group.registers |= dict(zip(names[letter], (v[None] for v in values), strict=True))
    names["d"] = [f"%d{i}" for i in range(len(sums))]
    operands = ", ".join(f"{{{', '.join(names[x])}}}" for x in "dabc")
    text = f"mma.sync.aligned.{name} {operands}"
    warps.multiply(ptx._instruction(text))(group, None)
    expected = a @ b + c
    for e, register in enumerate(names["d"]):
        wanted = expected[row + 8 * (e // 2), 2 * column + e % 2]
        np.testing.assert_array_equal(group.registers[register][0], wanted)


@pytest.mark.parametrize(
    "body", ["vote.sync.uni.pred %p1, %p2, -1;", "add.sat.s32 %r3, %r2, 1;", "brkpt;"]
)
def test_what_is_not_known_is_refused_by_name(body):
    with pytest.raises(UnknownInstructionError, match=body.split()[0].rstrip(";")):
        run(body)
