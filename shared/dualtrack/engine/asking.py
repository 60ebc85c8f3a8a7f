"""The model calls of one attempt at a step: each in a span, none inside a transaction, and what they were charged added up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind

from dualtrack.db.engine import assert_no_transaction
from dualtrack.domain.errors import MalformedAction
from dualtrack.domain.usage import Usage
from dualtrack.models.port import Decision, DecisionRequest, ModelGateway, Summary, SummaryRequest
from dualtrack.telemetry import genai, tracing


class Asking:
    """Asks the model on behalf of one attempt.

    Attributes:
        spent: what was charged so far, for answers of no use too.
    """

    def __init__(self, gateway: ModelGateway, job_id: str) -> None:
        self._gateway = gateway
        self._job_id = job_id
        self.spent = Usage()

    def decide(self, request: DecisionRequest) -> Decision:
        """The gateway's decision. Raises what it raises."""
        with self._call(request.model) as span:
            decision = self._gateway.decide(request)
            self._charged(span, decision.model, decision.usage)
            return decision

    def summarise(self, request: SummaryRequest) -> Summary:
        """The gateway's summary. Raises what it raises."""
        with self._call(request.context.model) as span:
            span.set_attribute(genai.PURPOSE, "summary")
            summary = self._gateway.summarise(request)
            self._charged(span, summary.model, summary.usage)
            return summary

    @contextmanager
    def _call(self, model: str) -> Iterator[Span]:
        assert_no_transaction()
        attributes = {genai.OPERATION: genai.CHAT, genai.REQUEST_MODEL: model, genai.CONVERSATION_ID: self._job_id}
        with tracing.span(f"{genai.CHAT} {model}", kind=SpanKind.CLIENT, attributes=attributes) as span:
            try:
                yield span
            except MalformedAction as error:
                self._charged(span, error.model, error.usage)
                raise

    def _charged(self, span: Span, model: str, usage: Usage) -> None:
        self.spent += usage
        span.set_attributes(
            {
                genai.RESPONSE_MODEL: model,
                genai.INPUT_TOKENS: usage.input_tokens,
                genai.OUTPUT_TOKENS: usage.output_tokens,
                genai.COST_USD: float(usage.cost_usd),
            }
        )
