"""The OpenAPI document is true: whatever can be made from it gets one of the answers it declares, and never a 500."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import content_type_conformance, response_headers_conformance, response_schema_conformance
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode

from dualtrack.db import steps
from dualtrack.domain.usage import Usage

from .conftest import Api

BOUNDED = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def real(api: Api) -> dict[str, str]:
    """Ids of things that exist, of an ended job so that streams of it end, and their key."""
    _, key = api.new_key()
    with api.client(key) as client:
        job_id = client.post("/v1/jobs", json={"instructions": "x", "metadata": {"a": "b"}}).json()["id"]
        client.post(f"/v1/jobs/{job_id}/cancel")
        file_id = client.post("/v1/files", files={"file": ("a.txt", b"x")}).json()["id"]
        schedule = client.post("/v1/schedules", json={"cron": "0 9 * * *", "job": {"instructions": "x"}}).json()
        webhook_id = client.post("/v1/webhooks", json={"url": "https://example.com/"}).json()["id"]
    with api.database.transaction() as tx:
        steps.add(tx, job_id=job_id, number=1, thought="", reflection="", note="", model="m", usage=Usage(), latency_s=0)
    return {"job_id": job_id, "file_id": file_id, "model_id": "fast", "webhook_id": webhook_id, "schedule_id": schedule["id"], "key": key}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_declared_and_none_is_a_500(api: Api, real: dict[str, str], mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {real['key']}"}
    called: set[str] = set()

    def check(case: schemathesis.Case[Any]) -> None:
        _check(case, case.call(headers=headers, timeout=60))
        known = {name: real[name] for name in case.path_parameters if name in real}
        if known:
            case.path_parameters = {**case.path_parameters, **known}
            _check(case, case.call(headers=headers, timeout=60))
        called.add(case.operation.label)

    described = schemathesis.openapi.from_url(api.url + "/openapi.json")
    operations = [found.ok() for found in described.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) == len(list(described.get_all_operations()))
    for operation in operations:
        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong with an operation that takes nothing
            BOUNDED(given(case=operation.as_strategy(generation_mode=mode))(check))()
    taking = {operation.label for operation in operations if "{" in operation.path or operation.body or operation.query}
    assert taking <= called


def _check(case: schemathesis.Case[Any], response: Response) -> None:
    assert response.status_code < 500, (case.as_curl_command(), response.text)
    declared = case.operation.definition.raw["responses"]
    # Broken percent-encoding or a slash in an id leads to another address, or to none.
    assert str(response.status_code) in declared or response.status_code in {404, 405}, (case.as_curl_command(), response.text)
    case.validate_response(response, checks=[content_type_conformance, response_schema_conformance, response_headers_conformance])


def test_the_document_describes_keys_errors_and_everything_there_is(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert set(document["paths"]) == {
        "/", "/healthz", "/readyz", "/metrics", "/v1/chat/completions", "/v1/models", "/v1/models/{model_id}", "/v1/jobs",
        "/v1/jobs/{job_id}", "/v1/jobs/{job_id}/cancel", "/v1/jobs/{job_id}/events", "/v1/jobs/{job_id}/steps",
        "/v1/jobs/{job_id}/calls/{call_id}/observation", "/v1/jobs/{job_id}/artifacts", "/v1/jobs/{job_id}/artifacts/{artifact_id}/content",
        "/v1/artifacts/{artifact_id}", "/v1/artifacts/{artifact_id}/content", "/v1/files", "/v1/files/{file_id}",
        "/v1/files/{file_id}/content", "/v1/jobs/{job_id}/pause", "/v1/jobs/{job_id}/resume",
        "/v1/jobs/{job_id}/messages", "/v1/jobs/{job_id}/fork", "/v1/jobs/{job_id}/retry", "/v1/jobs/{job_id}/extend", "/v1/usage",
        "/v1/schedules", "/v1/schedules/{schedule_id}", "/v1/schedules/{schedule_id}/run", "/v1/schedules/{schedule_id}/runs",
        "/v1/webhooks", "/v1/webhooks/{webhook_id}", "/v1/webhooks/{webhook_id}/rotate",
        "/v1/webhooks/{webhook_id}/deliveries", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
        "/v1/approvals", "/v1/approvals/{approval_id}", "/v1/jobs/{job_id}/approvals",
        *(f"/v1/approvals/{{approval_id}}/{decision}" for decision in ("approve", "deny", "answer", "resolve")),
    }  # fmt: skip
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            assert operation["description"]
            assert ("security" in operation) == path.startswith("/v1/")
            assert "422" not in operation["responses"]
            if path.startswith("/v1/"):
                assert {"400", "401", "500", "503"} <= set(operation["responses"])
