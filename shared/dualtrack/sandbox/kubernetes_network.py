"""The network policy that keeps every sandbox's pod from all networks, which a namespace has before it gets a pod."""

from __future__ import annotations

from typing import Final

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.sandbox.kubernetes_api import CONFLICT, NOT_FOUND, OK, Cluster
from dualtrack.sandbox.kubernetes_pod import SANDBOX, SANDBOX_LABEL, Manifest

POLICIES: Final = "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
POLICY: Final = "dualtrack-sandbox-deny"


def policy_manifest() -> Manifest:
    """Nothing in, nothing out, for all sandboxes of the namespace."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY, "labels": {SANDBOX_LABEL: "policy"}},
        "spec": {"podSelector": {"matchLabels": {SANDBOX_LABEL: SANDBOX}}, "policyTypes": ["Ingress", "Egress"]},
    }


def ensure_denied(cluster: Cluster) -> None:
    """Make the policy, or see that the one that is there says the same.

    Policies add up: no other one may select these pods, or what it lets through is open.

    Raises:
        SandboxFailed: the cluster does not answer.
        SandboxUnavailable: it is missing and can't be made, it was changed, or another one opens a way.
    """
    wanted = policy_manifest()
    reply = cluster.request("GET", f"{POLICIES}/{POLICY}")
    if reply.status == NOT_FOUND:
        reply = cluster.request("POST", POLICIES, wanted)
        if reply.status == CONFLICT:  # another executor was faster
            reply = cluster.request("GET", f"{POLICIES}/{POLICY}")
    found = reply.body if reply.status in OK else cluster.refuse(reply, f"read and create network policies in {cluster.namespace}")
    spec = found.get("spec") or {}
    opened = [direction for direction in ("ingress", "egress") if spec.get(direction)]
    if opened or spec.get("podSelector") != wanted["spec"]["podSelector"] or set(spec.get("policyTypes") or ()) != {"Ingress", "Egress"}:
        raise SandboxUnavailable(
            f"The network policy {POLICY} in {cluster.namespace} does not keep sandboxes from all networks any more: delete it, and the "
            "executor makes it anew."
        )
    others = cluster.demand("GET", POLICIES).get("items") or ()
    opening = sorted(str(other["metadata"]["name"]) for other in others if _opens(other))
    if opening:
        raise SandboxUnavailable(
            f"Network policies in {cluster.namespace} may let sandboxes out ({', '.join(opening)}): give sandboxes a namespace of theirs."
        )


def _opens(policy: Manifest) -> bool:
    """Whether it has rules that may be about sandboxes; one that selects by a label no sandbox has is none of ours."""
    spec = policy.get("spec") or {}
    if not (spec.get("ingress") or spec.get("egress")):
        return False
    wanted = (spec.get("podSelector") or {}).get("matchLabels") or {}
    return all(key.startswith("dualtrack-") for key in wanted)
