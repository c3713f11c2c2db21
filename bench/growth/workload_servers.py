"""Many workload clusters in one process: the sandbox's API server, once a cluster, each on a port of its own.

``python -m bench.growth.workload_servers``: reads one line of JSON, the folders of the clusters; prints their URLs as
one line; then answers each line that it reads with the requests that were finished so far, by side. Ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from nodeattest_sandbox.apiserver.app import ApiServer
from nodeattest_sandbox.apiserver.audit import AuditLog
from nodeattest_sandbox.apiserver.cluster import Cluster
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.users import User
from nodeattest_sandbox.pki import ClusterPki

HISTORY = 2_000
"""Changes that a cluster keeps for watches."""
BOOKMARKS = 60.0
"""Seconds, as kube-apiserver's."""


class Counted(AuditLog):
    """Counts requests in the place of writing them."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(None, str)
        self._counts = counts

    def record(self, user: User | None, info: RequestInfo, uri: str, code: int) -> None:
        if info.resource != "leases" and user is not None:
            self._counts["node" if user.name.startswith(("system:bootstrap:", "system:node:")) else user.name] += 1


async def serve(folders: list[Path]) -> None:
    counts: Counter[str] = Counter()
    runners: list[web.AppRunner] = []
    urls: list[str] = []
    for folder in folders:
        pki = ClusterPki.make(folder / "pki", folder.name)
        cluster = Cluster.boot(Store(HISTORY), now=lambda: datetime.now(UTC), random=os.urandom)
        server = ApiServer(cluster, Counted(counts), hang_file=None, bookmark_interval=BOOKMARKS)
        runner = web.AppRunner(
            server.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.5,
            keepalive_timeout=300,
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_tls(pki), backlog=1024).start()
        runners.append(runner)
        urls.append(f"https://127.0.0.1:{runner.addresses[0][1]}")
    print(json.dumps(urls), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(counts), flush=True)
    for runner in runners:
        await runner.cleanup()


def _tls(pki: ClusterPki) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(pki.server_certificate, pki.server_key)
    context.load_verify_locations(pki.ca_certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


if __name__ == "__main__":
    asyncio.run(serve([Path(folder) for folder in json.loads(sys.stdin.readline())]))
