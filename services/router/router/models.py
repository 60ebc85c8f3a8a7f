"""Models and tracks on offer."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from dualtrack.domain.errors import UnknownModel
from dualtrack.models.port import ModelInfo
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.pagination import KNOWN_QUERY

router: Final = APIRouter(tags=["models"])


class ModelView(BaseModel):
    """A model in OpenAI's shape, and what is ours."""

    id: str = Field(description="Value for `model`.")
    object: Literal["model"] = "model"
    created: int = Field(0, description="Always 0: the platform does not know.")
    owned_by: str = "dualtrack"
    track: bool = Field(description="True for a track, which stands for an ordered list of models.")
    targets: list[str] = Field(description="The configured models behind it, in order of preference.")

    @classmethod
    def of(cls, info: ModelInfo) -> ModelView:
        """The view of a model."""
        return cls(id=info.id, track=info.track, targets=list(info.targets))


class ModelList(BaseModel):
    """All models; the list has one page."""

    object: Literal["list"] = "list"
    data: list[ModelView]


@router.get("/v1/models", summary="List models", responses=documented(), dependencies=[KNOWN_QUERY])
async def list_models(_: CallerDep, services: ServicesDep) -> ModelList:
    """All tracks, then all configured models."""
    return ModelList(data=[ModelView.of(info) for info in services.gateway.models()])


@router.get("/v1/models/{model_id:path}", summary="Show a model", responses=documented(404))
async def show_model(model_id: str, _: CallerDep, services: ServicesDep) -> ModelView:
    """One track or model."""
    for info in services.gateway.models():
        if info.id == model_id:
            return ModelView.of(info)
    raise UnknownModel(f"There is no model {model_id[:100]!r}: GET /v1/models lists them.", param="model")
