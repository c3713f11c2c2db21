"""What a join imports: each module is paid for by every node, at each join and renewal."""

from __future__ import annotations

import subprocess
import sys

JOIN = """
import nodeattest_authenticator.enrollment.issue, nodeattest_authenticator.state.records
from nodeattest_authenticator.commands import cli, join, status
"""
"""The modules of a join; what they need comes along."""
CREDENTIAL = """
import nodeattest_authenticator.enrollment.issue, nodeattest_authenticator.state.records
from nodeattest_authenticator.exec_plugin import handle
from nodeattest_authenticator.exec_plugin import background_renewal
"""
"""The modules of a credential call that the fast path does not answer."""
OTHERS = {
    "difflib",
    "nodeattest_providers.tpm.event_log",  # the node sends its log unread
    "nodeattest_providers.tpm.event_log_checks",
    "nodeattest_discovery.clusterinfo",
    "nodeattest_discovery.node.client",
    "pyasn1",
    "subprocess",
    "tpm2_pytss",  # docs/decisions.md
    "yaml",  # for those who discover
}


def test_a_join_imports_neither_the_controllers_half_nor_what_only_a_mistake_needs() -> None:
    loaded = modules_of(f"{JOIN}\nimport nodeattest_providers.tpm.attestor")
    assert "nodeattest_providers.node_interface" in loaded
    assert not loaded & OTHERS


def test_a_credential_call_imports_nothing_of_the_commands_that_people_type() -> None:
    loaded = modules_of(CREDENTIAL)
    assert "cryptography" in loaded
    assert not loaded & {
        *OTHERS,
        "argparse",
        "nodeattest_authenticator.kubelet_serving",
        "nodeattest_authenticator.commands.status",
    }


def test_a_node_that_discovered_its_cluster_answers_without_what_discovers() -> None:
    parts = """
from nodeattest_authenticator.config import discovery
"""
    loaded = modules_of(CREDENTIAL + parts)
    assert "nodeattest_authenticator.config.discovery" in loaded
    assert not loaded & OTHERS


def modules_of(imports: str) -> set[str]:
    program = f"import sys\n{imports}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
