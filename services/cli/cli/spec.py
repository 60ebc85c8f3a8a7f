"""What `jobs submit` sends: a job specification out of a file, options and arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli.outcome import UsageProblem

MAX_SPEC_BYTES: Final = 8 * 1024 * 1024
_PENDING: Final = "file_pending"


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file on this machine and where the workspace shows it (None: under its own name)."""

    local: Path
    workspace: str | None


def parse_input(text: str) -> InputFile:
    """`PATH` or `PATH:workspace/path`; a file whose own name holds a colon is found as it is.

    Raises:
        UsageProblem: no such file.
    """
    whole = Path(text)
    if whole.is_file():
        return InputFile(whole, None)
    local, colon, workspace = text.rpartition(":")
    if colon and workspace and Path(local).is_file():
        return InputFile(Path(local), workspace)
    raise UsageProblem(f"--file {text}: there is no such file.")


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
    if not isinstance(found, dict):
        raise UsageProblem(f"{path} must hold a job specification: a mapping with `instructions` and so on.")
    return found


def merge(spec: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`spec` with what was given on the command line: mappings are merged, lists of checks added, all else replaced.

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
        UsageProblem: naming each field at fault.
    """
    from pydantic import ValidationError

    from dualtrack.domain.job import JobSpec

    pending = [input_entry(_PENDING, file) for file in files]
    there = body.get("inputs") or []
    if not isinstance(there, list):
        raise UsageProblem("The specification's `inputs` must be a list.")
    try:
        JobSpec.model_validate({**body, "inputs": [*there, *pending]})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'the specification'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        )
        raise UsageProblem(f"This is no valid job: {faults}") from error


def input_entry(file_id: str, file: InputFile) -> dict[str, str]:
    """An entry of a specification's `inputs`."""
    return {"file_id": file_id} | ({} if file.workspace is None else {"path": file.workspace})
