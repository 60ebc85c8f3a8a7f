"""Which models and tracks there are: from settings, else from provider keys in the environment, else the local model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dualtrack.domain.errors import InvalidRequest, UnknownModel
from dualtrack.models.port import ModelInfo
from dualtrack.settings import LocalModelSettings, ModelSettings, ModelsSettings

LOCAL: Final = "local"
FAST: Final = "fast"
DEEP: Final = "deep"


class Provider(NamedTuple):
    """A provider that is used when its key is in the environment, with its current models for the two tracks."""

    key_env: str
    base_env: str | None
    """Variable with another address of the same API, as the provider's own SDK reads it."""
    prefix: str
    """LiteLLM's provider."""
    fast: str
    deep: str
    context_tokens: int


PROVIDERS: Final = (
    Provider("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "anthropic", "claude-haiku-5-5", "claude-sonnet-5-5", 200_000),
    Provider("OPENAI_API_KEY", "OPENAI_BASE_URL", "openai", "gpt-6-luna", "gpt-6.1-sol", 270_000),
    Provider("GEMINI_API_KEY", None, "gemini", "gemini-3.5-flash-lite", "gemini-3.8-flash", 1_000_000),
    Provider("MISTRAL_API_KEY", None, "mistral", "mistral-small-latest", "mistral-large-latest", 128_000),
)
"""In order of preference for the tracks. The names are checked against LiteLLM's model list by a test."""

_PROVIDER_OUTPUT_TOKENS: Final = 16_384
"""Room for the hidden reasoning that providers count as output."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model that can be called."""

    name: str
    settings: ModelSettings
    local: bool = False
    """Served by this process's own llama.cpp server, whose address is known once it runs."""


class Catalog:
    """Names to models."""

    def __init__(self, targets: Mapping[str, Target], tracks: Mapping[str, Sequence[str]]) -> None:
        self._targets = dict(targets)
        self._tracks = {name: tuple(models) for name, models in tracks.items()}

    @property
    def uses_local(self) -> bool:
        """Whether some track can reach the local model, so that its weights are worth fetching at start."""
        return any(self._targets[name].local for models in self._tracks.values() for name in models)

    def models(self) -> list[ModelInfo]:
        """All tracks, then all models."""
        tracks = [self._info(name, models, track=True) for name, models in self._tracks.items()]
        return tracks + [self._info(name, (name,), track=False) for name in self._targets]

    def _info(self, name: str, targets: tuple[str, ...], *, track: bool) -> ModelInfo:
        return ModelInfo(id=name, track=track, targets=targets, context_tokens=self._targets[targets[0]].settings.context_tokens)

    def targets(self, name: str) -> tuple[Target, ...]:
        """What a track or model name stands for, in order of preference; a track wins over a model of the same name.

        Raises:
            UnknownModel: nothing has that name.
        """
        if name in self._tracks:
            return tuple(self._targets[model] for model in self._tracks[name])
        if name in self._targets:
            return (self._targets[name],)
        known = ", ".join([*self._tracks, *self._targets])
        raise UnknownModel(f"There is no model {name[:100]!r}. Models here: {known}.", param="model")


def build_catalog(settings: ModelsSettings, environment: Mapping[str, str]) -> Catalog:
    """The catalogue for these settings.

    With `models` or `tracks` configured, they alone count, and a track may name a configured model or `local`. Else each provider
    whose key is in the environment gives a fast and a deep model. Else there is the local model for both tracks.

    Raises:
        InvalidRequest: a track is missing or empty, or names a model that is not configured.
    """
    if settings.models or settings.tracks:
        return _configured(settings)
    targets: dict[str, Target] = {}
    tracks: dict[str, list[str]] = {FAST: [], DEEP: []}
    for provider in PROVIDERS:
        if environment.get(provider.key_env):
            for track, model in ((FAST, provider.fast), (DEEP, provider.deep)):
                targets[model] = _provider_target(provider, model, environment)
                tracks[track].append(model)
    if not targets:
        targets[LOCAL] = local_target(settings.local)
        tracks = {FAST: [LOCAL], DEEP: [LOCAL]}
    return Catalog(targets, tracks)


def local_target(settings: LocalModelSettings) -> Target:
    """The local model: acts by JSON, decides at temperature 0, answers within a quarter of its window."""
    model = ModelSettings(
        litellm_model=f"openai/{LOCAL}",
        action_format="json",
        context_tokens=settings.context_tokens,
        max_output_tokens=min(1536, settings.context_tokens // 4),
        temperature=0,
        timeout_s=600,
    )
    return Target(name=LOCAL, settings=model, local=True)


def _configured(settings: ModelsSettings) -> Catalog:
    targets = {name: Target(name=name, settings=model) for name, model in settings.models.items()}
    for track in (FAST, DEEP):
        if not settings.tracks.get(track):
            raise InvalidRequest(f"The track {track!r} has no model: list at least one under models.tracks.{track}.", param="models.tracks")
    for track, names in settings.tracks.items():
        for name in names:
            if name == LOCAL and name not in targets:
                targets[LOCAL] = local_target(settings.local)
            if name not in targets:
                known = ", ".join([*settings.models, LOCAL])
                raise InvalidRequest(f"The track {track!r} names {name!r}, which is not configured. Known: {known}.", param="models.tracks")
    return Catalog(targets, settings.tracks)


def _provider_target(provider: Provider, model: str, environment: Mapping[str, str]) -> Target:
    base = environment.get(provider.base_env) if provider.base_env else None
    settings = ModelSettings(
        litellm_model=f"{provider.prefix}/{model}",
        api_base=base or None,
        api_key_env=provider.key_env,
        context_tokens=provider.context_tokens,
        max_output_tokens=_PROVIDER_OUTPUT_TOKENS,
    )
    return Target(name=model, settings=settings)
