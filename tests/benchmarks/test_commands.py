"""Every benchmark imports, its commands have a help that runs nothing, and scripts run."""

import importlib
import pathlib
import runpy
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
OPTIONAL = {"torch", "mace", "sevenn", "nequix", "matscipy", "triton"}
"""Packages of other programs, which need not be installed."""


def name_of(file: pathlib.Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_modules_import_and_commands_have_help(monkeypatch, capsys):
    assert len(FILES) > 40
    for file in FILES:
        name = name_of(file)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name in OPTIONAL:
                continue
            raise
        if '__name__ == "__main__"' not in file.read_text(encoding="utf-8"):
            continue
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        monkeypatch.delitem(sys.modules, name)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
        assert not ended.value.code, name
        out = capsys.readouterr().out
        assert "usage" in out or "[name=value ...]" in out, name


def test_show_prints_the_form_and_the_kernels(tmp_path, monkeypatch, capsys):
    pytest.importorskip("triton")
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    main = runpy.run_path(str(ROOT / "scripts" / "show.py"))["main"]
    main(["8x0e+8x1o", "0e+1o", "--weights", "--order", "backward", "--source"])
    text = capsys.readouterr().out
    assert text.startswith("8x0e+8x1o (x) 1x0e+1x1o -> 16x0e+")
    assert "inputs  x[sender: 8x1+8x3], y[row: 1+3], w[row: " in text
    assert "a program owns sender, reads x, y, w, dout, receivers, sender_order" in text
    assert text.count("def dx_dy_dw_sender_") == 1
    assert "sm_90: " in text
    assert ", 0 bytes spilled" in text


def test_kernel_texts_prints_hashes_of_both_backends(capsys):
    pytest.importorskip("triton")
    main = runpy.run_path(str(ROOT / "scripts" / "kernel_texts.py"))["main"]
    main(cases={}, steps=["tetris"])
    hashes = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert {name.split()[1] for name in hashes} == {"triton", "llvm"}
    assert all(len(found) == 16 for found in hashes.values())
