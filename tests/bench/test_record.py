"""The record of a benchmark: parity before times, statistics, a file that is never half written."""

import json

import numpy as np
import pytest

from eqfuse.bench import record


def test_spread_leaves_out_the_warm_up():
    spread = record.Spread.of([100.0, 1.0, 2.0, 3.0], warm_up=1)
    assert spread == record.Spread(median=2.0, low=1.5, high=2.5, number=3, warm_up=1)
    assert spread.scaled(10) == record.Spread(20.0, 15.0, 25.0, 3, 1)


def test_spread_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="2 measurements, 2 of them warm-up"):
        record.Spread.of([1.0, 2.0], warm_up=2)


def test_parity_is_relative_to_each_array():
    expected = {"a": np.array([1.0, -100.0]), "b": np.array([1e-3])}
    found = {"a": np.array([1.001, -100.0]), "b": np.array([1e-3])}
    np.testing.assert_allclose(record.parity(expected, found, 1e-4), 1e-5, rtol=1e-6)
    found["b"] = np.array([2e-3])
    with pytest.raises(record.ParityError, match=r"differ by 1\.0e\+00, more than 1e-04"):
        record.parity(expected, found, 1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_parity_is_red_where_results_are_not_finite(bad):
    with pytest.raises(record.ParityError):
        record.parity([np.ones(2)], [np.array([1.0, bad])], 1e-4)
    with pytest.raises(record.ParityError):
        record.parity([np.array([1.0, bad])], [np.array([1.0, bad])], 1e-4)


def test_parity_is_red_where_shapes_differ():
    with pytest.raises(record.ParityError, match="not alike"):
        record.parity([np.ones(2)], [np.ones((2, 1))], 1e-4)


def test_the_file_is_whole_after_every_result(tmp_path):
    file = tmp_path / "numbers.json"
    kept = record.Record(file, "python -m benchmarks.x", commit="abc")
    kept.add({"case": "a", "ms": record.Spread.of([1.0, 2.0])})
    kept.add({"case": "b", "error": "results differ"})
    content = json.loads(file.read_text())
    assert content["command"] == "python -m benchmarks.x"
    assert content["environment"]["commit"] == "abc"
    assert {"date", "device", "processors", "python", "versions"} <= set(content["environment"])
    assert {"eqfuse", "jax", "e3nn-jax"} <= set(content["environment"]["versions"])
    assert content["results"][0]["ms"]["median"] == 1.5
    assert kept.failed == [{"case": "b", "error": "results differ"}]
    assert list(tmp_path.iterdir()) == [file]


def test_a_value_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "numbers.json"
    record.write_json(file, [1])
    with pytest.raises(TypeError, match="object cannot be written"):
        record.write_json(file, [object()])
    assert json.loads(file.read_text()) == [1]
    assert list(tmp_path.iterdir()) == [file]
