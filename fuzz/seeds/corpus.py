"""All seeds that are made, by their path in the corpus."""

from __future__ import annotations

from fuzz.seeds import (
    addon_gateway,
    addon_proxy,
    agent,
    aws,
    azure,
    bootstrap,
    cli,
    discovery,
    discovery_front,
    discovery_node,
    gcp,
    identity_tokens,
    issuer_publish,
    objects,
    oci,
    signed,
    tpm,
    tpm_device,
    wire,
)

__all__ = ["files"]


def files() -> dict[str, bytes]:
    """Return contents by path under the corpus."""
    made = wire.seeds() | signed.seeds() | tpm.seeds() | objects.seeds() | agent.seeds() | addon_proxy.seeds()
    made |= aws.seeds() | azure.seeds() | gcp.seeds() | discovery.seeds() | discovery_front.seeds() | cli.seeds()
    made |= discovery_node.seeds() | bootstrap.seeds() | addon_gateway.seeds() | identity_tokens.seeds()
    made |= issuer_publish.seeds() | tpm_device.seeds() | oci.seeds()
    return {f"{name}/made-{number:02}": seed for name, seeds in made.items() for number, seed in enumerate(seeds)}
