"""What model calls cost."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and price of one or more model calls; sums with `+`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input tokens, those the provider took from its prefix cache."""
    cost_usd: Decimal = Decimal(0)

    @property
    def total_tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __bool__(self) -> bool:
        """Whether anything was used."""
        return bool(self.total_tokens or self.cost_usd)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cost_usd + other.cost_usd,
        )
