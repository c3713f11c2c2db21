"""What is behind an object's reference: which resource its kind is served as, and a pool's infrastructure.

Leaves caching to the caller. Source: apimachinery APIResourceList; cluster-api contract, "v1beta2
references name a group only".
"""

from __future__ import annotations

from nodeattest_controller.model.machine_view import ContractReference, instances_have_machines
from nodeattest_controller.model.objects import items, text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound

__all__ = ["makes_machines", "path_of_reference", "served_resource"]


async def makes_machines(client: ApiClient, reference: ContractReference, namespace: str) -> bool:
    """Read a MachinePool's infrastructure object for ``instances_have_machines``; what does not exist makes none.

    Raises ApiError.
    """
    try:
        infra = await client.get(await path_of_reference(client, reference, namespace))
    except NotFound:
        return False
    return instances_have_machines(infra)


async def path_of_reference(client: ApiClient, reference: ContractReference, namespace: str) -> str:
    """Return the path of the object that is referred to; raises NotFound where nobody serves its kind, or ApiError."""
    if not paths.is_segment(reference.name):
        raise _not_served(reference)
    version, resource = await served_resource(client, reference)
    return paths.object_path(reference.group, version, resource, reference.name, namespace=namespace)


async def served_resource(client: ApiClient, reference: ContractReference) -> tuple[str, str]:
    """Return a version that serves a kind, and the kind's resource; raises NotFound where none does, or ApiError.

    Infrastructure providers share a group, and each has versions of its own: the group's preferred version, which is
    listed first, does not serve all its kinds.
    """
    if not paths.is_segment(reference.group):
        raise _not_served(reference)
    versions = [reference.version]
    if not reference.version:
        served = await client.get(paths.api_group(reference.group))
        versions = [text(version, "version") for version in items(served, "versions")]
    for version in filter(paths.is_segment, versions):
        for resource in items(await client.get(paths.api_group(reference.group, version)), "resources"):
            if text(resource, "kind") == reference.kind and "/" not in text(resource, "name"):
                return version, text(resource, "name")
    raise _not_served(reference)


def _not_served(reference: ContractReference) -> NotFound:
    where = f"{reference.group}/{reference.version}".rstrip("/")
    return NotFound(404, "NotFound", f"{where} serves no {reference.kind} {reference.name}".rstrip())
