"""D8: the real agent, handed wrong certificates, wrong callers, a spoilt cache and a hostile or silent API server."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Final

import pytest
from agent_cluster import FakeApi, filed_ids, tells_provider_id
from agent_machine import NODE, Machine, certificate
from catalogue import Row, Verdict, attacks
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from lying_servers import Ca
from polling import eventually

from nodeattest_providers.challenge.protocol import Challenge

Done = subprocess.CompletedProcess[str]
Attack = Callable[[Machine], Done]
Answer = Callable[[FakeApi, str], None]
OTHERS: Final = Ca("other")


@pytest.fixture(scope="module")
def authority() -> Ca:
    return Ca()


@pytest.fixture
def machine(tmp_path: Path, authority: Ca) -> Generator[Machine]:
    with FakeApi(authority) as api:
        yield Machine(tmp_path, api).prepare()


# Certificates that the cluster, or somebody in its place, sends


def handed(answer: Answer) -> Attack:
    def attack(machine: Machine) -> Done:
        machine.api.on_create = answer
        return machine.run()

    return attack


def signed(**changes: object) -> Attack:
    return handed(lambda api, name: api.sign(name, **changes))  # pyright: ignore[reportArgumentType] - options of Ca.client


def for_another_key(api: FakeApi, name: str) -> None:
    api.set_certificate(name, api.authority.client(ec.generate_private_key(ec.SECP256R1()).public_key(), NODE))


def twice(api: FakeApi, name: str) -> None:
    key = x509.load_der_x509_csr(api.envelope(name)[0].der).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    api.set_certificate(name, api.authority.client(key, NODE) + api.authority.client(key, NODE))


# Calls that client-go would not make for this cluster


def called(info: Callable[[Machine], str]) -> Attack:
    return lambda machine: machine.run(info=info(machine))


# The cache


def open_cache(machine: Machine) -> Done:
    machine.cache.chmod(0o755)
    return machine.run()


def linked_cache(machine: Machine) -> Done:
    machine.cache.rename(machine.folder / "real")
    machine.cache.symlink_to(machine.folder / "real")
    return machine.run()


def open_token(machine: Machine) -> Done:
    machine.cache.joinpath("bootstrap-token").chmod(0o644)
    return machine.run()


def spoilt(spoil: Callable[[Machine], object]) -> Attack:
    """A stored credential with one thing wrong: it must not be answered with, and nothing may break."""

    def attack(machine: Machine) -> Done:
        machine.store()
        spoil(machine)
        planted = machine.file("credential")
        done = machine.run()
        assert machine.api.posts() == 1
        assert certificate(done.stdout).encode() not in planted
        return done

    return attack


def world_readable(machine: Machine) -> None:
    machine.cache.joinpath("credential").chmod(0o644)


def cut(machine: Machine) -> None:
    machine.write("credential", machine.file("credential")[:-100])


def link(machine: Machine) -> None:
    path = machine.cache / "credential"
    path.rename(machine.folder / "elsewhere")
    path.symlink_to(machine.folder / "elsewhere")


# The API server


def of_another_ca(machine: Machine) -> Done:
    other = OTHERS.pem.decode()
    ca = base64.b64encode(OTHERS.pem).decode()
    return machine.prepare(certificateAuthority=other).run(info=machine.info(**{"certificate-authority-data": ca}))


def after_a_denial(machine: Machine) -> Done:
    machine.api.on_create = lambda api, name: api.deny(name, "MachineNotFound")
    answers = [machine.run() for _ in range(5)]
    assert all("MachineNotFound" in done.stderr for done in answers)
    assert machine.api.posts() == 1
    return answers[-1]


def all_at_once(machine: Machine) -> Done:
    processes = [machine.start() for _ in range(12)]
    answers = {process.communicate(timeout=120)[0] for process in processes}
    assert len(answers) == machine.api.posts() == 1
    return Done([], processes[0].returncode, answers.pop(), "")


def squatted(machine: Machine) -> Done:
    """Somebody files a request of his own as soon as the node's name is known, here: before it can."""
    honest = machine.api.create

    def create_in_the_way(document: dict[str, object], username: str) -> dict[str, object] | None:
        if not machine.api.objects:
            metadata = document["metadata"]
            assert isinstance(metadata, dict)
            spec = {"request": base64.b64encode(b"another").decode(), "signerName": "example.com/other"}
            machine.api.on_create = lambda _, __: None
            honest({"metadata": {"name": metadata["name"]}, "spec": spec}, "system:bootstrap:zzzzzz")
            time.sleep(0.05)
            machine.api.on_create = lambda api, name: api.sign(name)
        return honest(document, username)

    machine.api.create = create_in_the_way
    return machine.run()


def with_anothers_challenge(machine: Machine) -> Done:
    machine.challenged(timeoutSeconds=5)
    foreign = Challenge(uid="of-somebody-else", spki_sha256="sha256:" + "0" * 64, nonce=b"n" * 32).to_text()
    machine.api.on_create = lambda api, name: api.annotate(name, challenge=foreign)
    done = machine.run()
    assert machine.api.posts() == 1
    return done


def hanging(machine: Machine) -> Done:
    machine.prepare(timeoutSeconds=4)
    machine.api.hangs = True
    return machine.run()


def undecided(machine: Machine) -> Done:
    machine.prepare(timeoutSeconds=4)
    machine.api.on_create = lambda api, name: api.annotate(name, reason="MachineNotReady: wait")
    return machine.run()


def downgraded(machine: Machine) -> Done:
    def refuse(api: FakeApi, name: str) -> None:
        api.annotate(name, supported_versions="insecure/v0")
        api.deny(name, "EvidenceVersionUnsupported")

    machine.api.on_create = refuse
    done = machine.run()
    assert machine.api.posts() == 1
    return done


# A provider ID that the controller tells


def without_provider_id(machine: Machine, answer: Answer) -> Done:
    machine.prepare(providerID=None)
    machine.api.on_create = answer
    return machine.run()


def pending(api: FakeApi, name: str) -> None:
    api.annotate(name, provider_id="sandbox://victim")
    api.sign(name)


def files(*ids: str, told: Answer) -> Attack:
    """Require the provider IDs of the requests that the agent files, which knows none at first."""

    def attack(machine: Machine) -> Done:
        done = without_provider_id(machine, told)
        assert filed_ids(machine.api) == [*ids]
        return done

    return attack


def told_though_known(machine: Machine) -> Done:
    machine.api.on_create = tells_provider_id("sandbox://victim", to=None)
    done = machine.run()
    assert filed_ids(machine.api) == ["sandbox://machine-0"]
    return done


def told_again(machine: Machine) -> Done:
    """The node has lost its credential, not what it was told, and joins again by its token."""
    assert without_provider_id(machine, tells_provider_id("sandbox://1")).returncode == 0
    (machine.cache / "credential").unlink()
    done = without_provider_id(machine, tells_provider_id("sandbox://victim", to=None))
    assert filed_ids(machine.api) == ["", "sandbox://1", "sandbox://1"]
    return done


def told_by_anothers_object(machine: Machine) -> Done:
    def replaced(api: FakeApi, name: str) -> None:
        item = api.objects[name]
        if api.posts() > 1:
            api.sign(name)
            return
        eventually(lambda: any(each.startswith("GET") for each in api.requests), "the node's watch")
        api.delete(name)
        api.on_create = lambda _, __: None
        api.create({"metadata": {"name": name}, "spec": item["spec"]}, "system:bootstrap:zzzzzz")
        api.on_create = replaced
        tells_provider_id("sandbox://victim", to=None)(api, name)

    machine.api.hides_deletions = True  # the node's watch begins too late to show it
    done = without_provider_id(machine, replaced)
    assert set(filed_ids(machine.api)) == {""}
    return done


DAY: Final = 86400.0

CASES: Final[Mapping[str, Attack]] = {
    "D8-41": handed(for_another_key),
    "D8-42": signed(node="victim"),
    "D8-43": signed(node=f"{NODE}.evil"),
    "D8-44": signed(organization="system:masters"),
    "D8-45": signed(is_ca=True),
    "D8-46": signed(usage=ExtendedKeyUsageOID.SERVER_AUTH),
    "D8-47": signed(by=OTHERS),
    "D8-48": handed(twice),
    "D8-49": handed(lambda api, name: api.set_certificate(name, b"no certificate")),
    "D8-50": signed(starts=-2 * DAY, lasts=-DAY),
    "D8-51": signed(starts=DAY, lasts=2 * DAY),
    "D8-52": lambda machine: subprocess.run(
        machine.arguments(), env=machine.environment(None), capture_output=True, text=True, timeout=120, check=False
    ),
    "D8-53": called(lambda machine: machine.info("v1alpha1")),
    "D8-54": called(lambda machine: json.dumps({**json.loads(machine.info()), "kind": "TokenReview"})),
    "D8-55": called(lambda machine: machine.info(server="https://10.0.0.1:6443")),
    "D8-56": called(lambda machine: machine.info(server=machine.api.url.replace("https", "http"))),
    "D8-57": called(lambda machine: machine.info("v1", **{"insecure-skip-tls-verify": True})),
    "D8-58": called(
        lambda machine: machine.info(**{"certificate-authority-data": base64.b64encode(OTHERS.pem).decode()})
    ),
    "D8-59": called(lambda machine: machine.info(**{"tls-server-name": "evil"})),
    "D8-60": open_cache,
    "D8-61": linked_cache,
    "D8-62": open_token,
    "D8-63": of_another_ca,
    "D8-64": spoilt(world_readable),
    "D8-65": spoilt(link),
    "D8-66": spoilt(cut),
    "D8-67": spoilt(lambda machine: machine.store(other_key=True)),
    "D8-68": spoilt(lambda machine: machine.store(authority=OTHERS)),
    "D8-69": spoilt(lambda machine: machine.store(node="node-1")),
    "D8-70": spoilt(lambda machine: machine.write("credential", b"x" * (1 << 20))),
    "D8-71": after_a_denial,
    "D8-72": all_at_once,
    "D8-73": squatted,
    "D8-74": with_anothers_challenge,
    "D8-75": hanging,
    "D8-76": undecided,
    "D8-77": downgraded,
    "D8-109": files("", told=pending),
    "D8-110": told_though_known,
    "D8-111": files("", told=tells_provider_id("sandbox://1\n\u202e2")),
    "D8-112": files("", "sandbox://1", told=tells_provider_id("sandbox://1", to=None)),
    "D8-113": told_again,
    "D8-114": told_by_anothers_object,
}


def test_the_machine_that_the_attacks_spoil_gets_its_credential(machine: Machine) -> None:
    machine.challenged()
    assert certificate(machine.run().stdout)


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
def test_the_agent_takes_nothing_wrong_and_always_ends(machine: Machine, row: Row, attack: Attack) -> None:
    done = attack(machine)
    match row.expected.verdict:
        case Verdict.DENY:
            assert done.returncode != 0
            assert done.stdout == ""
            assert f"{row.expected.reason}:" in done.stderr
        case Verdict.SHED:
            assert "PRIVATE" not in done.stderr
        case _:
            assert done.returncode == 0, done.stderr
            assert certificate(done.stdout)
