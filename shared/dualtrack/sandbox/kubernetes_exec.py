"""Opening an exec in a pod: the WebSocket handshake with the cluster's credentials, certificates and proxy.

The client's own `stream` is not used: it swaps a method of the client that all threads share while it connects, waits without a time limit,
and keeps all output in memory however slowly it is read.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

import websocket
from kubernetes.client import Configuration
from kubernetes.stream.ws_client import get_websocket_url, websocket_proxycare

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.kubernetes_api import Cluster

_CONNECT_S: Final = 15.0
_PROTOCOLS: Final = "sec-websocket-protocol: v5.channel.k8s.io,v4.channel.k8s.io"
_MESSAGE_CHARS: Final = 500


def open_exec(cluster: Cluster, pod: str, container: str, command: Sequence[str]) -> socket.socket:
    """Start a command in a running container; its standard streams as channels of WebSocket messages on the socket that is returned.

    Raises:
        SandboxFailed: it could not be opened this time.
    """
    query = [("container", container), ("stdin", True), ("stdout", True), ("stderr", True), ("tty", False), ("command", list(command))]
    url, headers = cluster.address(f"/api/v1/namespaces/{{namespace}}/pods/{pod}/exec", query)
    url = get_websocket_url(url)
    options: dict[str, Any] = {"header": [_PROTOCOLS], "timeout": _CONNECT_S}
    if "authorization" in headers:
        options["header"].append(f"authorization: {headers['authorization']}")
    if cluster.configuration.proxy or cluster.configuration.proxy_headers:
        options = websocket_proxycare(options, cluster.configuration, url, headers)
    try:
        # With `enable_multithread` every send would take a lock; nothing is sent through it after the handshake.
        opened = websocket.create_connection(url, sslopt=_tls(cluster.configuration), enable_multithread=False, **options)
    except (websocket.WebSocketException, OSError) as error:
        raise SandboxFailed(f"The Kubernetes API did not open the way into the pod {pod}: {str(error)[:_MESSAGE_CHARS]}") from error
    if opened.sock is None:
        raise AssertionError("it is connected")
    opened.sock.settimeout(0)
    return opened.sock


def _tls(configuration: Configuration) -> dict[str, Any]:
    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    if configuration.cert_file:
        options["certfile"] = configuration.cert_file
    if configuration.key_file:
        options["keyfile"] = configuration.key_file
    if configuration.tls_server_name:
        options["server_hostname"] = configuration.tls_server_name
    return options
