"""The audit log: one line a finished request, in the form of kube-apiserver's at level Metadata.

Promises: no body, no token, no certificate is written. Source: k8s.io/apiserver/pkg/apis/audit/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, dump
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.users import User

__all__ = ["AuditLog"]


class AuditLog:
    """Appends to the file, line by line; no file, no log."""

    def __init__(self, path: Path | None, timestamp: Callable[[], str]) -> None:
        self._timestamp = timestamp
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None

    def record(self, user: User | None, info: RequestInfo, uri: str, code: int) -> None:
        """Write one line."""
        if self._file is None:
            return
        line: JsonMap = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "stage": "ResponseComplete",
            "requestURI": uri,
            "verb": info.verb,
            "user": {"username": user.name, "groups": list(user.groups)} if user else {},
            "responseStatus": {"metadata": {}, "code": code},
            "stageTimestamp": self._timestamp(),
        }
        if info.resource:
            line["objectRef"] = {
                "resource": info.resource,
                "namespace": info.namespace,
                "name": info.name,
                "apiGroup": info.group,
                "apiVersion": info.version,
                "subresource": info.subresource,
            }
        self._file.write(dump(line).decode() + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
