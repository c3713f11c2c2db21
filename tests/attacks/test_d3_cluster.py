"""D1 to D3 at a running controller: whatever the API server stores must end with the very reason of its row.

All are filed in one go, each is then awaited; the bytes are those that the parsers were attacked with.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest
from apiserver_kit import condition, csr_object
from attacked_world import becomes, controlled, file_object, stays
from cases import attacks
from catalogue import ROWS, Row, Verdict
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Filed, Wanted, file_request
from polling import eventually
from spoilt_envelopes import ENVELOPES
from spoilt_objects import OBJECTS
from spoilt_requests import REQUESTS
from world import CSRS, World

from nodeattest_parsing.objects import mapping
from nodeattest_providers import pem, pkcs10
from nodeattest_providers.envelope import LABELS
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, ANNOTATION_REASON, ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at

SERVED: Final[JsonMap] = {
    "signerName": "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure",
    "usages": ["digital signature", "client auth"],
}


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def enveloped(der: bytes) -> bytes:
    return pem.encode(zip(LABELS, (der, b"insecure/v1", b"{}"), strict=True))


def stored_specs() -> dict[str, JsonMap]:
    """Collect what the API server stores and a signer of ours receives."""
    specs: dict[str, JsonMap] = {row: {**SERVED, "request": encoded(raw)} for row, raw in ENVELOPES.items()}
    specs |= {row: {**SERVED, "request": encoded(enveloped(der))} for row, der in REQUESTS.items()}
    for row, value in OBJECTS.items():
        spec = dict(mapping(value, "spec"))
        specs[row] = {name: spec[name] for name in ("signerName", "usages", "request")}
    ours = ("cluster.x-k8s.io/kube-apiserver-client", "cluster.x-k8s.io/kubelet-serving-tpm")
    return {
        row: spec
        for row, spec in specs.items()
        if ROWS[row].api == "stored" and text_at(spec, "signerName").startswith(ours)
    }


SPECS: Final = stored_specs()


@pytest.fixture(scope="module")
def guarded(world: World) -> Iterator[World]:
    """The world, with a controller in it."""
    with controlled(world, "d3.log", authorizedAttestors=["insecure"]):
        yield world


@pytest.fixture(scope="module")
def filed(guarded: World) -> Mapping[str, Filed]:
    client = guarded.workload.client(guarded.workload.token_kubeconfig(guarded.token()))
    return {row: file_object(guarded, client, spec) for row, spec in SPECS.items()}


@pytest.mark.parametrize(("row", "spec"), attacks(SPECS))
def test_what_the_api_server_stores_ends_with_its_reason(filed: Mapping[str, Filed], row: Row, spec: JsonMap) -> None:
    assert spec
    becomes(filed[row.id], row)


# What others do to a request beside the controller


def decide(world: World, filed: Filed, kind: str) -> None:
    body = filed.read()
    map_at(body, "status")["conditions"] = [condition(kind, reason="Somebody")]
    world.workload_admin.replace(f"{CSRS}/{filed.name}/approval", body)


def waiting(world: World, node: str, provider_id: str = "") -> Filed:
    """A request whose Machine is not there yet, so that there is time to meddle with it."""
    filed = file_request(world, Wanted(node=node, provider_id=provider_id))
    eventually(lambda: filed.annotation(ANNOTATION_REASON), what="the wait")
    return filed


def approved_by_a_human(world: World) -> Filed:
    filed = waiting(world, "approved")
    decide(world, filed, "Approved")
    world.machine("approved")
    return filed


def denied_by_a_human(world: World) -> Filed:
    filed = waiting(world, "denied")
    decide(world, filed, "Denied")
    world.machine("denied")
    return filed


def with_an_odd_condition(world: World) -> Filed:
    filed = waiting(world, "somebody", "sandbox://odd")
    decide(world, filed, "Immortal")
    world.machine("odd")
    return filed


def for_another_signer(signer: str) -> Callable[[World], Filed]:
    def attempt(world: World) -> Filed:
        body = csr_object(signer.replace("/", "."), signerName=signer)
        return Filed(world, text_at(world.workload_admin.create(CSRS, body), "metadata", "name"))

    return attempt


def with_forged_annotations(world: World) -> Filed:
    forged = {ANNOTATION_CHALLENGE: "{}", ANNOTATION_REASON: "fine", ANNOTATION_TPM_ENDORSEMENT_KEY: "mine"}
    return file_request(world, Wanted(node="forged"), annotations=forged)


def with_fat_metadata(world: World) -> Filed:
    world.machine("fat")
    client = world.workload.client(world.workload.token_kubeconfig(world.token()))
    der = pkcs10.build_csr(ec.generate_private_key(ec.SECP256R1()), "fat", "sandbox://fat")
    metadata: JsonMap = {
        "annotations": {f"a-{number}": "x" * 20_000 for number in range(10)},
        "finalizers": ["example.com/hold"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "somebody"}],
    }
    return file_object(world, client, {**SERVED, "request": encoded(enveloped(der))}, metadata)


def for_68_years(world: World) -> Filed:
    world.machine("methuselah")
    return file_request(world, Wanted(node="methuselah"), expirationSeconds=2147483647)


MEDDLING: Final[Mapping[str, Callable[[World], Filed]]] = {
    "D3-73": approved_by_a_human,
    "D3-74": denied_by_a_human,
    "D3-75": with_an_odd_condition,
    "D3-76": for_another_signer("kubernetes.io/kube-apiserver-client-kubelet"),
    "D3-77": for_another_signer("example.com/kube-apiserver-client-kubelet-insecure"),
    "D3-81": for_another_signer("cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm2"),
    "D3-78": with_forged_annotations,
    "D3-79": with_fat_metadata,
    "D3-80": for_68_years,
}


@pytest.fixture(scope="module")
def meddled(guarded: World) -> Mapping[str, Filed]:
    return {row: attempt(guarded) for row, attempt in MEDDLING.items()}


@pytest.mark.parametrize(("row", "attempt"), attacks(MEDDLING))
def test_who_meddles_gets_nothing_by_it(meddled: Mapping[str, Filed], row: Row, attempt: object) -> None:
    assert attempt
    filed = meddled[row.id]
    if row.expected.verdict is Verdict.IGNORE:
        stays(filed)
        return
    becomes(filed, row)


def test_a_wish_for_68_years_is_clamped_to_the_in_tree_signers_year(meddled: Mapping[str, Filed]) -> None:
    pem_text = base64.b64decode(
        eventually(lambda: text_at(meddled["D3-80"].read(), "status", "certificate"), what="it")
    )
    certificate = x509.load_pem_x509_certificate(pem_text)
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 366
