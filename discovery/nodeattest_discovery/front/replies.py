"""What the front answers to a good question, as bytes. Pure.

Promises: the signed answer is the final entity, not
to be encoded any further, because ``X-Kubernetes-JWS`` covers these very bytes.
Source: companion proposal 000, "JWS content signing".
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import JsonObject, dig, dig_text
from nodeattest_serving.replies import Reply, refusal

__all__ = ["SIGNATURE", "found"]

SIGNATURE: Final = "X-Kubernetes-JWS"


def found(config_map: JsonObject, token: BootstrapToken) -> Reply:
    """Show cluster-info, signed with the token of whoever asked; 404 where there is no kubeconfig in it."""
    if not dig_text(config_map, "data", clusterinfo.KUBECONFIG_KEY):
        return refusal(HTTPStatus.NOT_FOUND)
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    shown: JsonObject = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {name: value for name in names if (value := dig(config_map, "metadata", name)) is not None},
        "data": dig(config_map, "data"),
    }
    body = _text(shown)
    return Reply(status=HTTPStatus.OK, body=body, headers={SIGNATURE: jws.sign(body, token)})


def _text(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
