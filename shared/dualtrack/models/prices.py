"""What a call cost: the configured price, else LiteLLM's price list, else nothing."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from dualtrack.domain.limits import LARGEST
from dualtrack.domain.usage import Usage
from dualtrack.settings import ModelSettings

_MILLION: Final = Decimal(1_000_000)
_PLACES: Final = Decimal("0.000000001")
"""What the database keeps of a price, so that sums are the same everywhere."""


def usage_of(raw: Mapping[str, Any] | None, settings: ModelSettings) -> Usage:
    """Usage and price from OpenAI's `usage` object; all zero where the provider sent none."""
    raw = raw or {}
    tokens = Usage(
        input_tokens=_count(raw.get("prompt_tokens")),
        output_tokens=_count(raw.get("completion_tokens")),
        cached_tokens=_count((raw.get("prompt_tokens_details") or {}).get("cached_tokens")),
    )
    return Usage(tokens.input_tokens, tokens.output_tokens, tokens.cached_tokens, _price(tokens, raw, settings))


def _price(tokens: Usage, raw: Mapping[str, Any], settings: ModelSettings) -> Decimal:
    if settings.input_usd_per_million is not None or settings.output_usd_per_million is not None:
        read = tokens.input_tokens * (settings.input_usd_per_million or Decimal(0))
        written = tokens.output_tokens * (settings.output_usd_per_million or Decimal(0))
        return ((read + written) / _MILLION).quantize(_PLACES)
    return _listed_price(tokens, raw, settings.litellm_model)


def _listed_price(tokens: Usage, raw: Mapping[str, Any], model: str) -> Decimal:
    from dualtrack.models.litellm_client import litellm

    client = litellm()
    if model not in client.model_cost and model.split("/", 1)[-1] not in client.model_cost:
        return Decimal(0)
    usage = client.Usage(
        prompt_tokens=tokens.input_tokens,
        completion_tokens=tokens.output_tokens,
        total_tokens=tokens.total_tokens,
        prompt_tokens_details=raw.get("prompt_tokens_details"),
        cache_creation_input_tokens=_count(raw.get("cache_creation_input_tokens")),
        cache_read_input_tokens=_count(raw.get("cache_read_input_tokens")),
    )
    read, written = client.cost_per_token(model=model, usage_object=usage)
    return (Decimal(str(read)) + Decimal(str(written))).quantize(_PLACES)


def _count(value: object) -> int:
    """What a provider says, from nothing to what uses up every limit: whatever it says must fit into a column."""
    return min(value, LARGEST["tokens"]) if isinstance(value, int) and value > 0 else 0
