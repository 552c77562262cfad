"""Imports run one way: ops <- fuse, ops <- models <- runs <- train <- inference, data <- train.

Inside of ops: ir <- backends <- primitives <- transforms <- the public ops.
"""

import ast
import graphlib
import itertools
from pathlib import Path

import pytest

from tests.child import ROOT, run_python

PACKAGE = ROOT / "eqfuse"

ALLOWED = {
    "ops": "_e3nn_jax ops _jax_compat",
    "fuse": "ops _jax_compat fuse",
    "graph": "ops",
    "models": "ops graph models",
    "data": "ops graph data",
    "plots": "runs",
    "runs": "ops data models runs",
    "train": "ops graph models data plots runs train",
    "inference": "graph ops data models runs train plots inference",
    "certify": "ops data runs train inference plots certify",
    "convert": "ops graph data models runs train inference certify convert",
    "md": "ops data models runs train inference plots md",
    "distill": "data models runs train inference certify convert md plots distill",
    "export": "ops data models runs train inference export",
    "cli": "export ops runs train inference convert md certify distill",
    "__main__": "cli",
    "jax_md": "ops data inference",
    "torch_sim": "data inference",
    "_startup": "_jax_compat",
    "_jax_compat": "",
    "_e3nn_jax": "",
}
ALLOWED = {name: set(names.split()) for name, names in ALLOWED.items()}
# The layers of ops: what each may import of the others; modules that are not listed are public ops,
# which may import all. The backends do not import each other.
LAYERS = {
    "ir": {"ir"},
    "_host": set(),
    "_edges": set(),
    "backends": {"ir", "backends", "_host"},
    "_backend": {"backends"},
    "primitives": {"ir", "backends", "primitives", "_backend", "_edges"},
    "transforms": {"ir", "backends", "primitives", "transforms", "_backend", "_edges"},
    "_reference": {"ir"},
}
# The files that talk to Triton; each imports it when it is needed, not when it is imported.
LAUNCHERS = {f"eqfuse/ops/backends/triton/{name}.py" for name in ("compile", "runtime")}


def imports_of(source: str, module: str) -> list[str]:
    """Absolute names of what a module imports, at any depth of its code."""
    names = []
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            names += [".".join([*base, alias.name]) for alias in node.names]
    return names


def place(name: str, depth: int) -> str | None:
    """Return the part of the package that a module is in (1), or that of ops (2), or None."""
    words = name.split(".")
    is_there = len(words) > depth and words[:depth] == ["eqfuse", "ops"][:depth]
    return words[depth] if is_there else None


def violations(source: str, module: str) -> list[str]:
    """Return imports that the rules forbid."""
    found = []
    for name in imports_of(source, module):
        for depth, rules in ((1, ALLOWED), (2, LAYERS)):
            allowed, part = rules.get(place(module, depth)), place(name, depth)
            known = part in ALLOWED if depth == 1 else part is not None
            if allowed is not None and known and part not in allowed:
                found.append(f"{module} imports {name}")
        if name == "train" or name.startswith(("benchmarks", "tests")):
            found.append(f"{module} imports {name}")
    return found


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    paths = sorted(package.rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def graph() -> dict[str, set[str]]:
    """Return the modules of ops that each of them imports, at any depth of its code."""
    paths = {m: p for m, p in modules(PACKAGE / "ops").items() if p.name != "__init__.py"}
    found = {}
    for module, path in paths.items():
        names = imports_of(path.read_text(encoding="utf-8"), module)
        names += [name.rpartition(".")[0] for name in names]
        found[module] = (set(names) & set(paths)) - {module}
    return found


def test_imports_run_one_way():
    found = (
        violations(path.read_text(encoding="utf-8"), module) for module, path in modules().items()
    )
    assert [*itertools.chain(*found)] == []


def test_every_layer_is_there():
    assert set(LAYERS) <= {p.stem for p in (PACKAGE / "ops").iterdir()}


def test_there_is_no_circle():
    graphlib.TopologicalSorter(graph()).prepare()
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_the_ir_is_pure_python():
    """It imports neither JAX nor a compiler; of e3nn_jax only names that are data."""
    for path in (PACKAGE / "ops" / "ir").glob("*.py"):
        names = {name.split(".")[0] for name in imports_of(path.read_text("utf-8"), "x")}
        assert not names & {"jax", "jaxlib", "flax", "triton", "llvmlite"}, path


def test_every_part_has_a_rule():
    assert {place(module, 1) for module in modules()} - {"__init__"} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eqfuse.ops._x", "from eqfuse import models"),
        ("eqfuse.ops._x", "def f():\n    import eqfuse.graph"),
        ("eqfuse.models.x", "from ..train import loop"),
        ("eqfuse.data.x", "from eqfuse.models import build"),
        ("eqfuse.train.x", "import train"),
        ("eqfuse.inference.x", "from eqfuse.md import run"),
        ("eqfuse.ops.ir.x", "from eqfuse.ops import backends"),
        ("eqfuse.ops.ir.x", "from eqfuse.ops.backends.triton import form"),
        ("eqfuse.ops.backends.triton.x", "from eqfuse.ops.primitives import layer"),
        ("eqfuse.ops.backends.xla.x", "from eqfuse.ops import _backend"),
        ("eqfuse.ops.primitives.x", "def f():\n    from eqfuse.ops import _tensor_product"),
    ],
)
def test_the_rule_sees_a_violation(module, source):
    assert len(violations(source, module)) == 1


def test_one_module_uses_what_is_private_in_jax():
    using = [path.name for path in modules().values() if "jax._src" in path.read_text("utf-8")]
    assert using == ["_jax_compat.py"]


def test_ops_import_nothing_that_only_training_needs():
    heavy = ("ase", "matplotlib", "optax", "safetensors", "vesin")
    code = f"import sys, eqfuse.ops; print([n for n in {heavy} if n in sys.modules])"
    assert run_python("-c", code).stdout == "[]\n"


def test_only_launchers_import_triton():
    for module, path in modules().items():
        if str(path.relative_to(ROOT)) in LAUNCHERS:
            continue
        # one runs in the environment of another program, the other is a model of a torch program
        if module in ("eqfuse.convert.original", "eqfuse.torch_sim"):
            continue
        names = {name.split(".")[0] for name in imports_of(path.read_text("utf-8"), module)}
        assert not names & {"triton", "jax_triton", "torch"}, module


def test_launchers_import_triton_lazily():
    for path in LAUNCHERS:
        for node in ast.parse((ROOT / path).read_text("utf-8")).body:
            top = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            assert "triton" not in top.replace("eqfuse.ops.backends.triton", ""), f"{path}: {top}"
