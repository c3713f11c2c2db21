"""Software TPMs start fast, several at once, and leave nothing behind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509

from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm


def socket_of(tpm: SoftwareTpm) -> Path:
    return Path(tpm.tcti.removeprefix("swtpm:path="))


def test_tpms_made_at_the_same_time_share_one_authority_and_no_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(SoftwareTpm.create, tmp_path, name=name) for name in ("a", "b", "c")]
        tpms = [future.result() for future in made]
    assert len({tpm.authority_pem for tpm in tpms}) == 1
    assert (tmp_path / "ca" / "signkey.pem").stat().st_mode & 0o077 == 0
    issuer, root = x509.load_pem_x509_certificates(tpms[0].authority_pem.encode())
    issuer.verify_directly_issued_by(root)
    for kind in ("rsa2048", "ecc-p384"):
        certificates = [tpm.endorsement_certificate(kind) for tpm in tpms]
        assert len({certificate.serial_number for certificate in certificates}) == 3
        for certificate in certificates:
            certificate.verify_directly_issued_by(issuer)
    fingerprints = {tpm.endorsement_fingerprint(kind) for tpm in tpms for kind in ("rsa2048", "ecc-p384")}
    assert len(fingerprints) == 6


def test_a_tpm_starts_stops_and_comes_back_after_a_power_loss(tmp_path: Path) -> None:
    tpm = SoftwareTpm.create(tmp_path, name="a")
    assert tpm.pid is None
    for end in (tpm.stop, tpm.kill, tpm.stop):
        tpm.start()
        tpm.start()  # starting a TPM that runs changes nothing
        pid = tpm.pid
        assert pid is not None
        assert socket_of(tpm).is_socket()
        end()
        assert tpm.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        end()
