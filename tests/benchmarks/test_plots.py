"""Figures are drawn from records, without what failed or was not run."""

from benchmarks import plots


def test_bars_where_a_backend_does_not_fit(tmp_path):
    common = {"threads": 4, "scratch": {"e3nn": 2e9, "llvm": 1e6}}
    results = [
        {"threads": 4, "bandwidth": 1.0},
        {"case": "MACE, 135 atoms", **common, "ms": {"e3nn": {"median": 9.0}}},
        {"case": "MACE, 2997 atoms", **common, "ms": {"llvm": {"median": 2.0}}},
        {"case": "NequIP, 2997 atoms", **common, "ms": {}},
        {"case": "Allegro, 135 atoms", **common, "error": "results differ"},
    ]
    plots.steps(results, tmp_path / "steps.png")
    assert (tmp_path / "steps.png").stat().st_size > 1000


def test_launches_of_both_sides(tmp_path):
    results = [
        {"case": f"mace, 135 nodes, 2700 edges, {side}", "launches": count, "temp_bytes": 1e6}
        for side, count in (("e3nn-jax", 900), ("eqfuse", 200))
    ]
    plots.launches(results, tmp_path / "launches.png")
    assert (tmp_path / "launches.png").stat().st_size > 1000
