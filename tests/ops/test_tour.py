"""What eqfuse/ops/README.md shows is what happens."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

TOUR = Path(__file__).parents[2] / "eqfuse" / "ops" / "README.md"


def test_the_tour_prints_what_it_says():
    options = {"module_relative": False, "optionflags": doctest.ELLIPSIS, "encoding": "utf-8"}
    found = doctest.testfile(str(TOUR), **options)
    assert found.attempted > 10
    assert found.failed == 0


def run(package: str) -> dict:
    """Return the names that the example with a package defines."""
    pytest.importorskip(package)
    blocks = re.findall(r"```python\n(.*?)```", TOUR.read_text(encoding="utf-8"), re.DOTALL)
    [block] = [b for b in blocks if f"import {package} as" in b]
    names = {"__name__": __name__}
    exec(block, names)
    return names


def test_the_example_with_haiku():
    names = run("haiku")
    assert names["out"].irreps == "4x0e+4x1o"
    theirs = names["trained"].apply(names["params"], names["x"])
    np.testing.assert_allclose(names["same"].array, theirs.array, atol=1e-5)


def test_the_example_with_equinox():
    names = run("equinox")
    gradients, layer = names["gradients"].parameters, names["layer"].parameters
    assert {n: g.shape for n, g in gradients.items()} == {n: p.shape for n, p in layer.items()}
    assert all(np.abs(g).max() > 0 for g in gradients.values())
