"""The table of compile times: its columns, and what it measures."""

import pytest

pytest.importorskip("triton")

from triton.backends.nvidia.compiler import CUDABackend

from benchmarks.products import compile_time


def table(monkeypatch, capsys, *arguments):
    """Return the rows that are printed, each as a dictionary."""
    monkeypatch.setattr("sys.argv", ["compile_time", *arguments])
    compile_time.main()
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
    )
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize("target", ["sm_90", pytest.param("gfx942", marks=pytest.mark.slow)])
def test_rows(monkeypatch, capsys, tmp_path, target):
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    add_stages = CUDABackend.add_stages
    name = "linear 64x0e+64x1o+64x2e"
    rows = table(monkeypatch, capsys, name, "--coalesce", "--target", target)
    assert CUDABackend.add_stages is add_stages
    found = [(row["kernel"], row["order"], row["coalesced"]) for row in rows]
    assert found == [(name, order, c) for order in ("forward", "backward") for c in ("no", "yes")]
    for without, coalesced in zip(rows[::2], rows[1::2], strict=True):
        assert int(coalesced["loads"]) < int(without["loads"])
        assert without["spilled"] == coalesced["spilled"] == "0"
        parts = sum(float(without[part]) for part in ("text", *compile_time.STAGES, "ptxas"))
        assert parts == pytest.approx(float(without["all, s"]), abs=0.4)  # seven roundings to 0.1


def test_an_unknown_name_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        table(monkeypatch, capsys, "linear 3x0e")
    assert "unknown: linear 3x0e; choose from linear 16x0e+16x1o" in capsys.readouterr().err
