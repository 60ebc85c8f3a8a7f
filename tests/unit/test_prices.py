"""What a provider says of tokens is counted, within what a column holds."""

from __future__ import annotations

import pytest

from dualtrack.domain.limits import LARGEST
from dualtrack.domain.usage import Usage
from dualtrack.models.prices import usage_of
from dualtrack.settings import ModelSettings

_COLUMN: int = 2**31 - 1
"""The context's tokens, in and out together, are a 32-bit integer."""


@pytest.mark.parametrize("said", [10**12, 2**63])
def test_an_absurd_count_uses_up_every_limit_and_fits_its_column(said: int) -> None:
    settings = ModelSettings(litellm_model="openai/none", input_usd_per_million=1)
    usage = usage_of({"prompt_tokens": said, "completion_tokens": said}, settings)
    assert usage.input_tokens == usage.output_tokens == LARGEST["tokens"]
    assert usage.total_tokens <= _COLUMN


@pytest.mark.parametrize("said", [None, -1, "12", 1.5, {}])
def test_what_is_no_count_counts_nothing(said: object) -> None:
    settings = ModelSettings(litellm_model="openai/none", input_usd_per_million=1)
    assert usage_of({"prompt_tokens": said}, settings) == Usage()
