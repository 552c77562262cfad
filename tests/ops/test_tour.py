"""What eqfuse/ops/README.md shows is what happens."""

import doctest
from pathlib import Path

TOUR = Path(__file__).parents[2] / "eqfuse" / "ops" / "README.md"


def test_the_tour_prints_what_it_says():
    options = {"module_relative": False, "optionflags": doctest.ELLIPSIS, "encoding": "utf-8"}
    found = doctest.testfile(str(TOUR), **options)
    assert found.attempted > 10
    assert found.failed == 0
