"""`python -m eqfuse.ops.show`: what it prints of a product, and how it refuses."""

import re
import sys

import pytest

from eqfuse.ops import show

X, Y = "32x0e+32x1o", "0e+1o+2e"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))


def test_form_and_plan_of_a_graph_product():
    text = show.show(X, Y, filter_ir_out="0e+1o+2e", graph=True, weights=True, target="none")
    assert text.startswith("32x0e+32x1o (x) 0e+1o+2e -> 64x0e+96x1o+64x2e\n")
    assert "inputs  x[sender: 32x1+32x3], y[row: 1+3+5], w[row: " in text
    assert "out.0[32x1] += x.0[32x1] * y.0[1] * w.0[32x1]  (1 terms)" in text
    # 1 + 3 terms to 0e, 3 + 3 + 11 to 1o, 5 + 11 to 2e
    assert "7 paths, 37 terms; for 2700 edges, 135 nodes in float32" in text
    assert re.search(r"\n1 kernel\n  out_receiver_\w+: a program owns one receiver, reads x", text)
    assert "grid 135x1, 1 warps" in text
    assert "compiled" not in text
    assert "@triton.jit" not in text


def test_work_is_that_of_the_form():
    text = show.show("4x0e", "0e", target="none", dtype="float64", num_edges=10)
    # x, y and out of 4 + 1 + 4 numbers per row; a coefficient, a product and a sum per channel
    assert "1 paths, 1 terms; for 10 rows in float64: 120 operations, 720 bytes" in text


@pytest.mark.parametrize(
    ("order", "kernels", "writes"),
    [("forward", 1, "writes out;"), ("backward", 1, "writes dx, dy, dw;"), ("double", 2, "ddout;")],
)
def test_orders(order, kernels, writes):
    text = show.show(X, Y, weights=True, order=order, target="none")
    assert f"\n{kernels} kernel" in text
    assert writes in text


def test_source_is_the_kernel():
    text = show.show(X, Y, target="none", source=True)
    source = text.split("\n\n", 4)[-1]
    assert source.count("@triton.jit") == 1
    compile(source[source.index("import triton") :], "kernel", "exec")


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_resources(target):
    pytest.importorskip("triton")
    text = show.show("8x0e+8x1o", "0e+1o", target=target, dtype="bfloat16")
    found = re.search(
        r"compiled for (\w+)\n  (\d+) registers, 0 bytes spilled, 0 bytes of shared memory, "
        r"[\d.]+ s to compile\n  (.*\.py)",
        text,
    )
    assert found[1] == target
    assert 8 <= int(found[2]) <= 128
    with open(found[3]) as file:
        assert "def out_row_" in file.read()
    assert "(from disk)" not in text


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "not compiled for sm_90: triton is not installed" in show.show(X, Y)


def test_products_that_are_not_one_kernel():
    text = show.show("8x0e", "9x1o", graph=True, target="none")
    assert "x and y are repeated for every pair of channels" in text
    assert "then a sum to the receivers" in text
    text = show.show("8x0e", "1o", filter_ir_out="0e", target="none")
    assert "-> nothing\nno path from x and y to these irreps" in text
    assert text.endswith("0 kernels")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["8x0q", "1o"], "'8x0q' are no irreps"),
        (["8x0e", "1o", "--filter", "scalars"], "'scalars' are no irreps"),
        (["8x0e", "1o", "--target", "h100"], "'h100' is none of 'sm_90', 'gfx942'"),
        (["8x0e", "1o", "--dtype", "int32"], "invalid choice: 'int32'"),
        (["8x0e", "1o", "--edges", "-3"], "'-3' is not a positive number"),
        (["8x0e"], "arguments are required: irreps_y"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        show.main(arguments)
    captured = capsys.readouterr()
    assert error.value.code == 2
    assert message in captured.err.splitlines()[-1]
    assert not captured.out


def test_command_line(capsys):
    show.main(["4x0e", "1o", "--target", "none", "--nodes", "7"])
    assert capsys.readouterr().out == show.show("4x0e", "1o", target="none", num_nodes=7) + "\n"
