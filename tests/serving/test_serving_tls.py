"""The reloading of a serving certificate."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest
from front_kit import Authority

from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, GatewayTls
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

    def warnings(expected: Authority, handshakes: int) -> int:
        client = ssl.create_default_context(cadata=expected.pem.decode())
        for _ in range(handshakes):
            time[0] += 1.0
            handshake(context, client)
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    shutil.copy(next_certificate, certificate)
    assert warnings(old, 60) == 1
    key.unlink()
    assert warnings(old, 60) == 2, "another content is another warning"
    shutil.copy(next_key, key)
    assert warnings(new, 1) == 2
    shutil.copy(next_certificate, key)
    assert warnings(new, 1) == 3, "a failure after a success is logged again"


FRONT = Authority("front-proxy-ca")


@pytest.mark.parametrize(
    ("authority", "purpose", "trusted", "accepted"),
    [
        pytest.param(FRONT, "client", FRONT, True, id="the front proxy's"),
        pytest.param(Authority("front-proxy-ca"), "client", FRONT, False, id="another CA of the same name"),
        pytest.param(FRONT, "server", FRONT, False, id="a server's"),
        pytest.param(FRONT, "client", None, False, id="no CA is trusted"),
    ],
)
def test_a_certificate_counts_at_the_gateway_by_its_ca_and_its_purpose(
    authority: Authority, purpose: str, trusted: Authority | None, accepted: bool, tmp_path: Path
) -> None:
    serving = Authority("gateway-ca")
    gateway = GatewayTls(*serving.certify(tmp_path))
    if trusted is not None:
        der = ssl.PEM_cert_to_DER_cert(trusted.pem.decode())
        gateway.set_trust(FrontProxyTrust(authorities=(der,), allowed_names=frozenset({"front"}), has_uid=False))
    client = ssl.create_default_context(cadata=serving.pem.decode())
    handshake(gateway.context, client)  # without a certificate: the key sets are public
    client.load_cert_chain(*authority.certify(tmp_path / "client", "front", client=purpose == "client"))
    if accepted:
        handshake(gateway.context, client)
    else:
        with pytest.raises(ssl.SSLError):
            handshake(gateway.context, client)


@pytest.mark.parametrize("server", ["gateway", "listener"])
def test_tls_with_client_certificates_is_1_3_without_sessions_or_more_handshakes(server: str, tmp_path: Path) -> None:
    """TLS 1.2 resumes sessions, which would outlive the CA of the clients; so would tickets."""
    serving = Authority("serving-ca")
    (tmp_path / "ca.pem").write_bytes(FRONT.pem)
    files = serving.certify(tmp_path)
    made = {"gateway": lambda: GatewayTls(*files), "listener": lambda: ServingCertificate(*files, tmp_path / "ca.pem")}
    context = made[server]().context
    client = ssl.create_default_context(cadata=serving.pem.decode())
    client.load_cert_chain(*FRONT.certify(tmp_path / "client", "front", client=True))
    if server == "listener":
        handshake(context, client)
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            handshake(context, ssl.create_default_context(cadata=serving.pem.decode()))
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_RENEGOTIATION  # one handshake on a connection: OpenSSL 1.1.1 would do more
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(context, client)
