from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.testing.sandbox import sandbox_workspace

LIMITS = SandboxLimits(memory_bytes=128 * MIB, processes=32)

SpecOf = Callable[..., LaunchSpec]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A host directory whose parents any user may enter."""
    with sandbox_workspace() as path:
        path.chmod(0o711)
        yield path


@pytest.fixture
def spec_of(folder: Path) -> SpecOf:
    """Makes specs, each with a new workspace; keyword arguments are those of `LaunchSpec`."""

    def spec_of(**others: object) -> LaunchSpec:
        workspace = folder / f"workspace-{len(list(folder.iterdir()))}"
        workspace.mkdir(mode=0o700)
        return LaunchSpec(workspace, **{"limits": LIMITS, **others})  # type: ignore[arg-type]

    return spec_of
