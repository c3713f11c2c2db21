"""What ``nodeattest doctor --fix`` does: create our CustomResourceDefinitions that are not there, and nothing else.

Promises: nothing that exists is changed, nothing grants a right, and nothing is deleted. A definition is created only
where every running controller says that it is of this version, or where there is no Lease of one: another version may
want another schema.
Leaves to people: rights (they decide who may sign), policies (they decide who may join), bindings of automatic approval
(the controller deletes them when every Node is attested), clocks, and a definition of another release (kubectl apply).
"""

from __future__ import annotations

from nodeattest_cli.doctor.definitions import missing
from nodeattest_cli.doctor.facts import HealthFacts, Unread
from nodeattest_cli.doctor.renewals import leader_leases
from nodeattest_cli.doctor.versions import running_versions
from nodeattest_controller.model.objects import text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import __version__

__all__ = ["create_definitions", "safe_fixes"]


def safe_fixes(facts: HealthFacts) -> list[JsonObject]:
    """Return the definitions to create."""
    leases = facts.management.leases
    if isinstance(leases, Unread):
        return []
    own = not leader_leases(facts) or set(running_versions(facts)) == {__version__}
    return missing(facts) if own else []


async def create_definitions(client: ApiClient, definitions: list[JsonObject]) -> list[str]:
    """Create them; returns their names. Raises ``ApiError``."""
    path = paths.collection_path("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    for definition in definitions:
        await client.create(path, definition)
    return [text(one, "metadata", "name") for one in definitions]
