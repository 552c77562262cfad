"""What the pages about the ops show is what happens, and the reference has all of them."""

import doctest
import re
from pathlib import Path

from eqfuse import ops

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_about_kernels_prints_what_it_shows():
    options = {"module_relative": False, "optionflags": doctest.ELLIPSIS, "encoding": "utf-8"}
    results = doctest.testfile(str(DOCS / "explanation" / "kernels.md"), **options)
    assert results.attempted > 10
    assert results.failed == 0


def test_the_reference_lists_all_of_ops():
    text = (DOCS / "reference" / "ops.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| ([^|]*) \|", text)))
    constants = {"BACKENDS", "TF32X3"}
    assert sorted(listed) == sorted(set(ops.__all__) - constants)


def test_the_names_that_the_pages_give_exist():
    text = (DOCS.parent / "tests/ops/test_backend.py").read_text(encoding="utf-8")
    assert "def test_every_op_runs_on_its_backend" in text
