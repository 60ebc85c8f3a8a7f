"""What sandboxes can be made of: the templates that come with the platform, and the operator's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.templates import DATA_TEMPLATE, DEFAULT_TEMPLATE, SHELL_TEMPLATE
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, opened
from dualtrack.objects.trees import scan
from dualtrack.settings import TemplateSettings

_FILES: Final = Path(__file__).parent / "template_files"
_LAYOUT: Final = 1  # of a built template's directory; part of its digest
_FILES_ENTRIES: Final = 100_000
_FILES_BYTES: Final = 10 * 1024**3
_STANDARD: Final = (
    "collections",
    "csv",
    "datetime",
    "decimal",
    "functools",
    "itertools",
    "json",
    "math",
    "pathlib",
    "random",
    "re",
    "statistics",
    "string",
    "subprocess",
    "textwrap",
    "time",
    "typing",
    "urllib.parse",
)
"""Of the standard library: what small programs import first. Together some 30 ms that no cell pays again."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a template is made of."""

    name: str
    requirements: str = ""
    """Text of a requirements file; with hashes if `hashed`."""
    hashed: bool = False
    files: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()

    @property
    def built(self) -> bool:
        """Whether there is something to build: a directory that its sandboxes see."""
        return bool(self.requirements.strip()) or self.files is not None

    @property
    def unproved(self) -> bool:
        """Whether a sandbox has to be started to know that it works: it imports more than the standard library."""
        return not set(self.preload) <= set(_STANDARD)

    def in_image(self) -> Definition:
        """The same, where its packages and files come in an image: nothing is built."""
        return replace(self, requirements="", hashed=False, files=None)

    def digest(self, interpreter: str) -> str:
        """Names what is built for an interpreter: the same text and files, the same name. Reads all files.

        Raises:
            SandboxUnavailable: the directory of files can't be read.
        """
        content = {"layout": _LAYOUT, "interpreter": interpreter, "requirements": self.requirements, "hashed": self.hashed}
        if self.files is not None:
            content["files"] = _tree(self.name, self.files)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def definitions(own: Mapping[str, TemplateSettings]) -> dict[str, Definition]:
    """All by name; the operator's win over those of the same name that come with the platform.

    Raises:
        SandboxUnavailable: a requirements file can't be read.
    """
    found = {
        DEFAULT_TEMPLATE: Definition(DEFAULT_TEMPLATE, preload=_STANDARD),
        SHELL_TEMPLATE: Definition(SHELL_TEMPLATE),
        DATA_TEMPLATE: Definition(
            DATA_TEMPLATE,
            requirements=(_FILES / "python-data.txt").read_text(),
            hashed=True,
            # One thread: a preloaded interpreter is forked for each cell, and threads of a numeric library don't live through that.
            environment={"MPLBACKEND": "Agg", "MPLCONFIGDIR": "/tmp/matplotlib", "OPENBLAS_NUM_THREADS": "1"},  # noqa: S108 - inside
            preload=(*_STANDARD, "numpy", "pandas", "matplotlib.pyplot"),
        ),
    }
    return found | {name: _own(name, settings) for name, settings in own.items()}


def _own(name: str, settings: TemplateSettings) -> Definition:
    requirements = "\n".join(settings.packages)
    if settings.requirements is not None:
        try:
            requirements = settings.requirements.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SandboxUnavailable(f"The requirements of template {name} can't be read: {error}.") from error
    return Definition(
        name,
        requirements=requirements,
        hashed=settings.requirements is not None,
        files=settings.files,
        environment=settings.environment,
        preload=tuple(settings.preload),
    )


def _tree(name: str, directory: Path) -> list[tuple[str, str, str]]:
    """Path, kind and content of everything in a directory, in order."""
    listed = []
    try:
        with opened(directory, DIRECTORY_FLAGS, mend=False) as root:
            for path, found in sorted(scan(root, max_entries=_FILES_ENTRIES, max_bytes=_FILES_BYTES).found.items()):
                if found.target:
                    listed.append((path, "link", found.target))
                elif (directory / path).is_dir():
                    listed.append((path, "directory", ""))
                else:
                    with (directory / path).open("rb") as file:
                        listed.append((path, oct(found.status.st_mode & 0o111), hashlib.file_digest(file, "sha256").hexdigest()))
    except OSError as error:
        raise SandboxUnavailable(f"The files of template {name} can't be read: {error}.") from error
    return listed
