"""Reports of checks: what is written in them is text, and no markup."""

from types import SimpleNamespace

import numpy as np
import pytest

from eqfuse import plots
from eqfuse.certify.report import Report


def test_a_page_escapes_names(tmp_path):
    name = "a|b\n# *c* [d](e) <img src=x>`"
    subject = SimpleNamespace(name=name, versions=lambda: {"x": "1"})
    known = {"precision": "float64", "elements": [1], "walks": [], "energies": []}
    own = Report(SimpleNamespace(subject=subject, **known), SimpleNamespace(file=name))
    own.write(tmp_path / "a.html", None)
    page = (tmp_path / "a.html").read_text()
    assert r"<h1>Check of a|b\n# *c* [d](e) &lt;img src=x&gt;`</h1>" in page


@pytest.mark.usefixtures("pictures")
def test_titles_of_pictures_are_no_formulas(tmp_path):
    labels = SimpleNamespace(
        energy=1.0, num_atoms=1, numbers=np.ones(1, int), forces=np.zeros((1, 3)), stress=None
    )
    plots.parity([(labels, labels)], tmp_path / "a.png", r"a$\frac{$")  # no error of mathtext
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("text", ["", "epoch,val_loss\n", "epoch,val_loss\n1\n"])
def test_pictures_of_metrics_that_were_cut_off(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match="no whole line in"):
        plots.learning_curves(tmp_path / "metrics.csv", tmp_path / "learning.png")
