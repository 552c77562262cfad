"""Pictures say what a reader would ask."""

import numpy as np
import pytest

from eqfuse import plots

PICTURES = True


@pytest.mark.parametrize(("mean", "said"), [(300.0, False), (514.0, True)])
def test_dynamics_say_why_the_temperature_is_another(mean, said, tmp_path, monkeypatch):
    figures, rows = [], ["time_fs,potential_ev,kinetic_ev,temperature_k,conserved_ev"]
    monkeypatch.setattr(plots, "_save", lambda figure, target: figures.append(figure))
    rows += [f"{k},-1,1,{t},0" for k, t in enumerate(np.linspace(300, mean, 8).tolist())]
    (tmp_path / "thermo.csv").write_text("\n".join([*rows, f"8,-1,1,{mean},0\n"]))
    (tmp_path / "rdf.csv").write_text("r_a,g\n1,0\n2,1\n")
    plots.dynamics(tmp_path / "thermo.csv", tmp_path / "rdf.csv", tmp_path / "thermo.png")
    [figure] = figures
    energy, temperature, _, pairs = figure.axes
    assert energy.get_subplotspec().rowspan.start == 0
    assert pairs.get_subplotspec().rowspan.start == 1
    assert "of the second half" in temperature.get_title()
    text = figure.get_supxlabel()
    assert ("where 300 K were given" in text) == said
