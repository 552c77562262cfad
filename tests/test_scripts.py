"""Scripts of developers that run without other programs."""

import pathlib
import runpy

import pytest

from eqfuse.ops.backends.llvm import machine

SCRIPTS = pathlib.Path(__file__).parents[1] / "scripts"


def test_show_prints_the_form_and_the_kernels(tmp_path, monkeypatch, capsys):
    pytest.importorskip("triton")
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    main = runpy.run_path(str(SCRIPTS / "show.py"))["main"]
    main(["8x0e+8x1o", "0e+1o", "--weights", "--order", "backward", "--source"])
    text = capsys.readouterr().out
    assert text.startswith("8x0e+8x1o (x) 1x0e+1x1o -> 16x0e+")
    assert "inputs  x[sender: 8x1+8x3], y[row: 1+3], w[row: " in text
    assert "a program owns sender, reads x, y, w, dout, receivers, sender_order" in text
    assert text.count("def dx_dy_dw_sender_") == 1
    assert "sm_90: " in text
    assert ", 0 bytes spilled" in text


def test_kernel_texts_are_hashed(capsys):
    pytest.importorskip("triton")
    register = machine.register
    main = runpy.run_path(str(SCRIPTS / "kernel_texts.py"))["main"]
    main(cases={}, steps=["tetris"])
    assert machine.register is register
    hashes = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert {name.split()[1] for name in hashes} == {"triton", "llvm"}
    assert all(len(found) == 16 for found in hashes.values())
