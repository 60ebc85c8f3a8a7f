"""What the pages tell people to set exists: the platform's own commands refuse every other `DUALTRACK_…` variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import JobLimits
from dualtrack.settings import ENV_PREFIX, OTHER_VARIABLES

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "docs" / "settings.md"  # written from the settings; another test fails when it is out of date
_AT_THE_TOP = ("README.md", "CHANGELOG.md", ".env.example", "Dockerfile", "Makefile", "docker-compose*.yml")
WRITTEN_BY_HAND = (*_AT_THE_TOP, "docs/**/*.md", "examples/*", "infra/**/*", "scripts/*")


def pages() -> Iterator[Path]:
    """All that is read or copied by people; not the page that lists the settings."""
    for pattern in WRITTEN_BY_HAND:
        yield from (path for path in ROOT.glob(pattern) if path.is_file() and path != SETTINGS and path.suffix != ".pyc")


@pytest.fixture(scope="module")
def known() -> frozenset[str]:
    return frozenset(re.findall(rf"^\| `({ENV_PREFIX}\w+)`", SETTINGS.read_text(encoding="utf-8"), re.MULTILINE)) | OTHER_VARIABLES


def unknown(text: str, known: frozenset[str]) -> list[str]:
    """Names that there are not; one that ends with `…` or `__` stands for all that begin with it, one that begins with `…` for its end.

    `limits.name` is the operator's limit as in the settings file, or a field of a job.
    """
    wrong = []
    for name, rest in re.findall(rf"\b({ENV_PREFIX}[A-Z0-9_]*)(…?)", text):
        begins = bool(rest) or name.endswith("_")
        if name not in known and not (begins and any(one.startswith(name) for one in known)):
            wrong.append(name)
    ends = re.findall(r"…(__[A-Z0-9_]+)", text)
    wrong += [f"…{end}" for end in ends if not any(name.endswith(end) for name in known)]
    for path in re.findall(r"`limits\.([a-z_]+(?:\.[a-z_]+)?)", text):
        name = f"{ENV_PREFIX}LIMITS__{path.upper().replace('.', '__')}"
        if path not in JobLimits.model_fields and not any(one == name or one.startswith(f"{name}__") for one in known):
            wrong.append(f"limits.{path}")
    return wrong


def test_every_variable_that_a_page_names_is_known(known: frozenset[str]) -> None:
    found = {str(path.relative_to(ROOT)): unknown(path.read_text(encoding="utf-8"), known) for path in pages()}
    assert len(found) > 40
    assert {path: names for path, names in found.items() if names} == {}


def test_a_variable_that_there_is_not_would_be_found(known: frozenset[str]) -> None:
    text = "DUALTRACK_URL=x DUALTRACK_LIMITS__NOPE=1 DUALTRACK_LIMITS__… DUALTRACK_NOPE__… DUALTRACK_API_KEY DUALTRACK_ROUTER__PORT"
    assert unknown(text, known) == ["DUALTRACK_URL", "DUALTRACK_LIMITS__NOPE", "DUALTRACK_NOPE__"]
    assert unknown("`…__LEASE_S` `…__LEASES` `limits.steps` `limits.sandbox.idle_s` `limits.idle_s`", known) == [
        "…__LEASES",
        "limits.idle_s",
    ]
