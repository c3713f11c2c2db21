"""The controller ``issuer`` in the controller's process: documents in a place, an Event where nobody sees them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from issuer_kit import new_key, upstream
from polling import until
from world import World

from nodeattest_identity.issuer.documents import documents
from nodeattest_sandbox.apiserver.jsonvalue import text_at

BASE = "https://127.0.0.1:1/fleet"
"""Where nobody listens."""
CONFIGURATION = f"""\
apiVersion: config.nodeattest.x-k8s.io/v1alpha1
kind: NodeAttestationControllerConfiguration
issuerBase: {BASE}
"""


async def test_a_cluster_of_the_fleet_is_published_and_its_event_says_that_nobody_sees_it(
    world: World, tmp_path: Path
) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    place, config, issuer = tmp_path / "place", tmp_path / "config.yaml", f"{BASE}/fleet/c1"
    place.mkdir()
    config.write_text(f"{CONFIGURATION}issuerPlace: dir:{place}\n")
    flags = ("--config", str(config), "--leader-elect", "false", "--controllers", "issuer")
    async with upstream(issuer, [new_key()], tmp_path / "api") as there:
        with routed(world, there.kubeconfig), world.controller(*flags, log="issuer.log") as controller:
            jwks = place / "fleet/c1/openid/v1/jwks"
            await until((place / "fleet/c1/.well-known/openid-configuration").exists)
            assert jwks.read_bytes() == documents(issuer, f"{issuer}/openid/v1/jwks", there.documents.keys).jwks
            await until(lambda: "IssuerNotPublished" in reasons(world))
            await until(lambda: controller.said("published an issuer's documents"))
    assert {path for path, _ in there.asked} == {"/.well-known/openid-configuration", "/openid/v1/jwks"}


@contextmanager
def routed(world: World, kubeconfig: bytes) -> Generator[None]:
    """Let the controller reach the workload cluster by another kubeconfig, for as long as this test lasts."""
    world.route_workload(kubeconfig)
    try:
        yield
    finally:
        world.route_workload(world.workload.admin_kubeconfig.read_bytes())


def reasons(world: World) -> set[str]:
    """Tell why there are Events on Clusters."""
    return {text_at(event, "reason") for event in world.admin.list("/api/v1/namespaces/fleet/events")}
