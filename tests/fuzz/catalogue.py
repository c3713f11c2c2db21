"""Every target by its name. A parser that reads bytes of others belongs here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fuzz import (
    addon_gateway,
    addon_proxy,
    admission,
    agent,
    agent_discovery,
    aws,
    azure,
    bootstrap,
    cli,
    controller,
    discovery,
    discovery_front,
    discovery_node,
    gcp,
    identity_tokens,
    issuer_publish,
    kube,
    oci,
    tpm,
    tpm_device,
    wire,
)
from fuzz.target import Target

CORPUS: Final = Path(__file__).parents[1] / "vectors" / "fuzz"
"""A folder of seeds for each target; what a fuzzer or a bug found stays beside them."""

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        *wire.TARGETS,
        *admission.TARGETS,
        *tpm.TARGETS,
        *tpm_device.TARGETS,
        *controller.TARGETS,
        *kube.TARGETS,
        *cli.TARGETS,
        *agent.TARGETS,
        *agent_discovery.TARGETS,
        *aws.TARGETS,
        *azure.TARGETS,
        *bootstrap.TARGETS,
        *gcp.TARGETS,
        *oci.TARGETS,
        *discovery.TARGETS,
        *discovery_front.TARGETS,
        *discovery_node.TARGETS,
        *issuer_publish.TARGETS,
        *addon_gateway.TARGETS,
        *addon_proxy.TARGETS,
        *identity_tokens.TARGETS,
    )
}


def seeds_of(target: Target) -> list[Path]:
    """List the seeds of a target."""
    return sorted(path for path in (CORPUS / target.name).glob("*") if path.is_file())
