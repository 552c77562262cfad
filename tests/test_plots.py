"""Pictures say what a reader would ask."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from eqfuse import plots

PICTURES = True


@pytest.fixture
def figures(monkeypatch):
    """Return a list of the figures that are drawn, instead of saving them."""
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, target: drawn.append(figure))
    return drawn


@pytest.mark.parametrize(("mean", "said"), [(300.0, False), (514.0, True)])
def test_dynamics_say_why_the_temperature_is_another(mean, said, tmp_path, figures):
    rows = ["time_fs,potential_ev,kinetic_ev,temperature_k,conserved_ev"]
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


def pairs_of(numbers, forces):
    """Return labels of a frame, as they are and as predicted."""
    others = {"energy": None, "stress": None, "num_atoms": len(numbers)}
    frame = SimpleNamespace(numbers=np.array(numbers), forces=forces, **others)
    return [(frame, frame)]


@pytest.mark.parametrize(
    ("numbers", "names"),
    [
        ([8, 1, 1], ["H", "O"]),
        ([8, 8, 8], []),
        ([6, 6, 1, 1, 3, 3, 4, 4, 5, 5, 7, 7, 8, 8, 9], ["H", "Li", "Be", "B", "N", "O", "C"]),
    ],
)
def test_parity_colours_forces_by_element(numbers, names, figures):
    forces = np.arange(3.0 * len(numbers)).reshape(-1, 3)
    forces[0, 0] = np.nan  # unknown, and left out with its element
    plots.parity(pairs_of(numbers, forces), None)
    [axes] = figures[0].axes
    legend = axes.get_legend()
    shown = [] if legend is None else [text.get_text() for text in legend.get_texts()]
    assert shown == [*names, *(["others"] if len(numbers) > 7 else [])]
    points = axes.collections[-1]
    given = points.get_offsets()[:, 0].astype(int)
    of_point, faces = np.repeat(numbers, 3)[given], points.get_facecolors()
    if not names:
        assert len(faces) == 1
    else:
        colours = {z: {tuple(c) for c in faces[of_point == z]} for z in set(numbers)}
        assert all(len(own) == 1 for own in colours.values())
        assert len(set.union(*colours.values())) == len(set(numbers))


def test_energies_that_are_not_finite_are_gaps_of_a_path(figures):
    energies = np.array([np.inf, 2.0, np.nan, 1.0, 0.0])
    walk = {"distances": np.arange(5.0), "energies": energies, "forces": energies}
    plots.walks([SimpleNamespace(path=SimpleNamespace(name="pair"), **walk)], None)
    axes = figures[0].axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), energies)
    assert axes.get_ylim()[1] < 10


def test_a_spread_within_a_decade_has_labels_that_do_not_overlap(figures):
    plots.spread(np.geomspace(3e-3, 6e-2, 30), np.geomspace(2e-3, 6e-2, 30), None)
    [axes] = figures[0].axes
    figures[0].draw_without_rendering()
    boxes = [
        text.get_window_extent()
        for text in axes.get_xticklabels(which="both")
        if text.get_text() and text.get_visible()
    ]
    boxes.sort(key=lambda box: box.x0)
    assert len(boxes) > 1
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_titles_of_pictures_are_no_formulas(tmp_path):
    file = tmp_path / "a.png"
    plots.parity(pairs_of([1], np.zeros((1, 3))), file, r"a$\frac{$")  # no error of mathtext
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "epoch,val_loss\n", "epoch,val_loss\n1\n"])
def test_pictures_of_metrics_that_were_cut_off(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match="no whole line in"):
        plots.learning_curves(tmp_path / "metrics.csv", tmp_path / "learning.png")
