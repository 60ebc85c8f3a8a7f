"""What runs inside a sandbox needs nothing but Python 3.9 and its standard library."""

from __future__ import annotations

import ast
import sys
from importlib import resources

import pytest

SOURCES = {
    source.name: source.read_text() for source in resources.files("dualtrack.sandbox.inside").iterdir() if source.name.endswith(".py")
}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_it_is_python_3_9(name: str) -> None:
    tree = ast.parse(SOURCES[name], feature_version=(3, 9))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_it_imports_the_standard_library_and_its_own_modules_only(name: str) -> None:
    found = set()
    for node in ast.walk(ast.parse(SOURCES[name])):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1  # its own package, whatever that is called
    assert found <= sys.stdlib_module_names | {"__future__"}
