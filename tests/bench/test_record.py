"""The file of results: statistics, and JSON that is never half written."""

import json

import numpy as np
import pytest

from eqfuse.bench import record


def test_spread_leaves_out_the_warm_up():
    spread = record.Spread.of([100.0, 1.0, 2.0, 3.0], warm_up=1)
    assert spread == record.Spread(median=2.0, low=1.5, high=2.5, number=3, warm_up=1)


def test_spread_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="2 measurements, 2 of them warm-up"):
        record.Spread.of([1.0, 2.0], warm_up=2)


def test_a_value_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "numbers.json"
    record.write_json(file, {"ms": record.Spread.of([1.0, 2.0]), "shares": np.ones(2)})
    content = json.loads(file.read_text())
    assert content["ms"]["median"] == 1.5
    assert content["shares"] == [1.0, 1.0]
    with pytest.raises(TypeError, match="object cannot be written"):
        record.write_json(file, [object()])
    assert json.loads(file.read_text()) == content
    assert list(tmp_path.iterdir()) == [file]
