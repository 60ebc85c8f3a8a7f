"""Actions that take nothing: a body with something in it is refused, so that what its sender meant by it is never silently left out."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Body, Depends
from pydantic import BaseModel, ConfigDict


class NoFields(BaseModel):
    """Nothing: no body at all, or an empty object."""

    model_config = ConfigDict(extra="forbid")


async def _no_fields(body: Annotated[NoFields | None, Body()] = None) -> None:
    """The framework refuses any field by name (400), and a body that is no JSON (415)."""


NO_FIELDS: Final = Depends(_no_fields)
"""For every POST without fields of its own."""
