"""Which of several known servers to ask: the first that answers, and whose certificate passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from nodeattest_authenticator.config.settings import Settings
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.endpoint import Cluster
from nodeattest_authenticator.transport.api_client import ApiServerClient, Credentials, UnreachableError
from nodeattest_discovery.node.clock import Deadline

_SECONDS: Final = 3.0
"""Seconds for one server; all together get half of the time that is left."""


def select_server(settings: Settings, deadline: Deadline, log: Callable[[str], None]) -> Settings:
    """Return the settings with the server to be asked; unchanged if none answers, because that may pass."""
    discovery = settings.discovery
    if discovery is None or set(discovery.servers) <= {settings.endpoint}:
        return settings
    endpoints = tuple(dict.fromkeys((settings.endpoint, *discovery.servers)))
    cluster = settings.cluster
    end = Deadline.after(deadline.clock, deadline.left / 2)
    for endpoint in endpoints:
        limit = Deadline.after(deadline.clock, min(_SECONDS, end.left))
        fault = "there is no time left" if end.passed else probe(replace(cluster, endpoint=endpoint), limit)
        if fault is None:
            return replace(settings, endpoint=endpoint)
        log(f"{endpoint.url} is not asked: {fault}")
    return settings


def probe(cluster: Cluster, deadline: Deadline) -> str | None:
    """Say what is wrong with a server; None if it answers and can be trusted. Nobody's credential is shown to it."""
    api = ApiServerClient(
        cluster.endpoint,
        Credentials(username=""),
        ca_pem=cluster.ca_pem,
        deadline=deadline,
        tls_server_name=cluster.tls_server_name,
    )
    try:
        api.server_certificate()
    except UnreachableError as error:
        return str(error)
    except AgentError as failure:
        return failure.message
    finally:
        api.close()
    return None
