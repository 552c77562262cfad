"""The page of predictions shows the numbers of its data file."""

import json

from benchmarks.predictions import page


def test_the_results_page_has_the_tables_of_the_data_file():
    results = json.loads(page.FILE.read_text(encoding="utf-8"))["results"]
    text = page.FILE.with_suffix(".md").read_text(encoding="utf-8")
    for table in (page.steps(results), page.ops(results)):
        assert len(table) > 5
        assert "\n".join(table) in text


def test_kernels_of_an_order_are_added():
    def kernel(order, seconds):
        size = [135, 2_700]
        times = {"H100 SXM": seconds}
        return {"case": "mace-large", "order": order, "size": size, "kernel": "k"} | {
            "predicted_seconds": times
        }

    rows = page.ops([kernel("forward", 1e-6), kernel("double", 2e-6), kernel("double", 3e-6)])
    assert "| mace-large | 1 | 0 | 5 | 0 | 0 | 0 |" in rows
