"""Configuration of Sphinx: `sphinx-build -W docs docs/_build`."""

project = "eqfuse"
author = "the authors of eqfuse"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True  # fields of named tuples would be described twice
# links from pages to files of the repository, which are read where it is browsed
suppress_warnings = ["myst.xref_missing"]


def _skip_functions_of_others(app, what, name, obj, skip, options):
    """Skip default values, such as functions of JAX, whose docstrings have labels of its pages."""
    return True if getattr(obj, "__module__", "").startswith("jax") else None


def setup(app):
    app.connect("autodoc-skip-member", _skip_functions_of_others)
