"""The objects that keep bootstrap tokens from the in-tree signer, before kubeadm grants them its approval.

The ClusterRole that kubeadm binds is emptied and kept so by an annotation, which also stops earlier requests. A
ValidatingAdmissionPolicy refuses to create such a request at all. ``in_force`` verifies both.
Source: kubernetes rbac/v1/types.go (AutoUpdateAnnotationKey), apiserver pkg/admission/plugin/policy/validating.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from nodeattest_controller.controllers.auto_approval import decide
from nodeattest_kube import paths
from nodeattest_kube.access_review import ResourceAttributes, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from nodeattest_parsing.objects import items, mapping, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue

IN_TREE_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
POLICY_NAME: Final = "nodeattest-refuse-in-tree-bootstrap"
CHECK_NAME: Final = "nodeattest-admission-check"
"""Of the request that is filed as a dry run, and refused, where the policy is in force."""
EXPRESSION: Final = (
    f"object.spec.signerName != '{IN_TREE_SIGNER}' || !("
    f"(has(request.userInfo.groups) && '{decide.BOOTSTRAP_GROUP}' in request.userInfo.groups)"
    f" || (has(request.dryRun) && request.dryRun"
    f" && has(object.metadata.name) && object.metadata.name == '{CHECK_NAME}'))"
)
"""The check has a clause in the same expression: its refusal proves that this expression is evaluated.

An object that asks for a generated name has none yet; what cannot be evaluated is refused (``failurePolicy``).
"""
_MESSAGE: Final = f"nodes of this cluster join by attestation: bootstrap tokens file no requests for {IN_TREE_SIGNER}"
_ADMISSION: Final = ("admissionregistration.k8s.io", "v1")
_POLICIES: Final = "validatingadmissionpolicies"
_BINDINGS: Final = "validatingadmissionpolicybindings"
_ROLE: Final = paths.object_path(decide.RBAC_GROUP, "v1", "clusterroles", decide.NODE_CLIENT_ROLE)
_AUTO_UPDATE: Final = "rbac.authorization.kubernetes.io/autoupdate"
_SUSPENDED: Final = "attestation.cluster.x-k8s.io/suspended"
_ROLE_RULES: Final[list[JsonValue]] = [
    {"apiGroups": [decide.CSR_GROUP], "resources": [f"{decide.CSR_RESOURCE}/nodeclient"], "verbs": ["create"]}
]


class ApprovalBlock:
    """Installs, verifies and removes the block in one workload cluster; every method raises ApiError."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._request = _check_request()

    async def install(self) -> None:
        """Create the block, or correct it. What one part is refused does not keep the other away."""
        refused: ApiError | None = None
        try:
            await self._suspend_role()
        except ApiError as error:
            refused = error
        await self._apply(_POLICIES, _policy())
        await self._apply(_BINDINGS, _binding())
        if refused is not None:
            raise refused

    async def in_force(self) -> bool:
        """Return whether the role grants nothing and the API server refuses a dry run."""
        role = await self._role()
        if role is not None and decide.permissions_of_role(role):
            return False
        path = paths.collection_path(decide.CSR_GROUP, "v1", decide.CSR_RESOURCE)
        try:
            await self._client.create(f"{path}?dryRun=All", self._request)
        except (Forbidden, Invalid) as refusal:
            if f"ValidatingAdmissionPolicy '{POLICY_NAME}'" in refusal.message:
                return True
            raise
        return False

    async def remove(self) -> None:
        """Remove the block, where there is one.

        The role's rule comes back at once where our account may write it, and else when an API server starts next.
        """
        for resource in (_BINDINGS, _POLICIES):
            with suppress(NotFound):
                await self._client.delete(paths.object_path(*_ADMISSION, resource, POLICY_NAME))
        role = await self._role()
        if role is None or _SUSPENDED not in text_map(role, "metadata", "annotations"):
            return
        # RBAC lets an account write a role only if it has the permissions that the role grants.
        granted = ResourceAttributes(
            verb="create", group=decide.CSR_GROUP, resource=decide.CSR_RESOURCE, subresource="nodeclient"
        )
        rules: JsonObject = {"rules": _ROLE_RULES} if await is_access_allowed(self._client, granted) else {}
        await self._client.merge_patch(_ROLE, {**_role_patch(role, {_AUTO_UPDATE: "true", _SUSPENDED: None}), **rules})

    async def _apply(self, resource: str, wanted: JsonObject) -> None:
        """Create the object of this name, or replace it where its spec differs."""
        path = paths.object_path(*_ADMISSION, resource, POLICY_NAME)
        try:
            found = await self._client.get(path)
        except NotFound:
            with suppress(AlreadyExists):  # by another replica, with this spec
                await self._client.create(paths.collection_path(*_ADMISSION, resource), wanted)
            return
        if mapping(found, "spec") != wanted["spec"]:
            version: JsonObject = {"name": POLICY_NAME, "resourceVersion": text(found, "metadata", "resourceVersion")}
            await self._client.replace(path, {**wanted, "metadata": version})

    async def _role(self) -> JsonObject | None:
        """Return the ClusterRole; None where somebody deleted it: a binding to it grants nothing until it is back."""
        try:
            return await self._client.get(_ROLE)
        except NotFound:
            return None

    async def _suspend_role(self) -> None:
        role = await self._role()
        if role is None:
            return
        is_suspended = text_map(role, "metadata", "annotations").get(_AUTO_UPDATE) == "false"
        if not is_suspended or items(role, "rules"):
            patch = _role_patch(role, {_AUTO_UPDATE: "false", _SUSPENDED: "true"})
            await self._client.merge_patch(_ROLE, {**patch, "rules": []})


def _role_patch(role: JsonObject, annotations: JsonObject) -> JsonObject:
    version = text(role, "metadata", "resourceVersion")
    return {"metadata": {"resourceVersion": version, "annotations": annotations}}


def _policy() -> JsonObject:
    """Make the policy, with the defaults of the API server written out, so that it can be compared."""
    rule: JsonObject = {
        "apiGroups": [decide.CSR_GROUP],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [decide.CSR_RESOURCE],
        "scope": "*",
    }
    return {
        "apiVersion": "/".join(_ADMISSION),
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY_NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": [rule],
            },
            "validations": [{"expression": EXPRESSION, "message": _MESSAGE, "reason": "Forbidden"}],
        },
    }


def _binding() -> JsonObject:
    return {
        "apiVersion": "/".join(_ADMISSION),
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY_NAME},
        "spec": {"policyName": POLICY_NAME, "validationActions": ["Deny"]},
    }


def _check_request() -> JsonObject:
    """Make the request of the dry run: valid, and none that the in-tree approver would recognize (it has no O)."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CHECK_NAME)])
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return {
        "apiVersion": f"{decide.CSR_GROUP}/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": CHECK_NAME},
        "spec": {
            "signerName": IN_TREE_SIGNER,
            "usages": ["digital signature", "key encipherment", "client auth"],
            "request": base64.b64encode(csr.public_bytes(Encoding.PEM)).decode(),
        },
    }
