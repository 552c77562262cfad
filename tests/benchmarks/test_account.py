"""The account of launches, and what is reported where results differ."""

import pytest

from benchmarks.launches.account import NOT_SCHEDULED, account, table
from benchmarks.launches.hlo import NOT_ATTRIBUTED
from eqfuse.bench.record import ParityError

STEP = """HloModule jit_step, is_scheduled=true

%pad (p: f32[3]) -> f32[4] {
  %p = f32[3]{0} parameter(0)
  ROOT %padded = f32[4]{0} pad(%p, %p), padding=0_1
}

%call (q: f32[3]) -> f32[4] {
  %q = f32[3]{0} parameter(0)
  ROOT %k = f32[4]{0} custom-call(%q), custom_call_target="triton", metadata={op_name="jit(step)/layer_0/up/eqfuse_launch"}
}

ENTRY %main (x: f32[3]) -> f32[4] {
  %x = f32[3]{0} parameter(0)
  %loop_pad_fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%pad
  %copy.7 = f32[3]{0} copy(%x)
  %gemm_fusion.2 = f32[4]{0} fusion(%loop_pad_fusion.1), metadata={op_name="jit(step)/transpose(jvp(Net))/layer_2/up/dot_general"}
  %slice_fusion.1 = f32[4]{0} fusion(%x), kind=kCustom, calls=%call
  ROOT %add.1 = f32[4]{0} add(%gemm_fusion.2, %slice_fusion.1), metadata={op_name="jit(step)/optimizer/add"}
}
"""  # noqa: E501


def test_every_launch_is_in_the_account():
    found = account(STEP, 5)
    assert found == {
        "layer/up": {"moves": 1, "products": 1, "eqfuse": 1},
        NOT_ATTRIBUTED: {"moves": 1},
        "optimizer": {"others": 1},
    }
    assert table("step", found).splitlines()[-1] == "| sum | 1 | 1 | 2 | 1 | 5 |"


def test_launches_that_the_text_does_not_hold_are_a_line_of_their_own():
    assert account(STEP, 7)[NOT_SCHEDULED] == {"others": 2}


def test_nothing_is_reported_where_parity_is_red():
    launches = pytest.importorskip("benchmarks.launches.__main__")

    def parity(name):
        raise ParityError(f"{name}: results differ")

    def case():
        raise AssertionError("compiled before its parity is known")

    found = launches.measure("a", case, parity, gpu=None, with_account=True)
    assert found == {"case": "a", "error": "a: results differ"}
