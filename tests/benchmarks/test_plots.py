"""Pictures are drawn from records, without what failed or was not run."""

from benchmarks import plots


def test_growth_of_backends_that_stop_at_different_points(tmp_path):
    def point(value, backend, ms):
        numbers = {"ms": ms and {"median": ms}, "scratch_bytes": 1e6, "compile_cpu_s": 2.0}
        return {"model": "mace", "sweep": "edges", "value": value, "backend": backend, **numbers}

    results = [point(10, "e3nn", 3.0), point(10, "llvm", 1.0), point(100, "llvm", None)]
    results.append({"sweep": "edges", "value": 1000, "backend": "llvm", "error": "exit code -9"})
    plots.growth(results, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_bars_where_a_backend_does_not_fit(tmp_path):
    common = {"threads": 4, "scratch": {"e3nn": 2e9, "llvm": 1e6}}
    results = [
        {"threads": 4, "bandwidth": 1.0},
        {"case": "MACE training step, 64", **common, "ms": {"e3nn": {"median": 9.0}}},
        {"case": "MACE training step, 64, 2997 atoms", **common, "ms": {"llvm": {"median": 2.0}}},
        {"case": "NequIP training step, 64, 2997 atoms", **common, "ms": {}},
        {"case": "Allegro training step, 64", **common, "error": "results differ"},
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
