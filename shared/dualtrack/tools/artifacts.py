"""`read_artifact`, `save_artifact`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualtrack.domain.errors import InvalidPath, NotFound, ObjectMissing
from dualtrack.domain.paths import file_name, workspace_path
from dualtrack.domain.tool import SAVE_TOOL, Effect, Observation, ToolSpec
from dualtrack.sandbox.outcome import size_text
from dualtrack.tools.port import ArtifactRequest, ToolContext, ToolResult
from dualtrack.tools.rendering import refusal
from dualtrack.tools.schema import PATH, schema
from dualtrack.tools.workspace import ask, page_chars

_CALL_ID: Final = {"type": "string", "minLength": 1, "maxLength": 64}


class ReadArtifact:
    """Pages of an earlier observation that was too long for the context."""

    spec = ToolSpec(
        "read_artifact",
        "Read on in the long result of an earlier call, by its call_id, from character `offset`.",
        schema({"call_id": _CALL_ID}, {"offset": {"type": "integer", "minimum": 0}, "limit": {"type": "integer", "minimum": 1}}),
        Effect.PURE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`."""
        call_id = arguments["call_id"]
        try:
            text = context.read_observation(call_id)
        except NotFound:
            return refusal(f"There is no result of a call {call_id!r} in this job: copy the call_id from where the result was cut.")
        except ObjectMissing:
            return refusal(f"The long result of call {call_id!r} is missing from the object store: make the call again.")
        offset = arguments.get("offset", 0)
        most = page_chars(context)
        page = text[offset : offset + min(arguments.get("limit", most), most)]
        if not page:
            return refusal(f"The result has only {len(text)} characters.") if text else ToolResult(Observation(ok=True, text="(empty)"))
        end = offset + len(page)
        more = f"; continue with offset={end}" if end < len(text) else ""
        return ToolResult(Observation(ok=True, text=f"{page}\n[characters {offset}-{end} of {len(text)}{more}]"))


class SaveArtifact:
    """Keeps a workspace file as a result of the job."""

    spec = ToolSpec(
        SAVE_TOOL,
        "Save a workspace file as a result for the user, who can then download it.",
        schema(
            {"path": PATH},
            {"name": {"type": "string", "minLength": 1, "maxLength": 255}, "description": {"type": "string", "maxLength": 1000}},
        ),
        Effect.PURE,
    )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`. The engine stores the file after the call."""
        try:
            path = workspace_path(arguments["path"])
            name = file_name(arguments.get("name") or path.rsplit("/", 1)[-1], param="name")
        except InvalidPath as error:
            return refusal(error.message)
        found = ask(context, "size", path=path)
        if not found.observation.ok:
            return found
        size = int(found.observation.text)
        if size > context.limits.artifact_bytes:
            return refusal(f"{path} has {size_text(size)}; an artifact may have {size_text(context.limits.artifact_bytes)}.")
        request = ArtifactRequest(path, name, arguments.get("description", ""))
        return ToolResult(Observation(ok=True, text=f"Saved {path} ({size_text(size)}) as {name}."), (request,), found.details)
