"""Pages of HTML."""

from eqfuse.runs import page


def test_page_folds_long_cells():
    references = ", ".join(f"E{k} -1.0000" for k in range(89))
    table = page.table([("references", references), ("species", "H O")])
    assert (
        f"<td><details><summary>{references[:60]} ...</summary>{references}</details></td>" in table
    )
    assert table.count("<details>") == 1
    assert "<td>H O</td>" in table
