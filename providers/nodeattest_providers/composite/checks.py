"""Several attested nodes made one: pins by part, one boot state, no contradiction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nodeattest_providers.checks import Checks
from nodeattest_providers.composite.protocol import PROVIDER
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import printable
from nodeattest_providers.names import MachineName, ProviderName
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.verifier_interface import AttestedNode, BootState, NodeRequest

_SECTION: Final = "wire format, composite/v1"
_TPM: Final = ProviderName("tpm")


def merge_results(
    checks: Checks,
    request: NodeRequest,
    attested: Mapping[ProviderName, AttestedNode],
    first: FirstRequestRef,
    machines: Mapping[ProviderName, MachineName],
) -> AttestedNode:
    """Make one of the parts' results.

    1. Each is of its own provider, and of the machine that the request names. 2. Those that prove a node name prove the
    same. 3. So do those that prove a Machine, which ``machines`` names by part.
    """
    for name, node in attested.items():  # 1
        checks.require(
            node.provider == name and node.provider_id == request.csr.provider_id,
            f"{name}: of this machine",
            section=_SECTION,
            reason=Reason.PLATFORM_INSTANCE_MISMATCH,
            expected=f"a proof by {name} of {request.csr.provider_id}",
            got=f"one by {node.provider} of {node.provider_id}",
            remedy="attest the same machine by every part",
        )
    names = sorted({node.proven_node_name for node in attested.values() if node.proven_node_name is not None})
    checks.require(  # 2
        len(names) <= 1,
        "one node name",
        section=_SECTION,
        reason=Reason.NODE_NAME_MISMATCH,
        expected="parts that prove one node name, or none",
        got=" and ".join(names) or "none",
        remedy="attest the same machine by every part",
    )
    machine_names = sorted(set(machines.values()))
    checks.require(  # 3
        len(machine_names) <= 1,
        "one Machine",
        section=_SECTION,
        reason=Reason.EVIDENCE_FOR_OTHER_MACHINE,
        expected="parts that prove one Machine, or none",
        got=" and ".join(map(printable, machine_names)) or "none",
        remedy="attest the same machine by every part",
    )
    return AttestedNode(
        provider=PROVIDER,
        provider_id=request.csr.provider_id,
        proven_node_name=names[0] if names else None,
        proven_machine_name=machine_names[0] if machine_names else None,
        fingerprints={
            f"{name}.{kind}": value for name, node in attested.items() for kind, value in node.fingerprints.items()
        },
        boot=_boot(attested),
        first_request=first,
        checks=checks.record(),
    )


def _boot(attested: Mapping[ProviderName, AttestedNode]) -> BootState | None:
    if _TPM in attested:
        return attested[_TPM].boot
    return next((node.boot for _, node in sorted(attested.items()) if node.boot is not None), None)
