"""Every benchmark imports, and every command of them has a help that runs nothing."""

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
