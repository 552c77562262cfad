"""Imports run one way: ops <- models <- training <- train.py, data <- training."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "eqfuse"

ALLOWED = {
    "ops": {"ops"},
    "graph": {"ops"},
    "models": {"ops", "graph", "models"},
    "data": {"ops", "graph", "data"},
    "training": {"ops", "graph", "models", "data", "pictures", "training"},
    "pictures": set(),
    "evaluation": {"data", "models", "training"},
    "evaluate": {"ops", "data", "training", "pictures", "evaluation"},
    "convert": {"ops", "graph", "data", "models", "training", "convert"},
    "calculator": {"graph", "ops", "data", "models", "training"},
}
# The files that talk to Triton; each imports it when it is needed, not when it is imported.
LAUNCHERS = {"eqfuse/ops/_triton"}


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


def part_of(name: str) -> str | None:
    """The part of the package that a module belongs to: ops, models, ...; None if not ours."""
    words = name.split(".")
    return words[1] if words[0] == "eqfuse" and len(words) > 1 else None


def violations(source: str, module: str) -> list[str]:
    """Imports that the rule forbids."""
    allowed = ALLOWED.get(part_of(module))
    found = []
    for name in imports_of(source, module):
        part = part_of(name)
        if allowed is not None and part in ALLOWED and part not in allowed:
            found.append(f"{module} imports {name}")
        if name == "train" or name.startswith(("benchmarks", "tests")):
            found.append(f"{module} imports {name}")
    return found


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(ROOT).with_suffix("").parts), path)
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: str(value))
def test_imports_run_one_way(module, path):
    assert violations(path.read_text(encoding="utf-8"), module) == []


def test_every_part_has_a_rule():
    parts = {part_of(module) for module, _ in modules()}
    assert parts - {"__init__"} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eqfuse.ops._x", "from eqfuse import models"),
        ("eqfuse.ops._x", "def f():\n    import eqfuse.graph"),
        ("eqfuse.models.x", "from ..training import loop"),
        ("eqfuse.data.x", "from eqfuse.models import build"),
        ("eqfuse.training.x", "import train"),
    ],
)
def test_the_rule_sees_a_violation(module, source):
    assert len(violations(source, module)) == 1


def test_only_launchers_import_triton():
    for module, path in modules():
        if any(str(path.relative_to(ROOT)).startswith(folder) for folder in LAUNCHERS):
            continue
        names = {name.split(".")[0] for name in imports_of(path.read_text("utf-8"), module)}
        assert not names & {"triton", "jax_triton", "torch"}, module


def test_launchers_import_triton_lazily():
    for folder in LAUNCHERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text("utf-8")).body:
                top = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
                assert "triton" not in top.replace("eqfuse.ops._triton", ""), f"{path}: {top}"
