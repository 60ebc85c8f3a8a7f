from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from dualtrack.domain.errors import InvalidRequest, UnknownModel
from dualtrack.models.catalog import PROVIDERS, build_catalog
from dualtrack.settings import ModelSettings, ModelsSettings


def test_without_anything_both_tracks_are_the_local_model() -> None:
    catalog = build_catalog(ModelsSettings(), {})
    assert [(info.id, info.track, info.targets) for info in catalog.models()] == [
        ("fast", True, ("local",)),
        ("deep", True, ("local",)),
        ("local", False, ("local",)),
    ]
    assert catalog.uses_local
    (target,) = catalog.targets("deep")
    assert (target.local, target.settings.action_format, target.settings.temperature) == (True, "json", 0)


def test_provider_keys_give_both_tracks_in_order_of_preference() -> None:
    catalog = build_catalog(ModelsSettings(), {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "MISTRAL_API_KEY": "k"})
    assert [target.settings.litellm_model.split("/")[0] for target in catalog.targets("deep")] == ["openai", "mistral"]
    first = catalog.targets("fast")[0].settings
    assert (first.api_base, first.api_key_env) == ("http://127.0.0.1:9/v1", "OPENAI_API_KEY")
    assert not catalog.uses_local


def test_an_empty_key_is_no_key() -> None:
    assert build_catalog(ModelsSettings(), {"OPENAI_API_KEY": ""}).uses_local


def test_configured_models_alone_count() -> None:
    settings = ModelsSettings(
        models={"house": ModelSettings(litellm_model="openai/house", api_base="http://127.0.0.1:9/v1")},
        tracks={"fast": ["local"], "deep": ["house", "local"], "night": ["house"]},
    )
    catalog = build_catalog(settings, {"OPENAI_API_KEY": "k"})
    assert [info.id for info in catalog.models()] == ["fast", "deep", "night", "house", "local"]
    assert [target.name for target in catalog.targets("deep")] == ["house", "local"]


@pytest.mark.parametrize(
    ("tracks", "named"),
    [({"fast": ["house"]}, "deep"), ({"fast": ["house"], "deep": []}, "deep"), ({"fast": ["house"], "deep": ["x"]}, "'x'")],
)
def test_incomplete_tracks_are_refused_by_name(tracks: dict[str, list[str]], named: str) -> None:
    settings = ModelsSettings(models={"house": ModelSettings(litellm_model="openai/house")}, tracks=tracks)
    with pytest.raises(InvalidRequest, match=named):
        build_catalog(settings, {})


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UnknownModel, match="fast, deep, local") as unknown:
        build_catalog(ModelsSettings(), {}).targets("gpt-17")
    assert unknown.value.param == "model"


def test_the_providers_models_are_known_to_litellm_with_prices_and_tool_calls() -> None:
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    known = json.loads((Path(spec.origin).parent / "model_prices_and_context_window_backup.json").read_text())
    for provider in PROVIDERS:
        for model in (provider.fast, provider.deep):
            entry = known.get(f"{provider.prefix}/{model}") or known[model]
            assert entry["supports_function_calling"], model
            assert entry["input_cost_per_token"] > 0, model
            assert entry["max_input_tokens"] >= provider.context_tokens, model
