"""The sandbox's client over connections that are kept: a fleet of thousands is thousands of requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from nodeattest_sandbox.apiserver.jsonvalue import JsonValue, dump, load, map_at
from nodeattest_sandbox.client import ApiRefusal, Client

FIRST_ERROR = 400
_threads = threading.local()


class PersistentClient(Client):
    """One connection a thread and server."""

    def send(
        self,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        kept: dict[str, http.client.HTTPSConnection] = vars(_threads).setdefault("kept", {})
        where = urlsplit(self.server)
        connection = kept.get(self.server) or http.client.HTTPSConnection(
            where.hostname or "", where.port, timeout=self.timeout, context=self.tls
        )
        data = None if body is None else dump(body)
        sent = {**self.headers, **({"Content-Type": content_type} if data else {}), **(headers or {})}
        try:
            connection.request(method, f"{path}?{urlencode(query)}" if query else path, data, sent)
            answer = connection.getresponse()
            received = answer.read()
        except BaseException:  # nobody knows what is still on its way
            kept.pop(self.server, None)
            connection.close()
            raise
        kept[self.server] = connection
        if answer.status >= FIRST_ERROR:
            raise ApiRefusal(answer.status, map_at(load(received)))
        return answer.status, received
