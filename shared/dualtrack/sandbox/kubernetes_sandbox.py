"""One pod, from its creation to the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import DualtrackError, SandboxFailed
from dualtrack.sandbox.kubernetes_api import CONFLICT, NOT_FOUND, OK, Cluster
from dualtrack.sandbox.kubernetes_exec import open_exec
from dualtrack.sandbox.kubernetes_pod import CONTAINER, Manifest
from dualtrack.sandbox.kubernetes_status import GONE, PodStatus, pod_status
from dualtrack.sandbox.kubernetes_stream import PodStream
from dualtrack.sandbox.rung import WORKSPACE, Counters, Enforced

PODS: Final = "/api/v1/namespaces/{namespace}/pods"
_GONE_S: Final = 60.0  # a kubelet takes a second or two, one that was just restarted much longer
_LOOK_S: Final = (0.05, 0.5)
"""Between two looks at a pod: at first, and at most."""
_REASON_S: Final = 5.0
"""A kubelet writes the reason of an end down within a second or two of it."""
_EXEC_TRIES: Final = 5
_JOIN_S: Final = 30.0
_AT_ONCE: Final = (("gracePeriodSeconds", 1),)
"""The shortest time with which the kubelet confirms that all processes have ended before the pod is gone; 0 would not wait for it."""


class KubernetesSandbox:
    """`rung.Launched` by a pod. A thread of its own waits until it runs, starts the agent in it, and carries the frames."""

    own_processes = True
    enforced = Enforced(memory=True, processes=False)
    inside: str = WORKSPACE
    scratch: Path | None = None

    def __init__(self, cluster: Cluster, pod: Manifest, command: Sequence[str]) -> None:
        """Create the pod, in which `command` is to be started.

        Raises:
            SandboxFailed: the cluster did not take it this time. Nothing is left then.
            SandboxUnavailable: the executor's account may not create it.
        """
        self._cluster = cluster
        self._name = str(pod["metadata"]["name"])
        self._command = list(command)
        self._lock = threading.Lock()
        self._examining = threading.Lock()
        self._killed = False
        self._closed = False
        self._counters = Counters()
        self._examined = False
        self._status: PodStatus | None = None
        self._problem = ""
        self._stream: PodStream | None = None
        self._create(pod)
        self._source, self.input = os.pipe()
        self.output, self._target = os.pipe()
        self._stopping, self._stop = os.pipe()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sandbox-{self._name}", daemon=True)
        self._thread.start()

    def _create(self, pod: Manifest) -> None:
        try:
            reply = self._cluster.request("POST", PODS, pod)
            if reply.status not in OK and reply.status != CONFLICT:  # nobody else has that name: an earlier try had come through
                self._cluster.refuse(reply, f"create pods in {self._cluster.namespace}")
        except SandboxFailed:
            with contextlib.suppress(DualtrackError):
                self._delete()
            raise

    def counters(self) -> Counters:
        """See `Launched.counters`. Nothing is known before the end; then why the kubelet ended it, if it did."""
        if self._ended.is_set() and not self._killed:
            self._examine()
        return self._counters

    def said(self) -> str:
        """What the agent printed before it was ready, and what the cluster says of the pod."""
        if self._ended.is_set() and not self._killed:
            self._examine()
        stream, status = self._stream, self._status
        parts = (stream.said if stream is not None else "", self._problem, status.reason if status is not None else "")
        return "; ".join(dict.fromkeys(part for part in parts if part))

    def kill(self) -> None:
        """See `Launched.kill`: one request, whose failure is for `close` to tell."""
        with self._lock:
            if self._closed or self._killed:
                return
            self._killed = True
            os.write(self._stop, b"\0")
        with contextlib.suppress(DualtrackError):
            self._delete(tries=1)

    def close(self) -> None:
        """See `Launched.close`."""
        self.kill()
        with self._lock:
            if self._closed:
                return
            self._delete()
            self._await_gone()
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                raise SandboxFailed(f"The thread of the sandbox's pod {self._name} did not end within {_JOIN_S:g} s.")
            self._closed = True
            for descriptor in (self.input, self.output, self._stopping, self._stop):
                os.close(descriptor)

    def _delete(self, *, tries: int = 5) -> None:
        reply = self._cluster.request("DELETE", f"{PODS}/{self._name}", query=_AT_ONCE, tries=tries)
        if reply.status not in OK and reply.status not in {NOT_FOUND, CONFLICT}:
            self._cluster.refuse(reply, f"delete the pod {self._name}")

    def _await_gone(self) -> None:
        deadline = time.monotonic() + _GONE_S
        pause = _LOOK_S[0]
        while True:
            reply = self._cluster.request("GET", f"{PODS}/{self._name}")
            if reply.status == NOT_FOUND:
                return
            if time.monotonic() > deadline:
                raise SandboxFailed(f"The sandbox's pod {self._name} was still there {_GONE_S:g} s after it was deleted.")
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_S[1])

    def _run(self) -> None:
        """The thread: until the end of the agent, or `kill`."""
        try:
            if self._await_running():
                self._carry()
        except DualtrackError as error:
            self._problem = error.message
        finally:
            self._ended.set()
            os.close(self._source)
            os.close(self._target)  # last: whoever reads it then asks what happened

    def _await_running(self) -> bool:
        """Whether it runs; False if it never will, or is not wanted any more."""
        pause = _LOOK_S[0]
        while not self._wait(pause):
            pause = min(2 * pause, _LOOK_S[1])
            try:
                self._status = self._look()
            except SandboxFailed as error:  # whoever waits for the agent has a time limit
                self._problem = error.message
                continue
            self._problem = ""
            if self._status.running:
                return True
            if self._status.over:
                return False
        return False

    def _carry(self) -> None:
        for attempt in range(1, _EXEC_TRIES + 1):
            try:
                connection = open_exec(self._cluster, self._name, CONTAINER, self._command)
                break
            except SandboxFailed:  # the container may have come up this very moment
                if attempt == _EXEC_TRIES or self._wait(_LOOK_S[1]) or self._look().over:
                    raise
        self._stream = PodStream(connection, self._source, self._target, self._stopping)
        self._problem = self._stream.run()

    def _look(self) -> PodStatus:
        reply = self._cluster.request("GET", f"{PODS}/{self._name}")
        if reply.status == NOT_FOUND:
            return GONE
        return pod_status(reply.body if reply.status in OK else self._cluster.refuse(reply, f"read the pod {self._name}"))

    def _examine(self) -> None:
        """Once, after an end that nobody asked for: what the cluster says of it."""
        with self._examining:
            if self._examined:
                return
            self._examined = True
            deadline = time.monotonic() + _REASON_S
            try:
                while not (status := self._look()).over and time.monotonic() < deadline:
                    if self._wait(_LOOK_S[0]):
                        break
            except DualtrackError as error:
                self._problem = self._problem or error.message
                return
            self._status = status
            self._counters = Counters(out_of_memory=int(status.out_of_memory), disk_exceeded=int(status.disk_exceeded))

    def _wait(self, patience_s: float) -> bool:
        """Whether it is to end, waiting for that."""
        poll = select.poll()
        poll.register(self._stopping, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))
