"""The page of predictions shows the numbers of its data file."""

import json

from benchmarks.predictions import page


def test_the_results_page_has_the_tables_of_the_data_file():
    results = json.loads(page.FILE.read_text(encoding="utf-8"))["results"]
    text = page.FILE.with_suffix(".md").read_text(encoding="utf-8")
    for table in (page.steps(results), page.ops(results), page.ops(results, "ieee")):
        assert len(table) > 5
        assert "\n".join(table) in text


def test_kernels_of_an_order_are_added():
    def kernel(order, seconds, *precisions):
        return {
            "case": "mace-large",
            "order": order,
            "size": [135, 2_700],
            "precisions": precisions,
            "kernel": "k",
            "predicted_seconds": {"H100 SXM": seconds},
            "lower_seconds": {"H100 SXM": seconds / 2},
        }

    both = "ieee", "tf32x3"
    kernels = [kernel("forward", 2e-6, *both), kernel("double", 4e-6, "tf32x3")]
    kernels += [kernel("double", 6e-6, *both), kernel("double", 9e-6, "ieee")]
    assert "| mace-large | 2 (1) |  | 10 (5) |  |  |  |" in page.ops(kernels)
    assert "| mace-large | 2 (1) |  | 15 (8) |  |  |  |" in page.ops(kernels, "ieee")
    assert "mace-large" not in str(page.ops(kernels[:1], "ieee"))
