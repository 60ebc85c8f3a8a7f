"""Prometheus metrics of this process's sandboxes, and the names on their spans. Labels take a bounded set of values.

They are the process's own, like the sandboxes: an executor shows them where `telemetry.metrics_port` says, the standalone platform at the
router's `/metrics`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

RUNG: Final = "dualtrack.sandbox.rung"
TEMPLATE: Final = "dualtrack.sandbox.template"
START: Final = "dualtrack.sandbox.start"
"""`warm` or `cold`."""
SESSION: Final = "dualtrack.sandbox.session"
REASON: Final = "dualtrack.sandbox.end_reason"
KIND: Final = "dualtrack.sandbox.kind"
"""`command` or `python`."""
ENDED: Final = "dualtrack.sandbox.ended"
EXIT_CODE: Final = "dualtrack.sandbox.exit_code"

_QUICK_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_RUN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)


class SandboxMetrics:
    """All of them, in a registry of their own."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self.claims: Final = Counter(
            "dualtrack_sandbox_claims", "Sandboxes claimed, by how: warm or cold.", ["rung", "template", "start"], registry=self.registry
        )
        self.claim_s: Final = Histogram(
            "dualtrack_sandbox_claim_duration_seconds",
            "Seconds from a claim to a sandbox that is ready.",
            ["rung", "start"],
            buckets=_QUICK_S,
            registry=self.registry,
        )
        self.run_s: Final = Histogram(
            "dualtrack_sandbox_run_duration_seconds",
            "Seconds that commands ran, by what ended them.",
            ["rung", "kind", "ended"],
            buckets=_RUN_S,
            registry=self.registry,
        )
        self.destroy_s: Final = Histogram(
            "dualtrack_sandbox_destroy_duration_seconds",
            "Seconds until nothing of a sandbox was left.",
            ["rung"],
            buckets=_QUICK_S,
            registry=self.registry,
        )
        self.ends: Final = Counter(
            "dualtrack_sandbox_ends", "Claimed sandboxes that ended, by why.", ["rung", "reason"], registry=self.registry
        )
        self.starts: Final = Counter("dualtrack_sandbox_starts", "Sandboxes started.", ["rung"], registry=self.registry)
        self.start_failures: Final = Counter(
            "dualtrack_sandbox_start_failures", "Sandboxes that did not start.", ["rung"], registry=self.registry
        )
        self.lost: Final = Counter(
            "dualtrack_sandbox_warm_lost", "Warm sandboxes that were found dead and replaced.", ["rung"], registry=self.registry
        )
        self.swept: Final = Counter(
            "dualtrack_sandbox_swept", "Things of dead processes that the janitor removed.", ["rung"], registry=self.registry
        )
        self.egress_requests: Final = Counter(
            "dualtrack_egress_requests",
            "Requests and tunnels of sandboxes, by what was decided and why; reason empty: it came to its end.",
            ["decision", "reason"],
            registry=self.registry,
        )
        self.egress_bytes: Final = Counter(
            "dualtrack_egress_bytes", "Bytes that sandboxes sent to hosts (up) and received (down).", ["direction"], registry=self.registry
        )
        self.warm: Final = Gauge("dualtrack_sandbox_warm", "Sandboxes ready to be claimed.", ["rung", "template"], registry=self.registry)
        self.live: Final = Gauge("dualtrack_sandbox_live", "Sandboxes that exist.", ["rung"], registry=self.registry)
        self.limit: Final = Gauge("dualtrack_sandbox_limit", "Most sandboxes that may exist.", ["rung"], registry=self.registry)
        self.works: Final = Gauge(
            "dualtrack_sandbox_rung_works", "Whether the probe of a configured rung succeeded: 1 or 0.", ["rung"], registry=self.registry
        )


METRICS: Final = SandboxMetrics()
