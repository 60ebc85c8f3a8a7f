"""The objects of the cluster, as an API server keeps them."""

from __future__ import annotations

import copy
import itertools
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

Thing = dict[str, Any]


class Conflict(Exception):
    """There is one of that name, or it has changed meanwhile."""


class Store:
    """Objects by kind (their plural) and name. Thread-safe; what it gives is a copy."""

    def __init__(self) -> None:
        self._things: dict[tuple[str, str], Thing] = {}
        self._lock = threading.RLock()
        self._versions = itertools.count(1)

    def create(self, kind: str, thing: Mapping[str, Any]) -> Thing:
        made = copy.deepcopy(dict(thing))
        metadata = made.setdefault("metadata", {})
        with self._lock:
            key = (kind, metadata["name"])
            if key in self._things:
                raise Conflict
            metadata |= {"uid": str(uuid.uuid4()), "resourceVersion": str(next(self._versions))}
            self._things[key] = made
            return copy.deepcopy(made)

    def get(self, kind: str, name: str) -> Thing | None:
        with self._lock:
            return copy.deepcopy(self._things.get((kind, name)))

    def select(self, kind: str, selector: str = "") -> list[Thing]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        with self._lock:
            return [
                copy.deepcopy(thing)
                for (of, _), thing in sorted(self._things.items())
                if of == kind and wanted.items() <= (thing["metadata"].get("labels") or {}).items()
            ]

    def replace(self, kind: str, name: str, thing: Mapping[str, Any]) -> Thing | None:
        with self._lock:
            there = self._things.get((kind, name))
            if there is None:
                return None
            if thing["metadata"].get("resourceVersion") != there["metadata"]["resourceVersion"]:
                raise Conflict
            return self.change(kind, name, lambda old: old.update(copy.deepcopy(dict(thing))))

    def change(self, kind: str, name: str, edit: Callable[[Thing], object]) -> Thing | None:
        """Edit it in place; None where there is none."""
        with self._lock:
            there = self._things.get((kind, name))
            if there is None:
                return None
            edit(there)
            there["metadata"]["resourceVersion"] = str(next(self._versions))
            return copy.deepcopy(there)

    def remove(self, kind: str, name: str) -> Thing | None:
        with self._lock:
            return self._things.pop((kind, name), None)

    def owned(self, uid: str) -> list[tuple[str, str]]:
        """Kind and name of all whose owner has that uid."""
        with self._lock:
            return [
                key
                for key, thing in self._things.items()
                if any(owner["uid"] == uid for owner in thing["metadata"].get("ownerReferences") or ())
            ]
