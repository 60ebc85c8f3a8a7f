"""What `jobs submit` sends: a job specification out of a file, options and arguments."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cli.local_file import fault, upload_name, utf8
from cli.outcome import UsageProblem

MAX_SPEC_BYTES: Final = 8 * 1024 * 1024
_PENDING: Final = "file_pending"
_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")
"""What the API takes as an idempotency key."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file on this machine and where the workspace shows it (None: under its own name)."""

    local: Path
    workspace: str | None

    @property
    def name(self) -> str:
        """The name it is uploaded under: its own, or the workspace's where the platform takes no such name.

        Raises:
            UsageProblem: neither can be had.
        """
        try:
            return upload_name(self.local)
        except UsageProblem as error:
            if self.workspace is None:
                raise UsageProblem(f"--file {error.message.rstrip('.')}: give another one as --file PATH:NAME.") from error
            return PurePosixPath(self.workspace).name


def parse_input(text: str) -> InputFile:
    """`PATH` or `PATH:workspace/path`; a file whose own name holds a colon is found as it is.

    Raises:
        UsageProblem: there is no such file, or it is none that can be uploaded.
    """
    whole = Path(text)
    wrong = fault(whole)
    if wrong is None:
        return InputFile(whole, None)
    local, colon, workspace = text.rpartition(":")
    # Whatever stands at the path as a whole is what was meant; only where nothing does, the colon parts it.
    if colon and local and workspace and not os.path.lexists(whole):
        wrong = fault(Path(local))
        if wrong is None:
            try:
                return InputFile(Path(local), utf8(workspace))
            except UnicodeError as error:
                raise UsageProblem(f"--file {text}: the path after the colon is no valid UTF-8.") from error
    raise UsageProblem(f"--file {text}: {wrong}")


def require_key(key: str | None) -> None:
    """Raise `UsageProblem` unless `key` is one that the API takes (None: there is none)."""
    if key is not None and not _KEY.fullmatch(key):
        raise UsageProblem("--idempotency-key must be 1 to 255 printable ASCII characters.")


def parse_metadata(pairs: Sequence[str]) -> dict[str, str]:
    """`k=v` pairs as a mapping.

    Raises:
        UsageProblem: a pair without `=` or without a key.
    """
    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise UsageProblem(f"--metadata {pair}: give it as key=value.")
        found[key] = value
    return found


def read_spec(path: Path) -> dict[str, Any]:
    """A job specification in JSON or YAML, as it stands in the file.

    Raises:
        UsageProblem: it can't be read or is no mapping.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"{path} can't be read: {error.strerror}.") from error
    if len(raw) > MAX_SPEC_BYTES:
        raise UsageProblem(f"{path} is larger than {MAX_SPEC_BYTES} bytes.")
    try:
        if path.suffix.lower() == ".json":
            found = json.loads(raw)
        else:
            import yaml

            try:
                found = yaml.safe_load(raw)
            except yaml.YAMLError as error:
                raise ValueError(" ".join(str(error).split())) from error
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{path} can't be understood: {error}") from error
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageProblem(f"{path} holds something that JSON has no word for, such as a date or .nan: put it in quotes.") from error
    if not isinstance(found, dict):
        raise UsageProblem(f"{path} must hold a job specification: a mapping with `instructions` and so on.")
    return found


def merge(spec: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`spec` with what was given on the command line: mappings are merged, lists of checks, outputs and inputs added, all else replaced.

    Raises:
        UsageProblem: `spec` has something else where a mapping or list belongs.
    """
    result = dict(spec)
    for name, value in given.items():
        there = result.get(name)
        if there is None or not isinstance(value, dict | list):
            result[name] = value
        elif isinstance(value, dict) and isinstance(there, dict):
            result[name] = {**there, **value}
        elif isinstance(value, list) and isinstance(there, list):
            result[name] = [*there, *value]
        else:
            raise UsageProblem(f"The specification's `{name}` must be a {'mapping' if isinstance(value, dict) else 'list'}.")
    return result


def check(body: Mapping[str, Any], files: Sequence[InputFile]) -> None:
    """Refuse a body that no server would take, before anything is uploaded.

    Raises:
        UsageProblem: naming the fields at fault, or two files at one path of the workspace.
    """
    from pydantic import ValidationError

    from cli.faults import plain
    from dualtrack.domain.job import JobSpec

    pending = [input_entry(_PENDING, file) for file in files]
    there = body.get("inputs") or []
    if not isinstance(there, list):
        raise UsageProblem("The specification's `inputs` must be a list.")
    try:
        spec = JobSpec.model_validate({**body, "inputs": [*there, *pending]})
    except ValidationError as error:
        raise UsageProblem(f"This is no valid job: {plain(error)}") from error
    # A file without a path gets its own name; that of a file uploaded before is known to the server only.
    own_names = [None] * len(there) + [file.name for file in files]
    _require_apart([path for item, name in zip(spec.inputs, own_names, strict=True) if (path := item.path or name) is not None])


def _require_apart(paths: Sequence[str]) -> None:
    for one, other in combinations(paths, 2):
        if one == other:
            raise UsageProblem(f"Two inputs share the workspace path {one!r}: give each its own, as --file PATH:WORKSPACE/PATH.")
        if one.startswith(f"{other}/") or other.startswith(f"{one}/"):
            raise UsageProblem(f"The workspace can't hold {one!r} and {other!r}, one inside the other: choose another path for one.")


def input_entry(file_id: str, file: InputFile) -> dict[str, str]:
    """An entry of a specification's `inputs`."""
    return {"file_id": file_id} | ({} if file.workspace is None else {"path": file.workspace})
