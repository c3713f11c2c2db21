"""What a join imports: each module is paid for by every node, at each join and renewal."""

from __future__ import annotations

import subprocess
import sys

JOIN = "cli, status, join, draft, issue"
"""The modules of a join; what they need comes along."""
OTHERS = {
    "difflib",
    "nodeattest_providers.checks",
    "nodeattest_providers.interface",
    "nodeattest_providers.pkcs10",
    "nodeattest_providers.tpm.eventlog",  # the node sends its log unread
    "nodeattest_providers.tpm.measured",
    "pyasn1",
    "subprocess",
    "tpm2_pytss",  # comes when the TPM is opened
}


def test_a_join_imports_neither_the_controllers_half_nor_what_only_a_mistake_needs() -> None:
    program = (
        f"import sys; from nodeattest_authenticator import {JOIN}; import nodeattest_providers.tpm.attestor; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "nodeattest_providers.exchange" in loaded
    assert not loaded & OTHERS
