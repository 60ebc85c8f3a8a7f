"""Attribute names of OpenTelemetry's GenAI semantic conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/), and our own."""

from __future__ import annotations

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
ERROR_TYPE: Final = "error.type"

INVOKE_AGENT: Final = "invoke_agent"
EXECUTE_TOOL: Final = "execute_tool"
CHAT: Final = "chat"

JOB_ID: Final = "dualtrack.job.id"
JOB_STATUS: Final = "dualtrack.job.status"
PURPOSE: Final = "dualtrack.purpose"
"""Of a chat span that is no decision: `summary`."""
STEP: Final = "dualtrack.step"
ATTEMPT: Final = "dualtrack.attempt"
COST_USD: Final = "dualtrack.cost_usd"
TENANT_ID: Final = "dualtrack.tenant.id"
