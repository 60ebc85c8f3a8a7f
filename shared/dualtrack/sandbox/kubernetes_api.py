"""The cluster's API: requests with a time limit and bounded retries, over the official client's transport, credentials and certificates.

Objects stay JSON, as in manifests: what a newer cluster adds does no harm, and nothing of it has to be modelled.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.settings import KubernetesSettings

_CONNECT_S: Final = 10.0
_READ_S: Final = 30.0
_TRIES: Final = 5
_FIRST_S: Final = 0.2
_LONGEST_S: Final = 5.0
_PASSING: Final = frozenset((429, 500, 502, 503, 504))
_POOL: Final = 16
_MESSAGE_CHARS: Final = 1000
_AUTH: Final = ("BearerToken",)
OK: Final = frozenset((200, 201, 202))
NOT_FOUND: Final = 404
CONFLICT: Final = 409
_DENIED: Final = frozenset((401, 403))
_QUOTA: Final = "exceeded quota"
"""Of a refusal that passes, once other pods have ended."""

Query = Sequence[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the API server answered."""

    status: int
    body: Mapping[str, Any]

    @property
    def message(self) -> str:
        """The server's own words for a refusal."""
        return str(self.body.get("message") or f"status {self.status}")[:_MESSAGE_CHARS]


class Cluster:
    """One API server, one namespace. Thread-safe."""

    def __init__(self, settings: KubernetesSettings) -> None:
        """Reads the configuration; asks nobody yet.

        Raises:
            SandboxUnavailable: no namespace is set, or there is no way to a cluster.
        """
        if settings.namespace is None:
            raise SandboxUnavailable("DUALTRACK_SANDBOX__KUBERNETES__NAMESPACE is not set: name a namespace that is for sandboxes alone.")
        self.namespace: Final = settings.namespace
        self.configuration: Final = _configuration(settings.kubeconfig, settings.context)
        self._client = ApiClient(self.configuration)

    def request(  # noqa: D417 - those that HTTP has
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Query = (), *, tries: int = _TRIES
    ) -> Reply:
        """One request, again after answers that pass (429, 5xx) and broken connections.

        Args:
            path: `{namespace}` is replaced.
            tries: at most.

        Raises:
            SandboxFailed: nobody answered, or nothing but passing failures.
        """
        for attempt in range(1, tries + 1):
            try:
                reply, pause = self._once(method, path, body, query)
            except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
                if attempt == tries:
                    raise SandboxFailed(f"The Kubernetes API at {self.configuration.host} does not answer: {_words(error)}") from error
                pause = 0.0
            else:
                if reply.status not in _PASSING or attempt == tries:
                    return reply
            time.sleep(min(_LONGEST_S, max(pause, _FIRST_S * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))))  # noqa: S311 - no secret
        raise AssertionError("the last try returns or raises")

    def demand(self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Query = ()) -> Mapping[str, Any]:
        """As `request`, for what has to work.

        Raises:
            SandboxFailed: it did not work this time.
            SandboxUnavailable: the executor's account may not do that.
        """
        reply = self.request(method, path, body, query)
        return reply.body if reply.status in OK else self.refuse(reply, f"{method} {self._named(path)}")

    def refuse(self, reply: Reply, what: str) -> Mapping[str, Any]:
        """Raise the error for an answer that is none.

        Raises:
            SandboxFailed: it did not work this time.
            SandboxUnavailable: the executor's account may not do that.
        """
        if reply.status in _DENIED and _QUOTA not in reply.message:
            raise SandboxUnavailable(
                f"The cluster does not let this executor do what the sandbox needs ({what}): {reply.message}. "
                "infra/kubernetes/sandbox-rbac.yaml has the Role."
            )
        raise SandboxFailed(f"The Kubernetes API refused {what}: {reply.message}")

    def address(self, path: str, query: Query) -> tuple[str, dict[str, str]]:
        """The URL of a path and the headers that authenticate a request for it, for what is no plain request."""
        _, url, headers, _, _ = self._prepared("GET", path, None, query)
        return url, dict(headers)

    def close(self) -> None:
        """Close kept connections."""
        self._client.rest_client.close()

    def _named(self, path: str) -> str:
        return path.replace("{namespace}", self.namespace)

    def _prepared(self, method: str, path: str, body: Mapping[str, Any] | None, query: Query) -> Any:  # noqa: ANN401 - the client's
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._client.param_serialize(
            method,
            path,
            path_params={"namespace": self.namespace},
            query_params=list(query),
            header_params=headers,
            body=body,
            auth_settings=list(_AUTH),
            collection_formats={"command": "multi"},
        )

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None, query: Query) -> tuple[Reply, float]:
        method, url, headers, content, _ = self._prepared(method, path, body, query)
        response = self._client.call_api(method, url, headers, content, _request_timeout=(_CONNECT_S, _READ_S))
        answer: bytes = response.read()
        found: object = None
        with contextlib.suppress(ValueError):
            found = json.loads(answer)
        if not isinstance(found, dict):
            found = {"message": answer.decode(errors="replace").strip()[:_MESSAGE_CHARS]}
        pause = 0.0
        with contextlib.suppress(ValueError):
            pause = float(response.headers.get("Retry-After") or 0)
        return Reply(response.status, found), pause


def _configuration(kubeconfig: Path | None, context: str | None) -> Configuration:
    # Its constructor hands out copies of a process-wide default, which somebody may have set: everything here is set anew.
    result = Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=result)
        else:
            config.load_kube_config(config_file=str(kubeconfig), context=context, client_configuration=result, persist_config=False)
    except (config.ConfigException, OSError) as error:
        raise SandboxUnavailable(
            f"There is no way to a Kubernetes cluster ({error}): run the executor in one, with a service account, or set "
            "DUALTRACK_SANDBOX__KUBERNETES__KUBECONFIG."
        ) from error
    result.retries = urllib3.Retry(0)  # `Cluster.request` has its own
    result.connection_pool_maxsize = _POOL
    return result


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS]
