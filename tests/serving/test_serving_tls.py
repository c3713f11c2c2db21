"""The reloading of a serving certificate."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest
from front_kit import Authority

from nodeattest_identity.addon.gateway.front_proxy import GatewayTls
from nodeattest_serving.tls import ServingCertificate


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Do a handshake in memory; raises where the client does not accept the certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, serving, asking, serving):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_files_that_cannot_be_used_are_logged_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new, time = Authority("old"), Authority("new"), [0.0]
    certificate, key = old.certify(tmp_path)
    next_certificate, next_key = new.certify(tmp_path / "next")
    context = ServingCertificate(certificate, key, clock=lambda: time[0]).context
    trusts_old, trusts_new = (ssl.create_default_context(cadata=each.pem.decode()) for each in (old, new))

    def warnings() -> int:
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    shutil.copy(next_certificate, certificate)
    for _ in range(60):
        time[0] += 1.0
        handshake(context, trusts_old)
    assert warnings() == 1
    key.unlink()
    for _ in range(60):
        time[0] += 1.0
        handshake(context, trusts_old)
    assert warnings() == 2, "another content is another warning"
    shutil.copy(next_key, key)
    time[0] += 1.0
    handshake(context, trusts_new)
    shutil.copy(next_certificate, key)
    time[0] += 1.0
    handshake(context, trusts_new)
    assert warnings() == 3, "a failure after a success is logged again"


@pytest.mark.parametrize("server", ["listener", "gateway"])
def test_no_server_handshakes_twice_on_one_connection(server: str, tmp_path: Path) -> None:
    """OpenSSL 3 refuses renegotiation by default, 1.1.1 does not."""
    files = Authority("ca").certify(tmp_path)
    made = {
        "listener": lambda: ServingCertificate(*files),
        "gateway": lambda: GatewayTls(*files),
    }
    assert made[server]().context.options & ssl.OP_NO_RENEGOTIATION
