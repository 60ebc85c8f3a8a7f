"""Whose pods are whose: each executor holds a Lease that it renews while it lives, and all that it makes names that Lease.

An executor is dead when its Lease is gone, or has not been renewed for its whole duration by this process's own clock: the clocks of two
machines are never compared. So what a crashed one has left is removed by the second look at it, and by the cluster itself once the Lease is
deleted, which owns all of it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dualtrack.domain.errors import DualtrackError
from dualtrack.sandbox.kubernetes_api import CONFLICT, NOT_FOUND, OK, Cluster
from dualtrack.sandbox.kubernetes_pod import AGENT, LEASE, OWNER_LABEL, SANDBOX, SANDBOX_LABEL, Manifest, labels, owned_by
from dualtrack.sandbox.kubernetes_sandbox import PODS

_LOG: Final = logging.getLogger(__name__)
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
CONFIG_MAPS: Final = "/api/v1/namespaces/{namespace}/configmaps"
DURATION_S: Final = 60.0
_RENEWALS: Final = 4
"""In the time of one duration."""
_PAGE: Final = 500
_JOIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lease as it was first seen in this state."""

    version: str
    at: float


class Owner:
    """This process's Lease, and what others' tell. Thread-safe."""

    def __init__(self, cluster: Cluster, duration_s: float = DURATION_S) -> None:
        """Take the Lease and begin to renew it.

        Raises:
            SandboxFailed: the cluster did not give it this time.
            SandboxUnavailable: the executor's account may not have one.
        """
        self.name: Final = f"dualtrack-{secrets.token_hex(8)}"
        self._cluster = cluster
        self._duration_s = duration_s
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._agent: Mapping[str, bytes] = {}
        self.uid: str = self._take()
        self._thread = threading.Thread(target=self._renew, name="sandbox-lease", daemon=True)
        self._thread.start()

    def keep_agent(self, files: Mapping[str, bytes]) -> None:
        """Make the ConfigMap of this executor that holds the agent, by the Lease's name. Nobody can change it afterwards.

        Raises:
            SandboxFailed: the cluster did not take it.
            SandboxUnavailable: the executor's account may not make it.
        """
        self._agent = files
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "labels": labels(AGENT, self.name), "ownerReferences": owned_by(self.name, self.uid)},
            "immutable": True,
            "data": {name: content.decode() for name, content in files.items()},
        }
        reply = self._cluster.request("POST", CONFIG_MAPS, manifest)
        if reply.status not in OK and reply.status != CONFLICT:  # an earlier try had come through
            self._cluster.refuse(reply, f"create configmaps in {self._cluster.namespace}")

    def sweep(self) -> list[str]:
        """Remove the pods, agents and Leases of dead executors; a line for each.

        Raises:
            SandboxFailed: the cluster does not answer, or something can't be removed.
        """
        # Things before Leases: an executor has its Lease before it makes anything.
        pods = self._ours(PODS, SANDBOX)
        agents = self._ours(CONFIG_MAPS, AGENT)
        leases = {_name(lease): lease for lease in self._ours(LEASES, LEASE)}
        dead = self._dead(leases)
        removed = []
        for kind, path, things in (("pod", PODS, pods), ("configmap", CONFIG_MAPS, agents)):
            for thing in things:
                owner = thing["metadata"]["labels"].get(OWNER_LABEL)
                if owner != self.name and (owner in dead or owner not in leases):
                    removed += self._remove(kind, path, _name(thing))
        for name in dead:
            removed += self._remove("lease", LEASES, name)
        return removed

    def close(self) -> None:
        """Give the Lease up, and with it the agent; the executor's pods must be gone. What fails the cluster or the next sweep does."""
        self._stop.set()
        self._thread.join(_JOIN_S)
        with contextlib.suppress(DualtrackError):
            self._remove("configmap", CONFIG_MAPS, self.name)
            self._remove("lease", LEASES, self.name)

    def _dead(self, leases: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Those whose Lease has not changed for its duration while this process looked on."""
        now = time.monotonic()
        with self._lock:
            seen = {}
            dead = set()
            for name, lease in leases.items():
                version = str(lease["metadata"].get("resourceVersion"))
                before = self._seen.get(name)
                seen[name] = before if before is not None and before.version == version else _Seen(version, now)
                duration_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or DURATION_S)
                if name != self.name and now - seen[name].at > duration_s:
                    dead.add(name)
            self._seen = seen
        return dead

    def _ours(self, path: str, kind: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        query: list[tuple[str, object]] = [("labelSelector", f"{SANDBOX_LABEL}={kind}"), ("limit", _PAGE)]
        more = ""
        while True:
            page = self._cluster.demand("GET", path, query=[*query, ("continue", more)] if more else query)
            found += page.get("items") or ()
            more = str((page.get("metadata") or {}).get("continue") or "")
            if not more:
                return found

    def _remove(self, kind: str, path: str, name: str) -> list[str]:
        query = (("gracePeriodSeconds", 1),) if path == PODS else ()
        reply = self._cluster.request("DELETE", f"{path}/{name}", query=query)
        if reply.status not in OK and reply.status != NOT_FOUND:
            self._cluster.refuse(reply, f"delete the {kind} {name}")
        return [f"{kind} {name}"] if reply.status in OK else []

    def _renew(self) -> None:
        while not self._stop.wait(self._duration_s / _RENEWALS):
            try:
                self._renew_once()
            except (DualtrackError, KeyError):
                _LOG.warning("the lease of this executor's sandboxes was not renewed; it tries again", exc_info=True)

    def _renew_once(self) -> None:
        path = f"{LEASES}/{self.name}"
        reply = self._cluster.request("GET", path)
        if reply.status == NOT_FOUND:
            _LOG.error("the lease %s was deleted, and with it this executor's sandboxes; a new one is made", self.name)
            self.uid = self._take()
            self.keep_agent(self._agent)
            return
        lease = dict(reply.body if reply.status in OK else self._cluster.refuse(reply, f"read the lease {self.name}"))
        lease["spec"] = self._manifest()["spec"]
        self._cluster.demand("PUT", path, lease)

    def _take(self) -> str:
        """Make the Lease; its uid."""
        reply = self._cluster.request("POST", LEASES, self._manifest())
        if reply.status == CONFLICT:  # an earlier try had come through
            reply = self._cluster.request("GET", f"{LEASES}/{self.name}")
        made = reply.body if reply.status in OK else self._cluster.refuse(reply, f"create leases in {self._cluster.namespace}")
        return str(made["metadata"]["uid"])

    def _manifest(self) -> Manifest:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "labels": labels(LEASE, self.name)},
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": max(1, round(self._duration_s)),
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }


def _name(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"]["name"])
