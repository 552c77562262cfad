"""Runs of MACE for mace-torch; `scripts/mace_load.py`, which needs it, is tried by hand."""

import json

import numpy as np
import pytest

from eqfuse.convert.command import main
from eqfuse.runs.checkpoint import read_checkpoint


def test_the_file_holds_the_network(run, tmp_path, capsys):
    path = tmp_path / "small.npz"
    assert main(["export", str(run("small")), str(path)]) == 0
    assert "scripts/mace_load.py" in capsys.readouterr().out
    params, metadata, _ = read_checkpoint(run("small"), ("best",))
    model = params["params"]["model"]
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(
            arrays["layer_1/contraction"], model["layer_1"]["contraction"]
        )
        name = "w[0,0] 4x0e,4x0e"
        found = arrays[f"layer_0/linear_up/{name}"]
        np.testing.assert_array_equal(found, model["layer_0"]["linear_up"][name])
        fields = json.loads(str(arrays["fields"]))
        assert fields["elements"] == [1, 6, 8]
        assert fields["scale"] == metadata["potential"]["scale"][0]
        # one path of one factor to a scalar, three components of it elsewhere: l = 1, 2, 3
        np.testing.assert_array_equal(arrays["basis/0/0e/1"], np.eye(16)[:, :1])
        # shift goes with the energies of the elements
        isolated = [metadata["reference_energies"][str(z)] for z in (1, 6, 8)]
        shift = metadata["potential"]["shift"][0]
        np.testing.assert_allclose(arrays["references"], np.array(isolated) + shift, rtol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_fields": {"parity": True}}, "model.parity=true"),
        ({"model_fields": {"layers": 1}}, "model.layers=1"),
        ({"model_fields": {"radial_layers": 0}}, "model.radial_layers=0"),
        ({"model_fields": {"correlation": 1, "hidden_lmax": 1}}, "mixes"),
        ({"potential": {"binds_within": 4.5}}, "isolated atoms"),
        ({"model_fields": {"nonlinear": True}}, "model.nonlinear, which is not exported"),
        ({"model_fields": {"distance_transform": "soft"}}, "a soft transform"),
        ({"model": "nequip"}, "is not a potential of model=mace"),
    ],
)
def test_export_to_mace_refuses_other_networks_by_name(
    change, message, run, tmp_path, capsys, monkeypatch
):
    from eqfuse.convert import export

    def changed(*args):
        params, metadata, state = read_checkpoint(*args)
        for name, value in change.items():
            new = {**metadata[name], **value} if isinstance(value, dict) else value
            metadata = {**metadata, name: new}
        return params, metadata, state

    monkeypatch.setattr(export, "read_checkpoint", changed)
    assert main(["export", str(run("small")), str(tmp_path / "small.npz")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "small.npz").exists()


def test_nothing_is_overwritten(run, tmp_path, capsys):
    path = tmp_path / "a.npz"
    path.write_text("mine")
    assert main(["export", str(run("small")), str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main(["export", str(run("small")), str(tmp_path / "a.pt")]) == 2
    assert "must end in .npz" in capsys.readouterr().err
