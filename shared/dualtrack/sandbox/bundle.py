"""The in-sandbox agent as a directory that a rung shows read-only inside."""

from __future__ import annotations

import compileall
import os
from importlib import resources
from pathlib import Path
from typing import Final

TARGET: Final = "/run/dualtrack/agent"
"""Where a rung shows it."""

PACKAGE: Final = "dualtrack_inside"
MAIN: Final = f"import sys\n\nfrom {PACKAGE}.main import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"


def agent_argv(python: str = "python3", target: str = TARGET) -> list[str]:
    """The command line of the agent inside: the same for every rung. Its stdin and stdout are the protocol, its stderr is for a failure."""
    return [python, "-I", "-B", target]


def write_agent(directory: Path) -> Path:
    """Write the agent to a new `directory`, readable for everybody, and return it.

    It holds the sources, and byte code for this process's Python: another version inside takes the sources.

    Raises:
        OSError: it can't be written.
    """
    package = directory / PACKAGE
    package.mkdir(parents=True)
    for source in resources.files("dualtrack.sandbox.inside").iterdir():
        if source.name.endswith(".py"):
            (package / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (directory / "__main__.py").write_text(MAIN, encoding="utf-8")
    compileall.compile_dir(directory, quiet=2, stripdir=str(directory), prependdir=TARGET)
    for root, directories, files in os.walk(directory):
        for name in directories:
            (Path(root) / name).chmod(0o755)
        for name in files:
            (Path(root) / name).chmod(0o644)
    directory.chmod(0o755)
    return directory
