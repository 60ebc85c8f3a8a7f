"""Webhooks: a tenant's endpoints, what was delivered to them, and sending it again."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from dualtrack.db import deliveries, idempotency, webhooks
from dualtrack.domain.conflicts import LimitReached, WebhookDisabled
from dualtrack.domain.errors import NotFound
from dualtrack.domain.ids import Kind, is_id, new_id
from dualtrack.domain.webhook import DeliveryStatus, Webhook
from dualtrack.net import guard
from dualtrack.webhooks.signature import new_secret
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.idempotency import OnceDep, repeated
from router.no_fields import NO_FIELDS
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterIdQuery, LimitQuery, cursor, cut, filter_id, page_size
from router.text import require_clean
from router.views import ListView, listed
from router.webhook_views import DeliveryView, WebhookChange, WebhookRemoved, WebhookRotation, WebhookSpec, WebhookView

router: Final = APIRouter(tags=["webhooks"])

WebhookId = Annotated[str, Path(description="Id of a webhook, `wh_…`.")]
DeliveryId = Annotated[str, Path(description="Id of a delivery, `msg_…`: its header `webhook-id`.")]
_ON_REQUEST: Final = "Disabled on request."


@router.post(
    "/v1/webhooks",
    status_code=201,
    summary="Add a webhook",
    responses={
        **documented(404, 408, 409, 413, 415),
        **repeated(WebhookView),
        201: {"model": WebhookView, "description": "Added.", "headers": {"Location": {"schema": {"type": "string"}}}},
    },
)
def add(spec: WebhookSpec, caller: CallerDep, services: ServicesDep, response: Response, once: OnceDep) -> WebhookView:
    """An endpoint that is told of all the tenant's jobs.

    Its secret is shown in this answer only, and to whoever repeats the request under its `Idempotency-Key`.
    """
    require_clean(spec.model_dump())
    runtime = services.runtime
    if once.made is None:
        guard.check(spec.url, allow=runtime.allow)

    def create() -> str:
        if webhooks.count(tx, caller.tenant_id) >= runtime.limits.webhooks:
            raise LimitReached(
                f"There are {runtime.limits.webhooks} webhooks already, the most there may be (limits.webhooks): remove one."
            )
        webhook_id = new_id("wh")
        webhooks.add(
            tx,
            webhook_id=webhook_id,
            tenant_id=caller.tenant_id,
            url=spec.url,
            events=spec.events,
            description=spec.description,
            secret=runtime.sealer.seal(spec.secret or new_secret()),
        )
        return webhook_id

    with runtime.database.transaction() as tx:
        webhook_id, new = idempotency.once(tx, once.key, create)
        webhook = webhooks.get(tx, webhook_id, tenant_id=caller.tenant_id)
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/webhooks/{webhook.id}"
    return WebhookView.of(webhook, secret=runtime.sealer.open(webhook.secret))


@router.get("/v1/webhooks", summary="List webhooks", responses=documented(), dependencies=[KNOWN_QUERY])
def list_webhooks(
    caller: CallerDep,
    services: ServicesDep,
    job_id: Annotated[
        str | None, Query(max_length=64, description="The webhook that came with this job, instead of the tenant's own.")
    ] = None,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: AfterIdQuery = None,
) -> ListView[WebhookView]:
    """The tenant's own, newest first; with `job_id`, that job's."""
    size = page_size(limit, services.runtime.limits.page_size)
    before = cursor(after, "wh")
    of_job = filter_id(job_id, "job", "job_id")
    with services.runtime.database.transaction() as tx:
        if of_job is None:
            found = webhooks.page(tx, caller.tenant_id, limit=size + 1, before=before)
        else:
            one = webhooks.of_job(tx, of_job, caller.tenant_id)
            found = [one] if one is not None and (before is None or one.id < before) else []
    rows, more = cut(found, size)
    return listed([WebhookView.of(row) for row in rows], [row.id for row in rows], has_more=more)


@router.get("/v1/webhooks/{webhook_id}", summary="Show a webhook", responses=documented(404))
def show(webhook_id: WebhookId, caller: CallerDep, services: ServicesDep) -> WebhookView:
    """What it listens to and whether it is told anything; not its secret."""
    return WebhookView.of(_webhook(services, webhook_id, caller.tenant_id))


@router.patch("/v1/webhooks/{webhook_id}", summary="Change a webhook", responses=documented(404, 408, 413, 415))
def change(webhook_id: WebhookId, wanted: WebhookChange, caller: CallerDep, services: ServicesDep) -> WebhookView:
    """Fields that are left out or null stay as they are. While it is disabled it is told nothing, and what was on its way to it fails."""
    require_clean(wanted.model_dump())
    runtime = services.runtime
    if wanted.url is not None:
        guard.check(wanted.url, allow=runtime.allow)
    values = wanted.model_dump(exclude={"disabled"}, exclude_none=True, mode="json")
    known = _known(webhook_id, "wh")
    with runtime.database.transaction() as tx:
        webhooks.get(tx, known, tenant_id=caller.tenant_id, lock=True)
        if wanted.disabled is False:
            values |= {"disabled_at": None, "disabled_reason": None}
        if values:
            webhooks.change(tx, known, values)
        if wanted.disabled:
            webhooks.disable(tx, known, _ON_REQUEST)
        return WebhookView.of(webhooks.get(tx, known))


@router.delete("/v1/webhooks/{webhook_id}", summary="Remove a webhook", responses=documented(404))
def remove(webhook_id: WebhookId, caller: CallerDep, services: ServicesDep) -> WebhookRemoved:
    """With all its deliveries; what is on its way to it is not sent any more."""
    known = _known(webhook_id, "wh")
    with services.runtime.database.transaction() as tx:
        webhooks.get(tx, known, tenant_id=caller.tenant_id, lock=True)
        webhooks.remove(tx, known)
    return WebhookRemoved(id=known)


@router.post("/v1/webhooks/{webhook_id}/rotate", summary="Give a webhook another secret", responses=documented(404, 408, 409, 413, 415))
def rotate(
    webhook_id: WebhookId, caller: CallerDep, services: ServicesDep, once: OnceDep, rotation: WebhookRotation | None = None
) -> WebhookView:
    """Deliveries are signed with the new secret, and with the old one too for `limits.webhook_rotation_s` (24 hours).

    The new secret is shown in this answer only.
    """
    secret = (rotation.secret if rotation else None) or new_secret()
    known = _known(webhook_id, "wh")
    with services.runtime.database.transaction() as tx:

        def act() -> str:
            webhook = webhooks.get(tx, known, tenant_id=caller.tenant_id, lock=True)
            webhooks.rotate(tx, webhook, services.runtime.sealer.seal(secret), services.runtime.limits.webhook_rotation_s)
            return known

        idempotency.once(tx, once.key, act)
        webhook = webhooks.get(tx, known, tenant_id=caller.tenant_id)
    return WebhookView.of(webhook, secret=services.runtime.sealer.open(webhook.secret))


@router.get("/v1/webhooks/{webhook_id}/deliveries", summary="List deliveries", responses=documented(404), dependencies=[KNOWN_QUERY])
def list_deliveries(
    webhook_id: WebhookId,
    caller: CallerDep,
    services: ServicesDep,
    status: Annotated[list[DeliveryStatus] | None, Query(description="Only these; repeatable.")] = None,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: AfterIdQuery = None,
) -> ListView[DeliveryView]:
    """Newest first, each with its attempts and the beginnings of what was answered."""
    size = page_size(limit, services.runtime.limits.page_size)
    before = cursor(after, "msg")
    webhook = _webhook(services, webhook_id, caller.tenant_id)
    with services.runtime.database.transaction() as tx:
        found = deliveries.page(tx, webhook.id, limit=size + 1, before=before, statuses=tuple(status or ()))
    rows, more = cut(found, size)
    return listed([DeliveryView.of(row) for row in rows], [row.id for row in rows], has_more=more)


@router.post(
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    summary="Deliver again",
    dependencies=[NO_FIELDS],
    responses={**documented(404, 408, 409, 413, 415), 202: {"model": DeliveryView, "description": "It will be sent in a moment."}},
)
def redeliver(webhook_id: WebhookId, delivery_id: DeliveryId, caller: CallerDep, services: ServicesDep) -> DeliveryView:
    """The same body under the same `webhook-id`, tried for another 24 hours; whether or not it was delivered before."""
    webhook = _webhook(services, webhook_id, caller.tenant_id)
    if webhook.disabled_at is not None:
        raise WebhookDisabled('The webhook is disabled: enable it first (PATCH with "disabled": false).')
    known = _known(delivery_id, "msg")
    with services.runtime.database.transaction() as tx:
        deliveries.get(tx, known, webhook_id=webhook.id)
        deliveries.redeliver(tx, known)
        return DeliveryView.of(deliveries.get(tx, known, webhook_id=webhook.id))


def _known(text: str, kind: Kind) -> str:
    """The id, where it has the form of one. Raises `NotFound` otherwise, just as for one that does not exist."""
    if not is_id(text, kind):
        name = "webhook" if kind == "wh" else "delivery"
        raise NotFound(f"There is no {name} {text[:64]!r}.", param=f"{name}_id")
    return text


def _webhook(services: ServicesDep, webhook_id: str, tenant_id: str) -> Webhook:
    known = _known(webhook_id, "wh")
    with services.runtime.database.transaction() as tx:
        return webhooks.get(tx, known, tenant_id=tenant_id)
