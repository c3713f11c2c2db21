"""What a front knows of its cluster: tokens and nothing else of kube-system, and for how long."""

from __future__ import annotations

import asyncio
import time

from polling import until

from nodeattest_discovery.front.cluster_cache import ClusterCache
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name, stored_token
from nodeattest_discovery.token import generate
from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane

SECRETS = "/api/v1/namespaces/kube-system/secrets"


async def test_tokens_are_known_and_what_was_read_last_is_good_for_a_bounded_time(control_plane: ControlPlane) -> None:
    admin, made, passed = control_plane.client(), generate(), [0.0]
    metadata: JsonMap = {"name": secret_name(made.id), "annotations": {"a": "b"}}
    secret: JsonMap = {"metadata": metadata, "type": SECRET_TYPE, "data": {**encode(TokenSecret(token=made))}}
    await asyncio.to_thread(admin.create, SECRETS, secret)
    opaque: JsonMap = {"metadata": {"name": "bootstrap-token-opaque"}, "data": {"a": "Yg=="}}
    await asyncio.to_thread(admin.create, SECRETS, opaque)
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        view = ClusterCache(client, max_stale=300, clock=lambda: time.monotonic() + passed[0])
        assert view.unready_reason() == "the tokens of the cluster were not read yet"
        assert view.token(made.id) is None
        task = asyncio.create_task(view.run())
        try:
            await until(lambda: view.unready_reason() is None, "a cluster that was read")
            known = view.token(made.id)
            assert known is not None
            assert stored_token(known) == made
            assert set(known) == {"metadata", "type", "data"}
            assert known["metadata"].keys() <= {"name", "namespace", "uid", "resourceVersion"}  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue, reportUnknownMemberType] - an object of the API
            assert view.token("opaque") is None
            passed[0] = 301.0
            assert view.unready_reason() == "no contact to the API server about tokens for more than 300 s"
        finally:
            task.cancel()
            await asyncio.wait([task])
    for name in (secret_name(made.id), "bootstrap-token-opaque"):
        await asyncio.to_thread(admin.send, "DELETE", f"{SECRETS}/{name}")
