"""The front's certificate may be replaced while it serves, and a bad one does not end it."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest
from front_kit import LOOPBACK, Authority, KnownCluster, ask, get, service
from jwt_kit import NOW, TOKEN

from nodeattest_discovery.front.service import FrontLimits
from nodeattest_discovery.jwt import mint
from nodeattest_serving.bounded_server import BindAddress, client_of
from nodeattest_serving.listener import Listener
from nodeattest_serving.tls import ServingCertificate


async def test_a_new_certificate_is_shown_without_a_restart_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old, new, time = Authority("old"), Authority("new"), [0.0]
    certificate, key = old.certify(tmp_path)
    next_certificate, next_key = new.certify(tmp_path / "next")
    tls = ServingCertificate(certificate, key, clock=lambda: time[0])
    listener = Listener(service(KnownCluster.of(old)).handle, BindAddress(LOOPBACK, 0), tls.context, FrontLimits())
    request = get(b"Bearer " + mint(TOKEN, NOW).encode())
    await listener.start()
    try:
        assert (await ask(listener.port, request, old)).status == 200
        shutil.copy(next_certificate, certificate)
        time[0] += 1.0
        assert (await ask(listener.port, request, old)).status == 200
        assert "keeping the serving certificate" in caplog.text
        shutil.copy(next_key, key)
        time[0] += 1.0
        assert (await ask(listener.port, request, new)).status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(listener.port, request, old)
        key.unlink()
        time[0] += 1.0
        assert (await ask(listener.port, request, new)).status == 200
    finally:
        await listener.stop()


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("192.0.2.1", 4711), "192.0.2.1"),
        (("::ffff:192.0.2.1", 4711, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 4711, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::/64"),
        (None, "unknown"),
        ("", "unknown"),
    ],
)
def test_a_client_is_its_address_or_its_network(peer: object, client: str) -> None:
    assert client_of(peer) == client
