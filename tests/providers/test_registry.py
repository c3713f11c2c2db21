"""The table of providers, third parties beside it, and the providers that prove nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from worlds import FACTS, KEY, PIN, denied_for, filed

from nodeattest_providers import registry
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID, ProviderName, Purpose, evidence_block, signer_for
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.node_interface import Attestor, Binding, Evidence
from nodeattest_providers.platform import OFFLINE, Platform, make_signer

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN.keys() - {"insecure"}))
def test_settings_that_a_provider_does_not_know_are_denied(name: str) -> None:
    for refuse in (
        lambda: make_signer(ProviderName(name)).check_settings({"unknown": 1}),
        lambda: make_signer(ProviderName(name), Platform(settings={"unknown": 1})),
    ):
        with denied_for(Reason.POLICY_INVALID):
            refuse()


@pytest.mark.parametrize("name", ["null", "", "nobody", "nodeattest_providers.null.verifier:NullSigner", "../x", "x\0"])
def test_an_unknown_name_is_denied(name: str) -> None:
    for find in (lambda: make_signer(ProviderName(name)), lambda: registry.make_attestor(ProviderName(name), {})):
        with denied_for(Reason.SIGNER_UNKNOWN):
            find()


_MODULE = """
from nodeattest_providers.node_interface import Attestor, Evidence
from nodeattest_providers.verifier_interface import ClusterAPISigner

class Acme(ClusterAPISigner, Attestor):
    provider = "acme"
    versions = (2, 1)
    async def verify_client_attestation_data(self, request, facts): ...
    def __init__(self, settings=None): self.settings = settings
    def attest(self, binding, challenge=None): return Evidence(self.provider, 2, {})
    def in_version(self, version): return self
    def close(self): self.is_closed = True

class Asking(Acme):
    provider, takes_platform = "asking", True
    def __init__(self, settings=None, *, platform=None): self.platform = platform

class Lazy(Acme):
    provider, in_version = "lazy", Attestor.in_version

class Lame:
    provider, versions = "lame", (1,)
    def __init__(self, settings=None): ...
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out a third party's package: a module and its metadata."""
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped
    monkeypatch.delitem(sys.modules, "acme_attestation", raising=False)
    (tmp_path / "acme_attestation.py").write_text(_MODULE)
    metadata = tmp_path / "acme-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    targets = {"acme": "Acme", "asking": "Asking", "lazy": "Lazy", "lame": "Lame", "forged": "Acme", "tpm": "Acme"}
    lines = "".join(f"{name} = acme_attestation:{target}\n" for name, target in targets.items())
    (metadata / "entry_points.txt").write_text(f"[{registry.SIGNERS}]\n{lines}[{registry.ATTESTORS}]\n{lines}")


@pytest.mark.usefixtures("third_party")
def test_a_third_party_is_found_by_its_entry_point_and_takes_no_name_of_ours() -> None:
    assert type(make_signer(ProviderName("tpm"))).__module__ == "nodeattest_providers.tpm.verifier"
    assert "acme_attestation" not in sys.modules
    assert make_signer(ProviderName("acme")).provider == "acme"
    assert registry.make_attestor(ProviderName("acme"), {"a": 1}).provider == "acme"
    with pytest.raises(Denied, match="makes each of its evidence versions"):
        registry.make_attestor(ProviderName("lazy"), {})


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("name", ["lame", "forged"])
def test_a_factory_of_another_provider_or_without_the_base_class_makes_nothing(name: str) -> None:
    for find in (lambda: make_signer(ProviderName(name)), lambda: registry.make_attestor(ProviderName(name), {})):
        with denied_for(Reason.SIGNER_UNKNOWN):
            find()


@pytest.mark.usefixtures("third_party")
def test_a_composite_takes_no_part_in_another_version_and_releases_every_part() -> None:
    composite = registry.make_attestor(ProviderName("composite"), {"acme": {}, "asking": {}})
    block = evidence_block(composite.provider, 1)
    with denied_for(Reason.EVIDENCE_VERSION_UNSUPPORTED):
        composite.attest(Binding(block, PIN, signer_for(composite.provider, Purpose.CLIENT), bytes(32)))
    composite.close()
    assert [getattr(part, "is_closed", False) for part in composite.parts] == [True, True]


@pytest.mark.usefixtures("third_party")
def test_a_signer_that_asks_a_platform_gets_its_settings_and_the_others_refuse_any() -> None:
    platform = Platform(settings={"endpoint": "https://127.0.0.1:1"})
    assert getattr(make_signer(ProviderName("asking"), platform), "platform", None) is platform
    assert getattr(make_signer(ProviderName("asking")), "platform", None) == Platform()
    assert not hasattr(make_signer(ProviderName("acme"), Platform()), "platform")
    with denied_for(Reason.POLICY_INVALID):
        make_signer(ProviderName("acme"), platform)


@pytest.mark.parametrize("versions", [(), (1, 2), (2, 2), (1, 0), ("2", "1"), None, [1], (True,)])
def test_what_a_factory_made_is_of_the_provider_whole_and_of_versions_newest_first(versions: object) -> None:
    lame = ProviderName("lame")
    registry.check_made(SimpleNamespace(provider=lame, versions=(2, 1)), lame, is_complete=True)
    for made, is_complete in (
        (SimpleNamespace(provider=lame, versions=versions), True),
        (SimpleNamespace(provider=lame, versions=(1,)), False),
        (SimpleNamespace(provider="tpm", versions=(1,)), True),
    ):
        with denied_for(Reason.SIGNER_UNKNOWN):
            registry.check_made(made, lame, is_complete=is_complete)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_evidence_of_another_provider_or_version_is_refused_before_it_is_read(name: str) -> None:
    provider, signer = ProviderName(name), make_signer(ProviderName(name), OFFLINE)
    for other, reason in (
        (Evidence(ProviderName("other"), 1, {}), Reason.PROVIDER_MISMATCH),
        (Evidence(provider, 9999, {}), Reason.EVIDENCE_VERSION_UNSUPPORTED),
    ):
        with denied_for(reason):
            asyncio.run(signer.verify_client_attestation_data(filed(other), FACTS))


def test_an_attestor_refuses_a_version_that_it_does_not_make() -> None:
    attestor = registry.make_attestor(ProviderName("insecure"), {})
    assert attestor.in_version(1) is attestor
    with pytest.raises(ValueError, match="no evidence of version 2"):
        attestor.in_version(2)


def _modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_a_built_in_attestor_loads_no_verifier_and_no_package_metadata_and_the_reverse() -> None:
    loaded = _modules_after("from nodeattest_providers.registry import make_attestor; make_attestor('insecure', {})")
    assert not {name for name in loaded if name.endswith(".verifier")}
    assert not loaded & {"importlib.metadata", "nodeattest_providers.challenge", "nodeattest_providers.tpm"}
    loaded = _modules_after("from nodeattest_providers.platform import make_signer; make_signer('challenge')")
    assert not {name for name in loaded if name.endswith(".attestor")}


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_a_cloud_that_is_not_asked_costs_none_of_its_libraries(provider: str) -> None:
    heavy = {"aiohttp", "boto3", "botocore", "google", "google.auth"}
    offline = (
        "from nodeattest_providers.platform import OFFLINE; from nodeattest_providers.platform import make_signer; "
    )
    assert not heavy & _modules_after(f"{offline}make_signer({provider!r}, OFFLINE)")
    assert not heavy & _modules_after("import nodeattest_providers.platform, nodeattest_providers.registry")
    loaded = _modules_after(
        f"from nodeattest_providers.registry import make_attestor; make_attestor({provider!r}, {{}})"
    )
    assert not heavy & loaded


def test_no_package_of_ours_registers_an_entry_point_since_the_table_lists_our_providers() -> None:
    for page in (ROOT / "pyproject.toml", *ROOT.glob("*/pyproject.toml")):
        groups = tomllib.loads(page.read_text())["project"].get("entry-points", {})
        assert not {registry.SIGNERS, registry.ATTESTORS} & groups.keys(), page


def test_each_provider_has_its_folder_and_each_folder_its_row() -> None:
    folders = {path.parent.name for path in (ROOT / "providers/nodeattest_providers").glob("*/verifier.py")}
    assert folders == registry.RESERVED
    for name, row in registry.BUILT_IN.items():
        assert row.attestor.startswith(f"nodeattest_providers.{name}.attestor:")
        assert row.signer.startswith(f"nodeattest_providers.{name}.verifier:")


def test_the_contract_of_independence_names_every_provider() -> None:
    """The import linter cannot read the table."""
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"].startswith("Providers are independent"))
    named = [name.strip(" ()") for layer in layers for name in layer.split("|")]
    assert sorted(named) == sorted(f"nodeattest_providers.{name}" for name in registry.RESERVED)


def test_the_policys_definition_has_the_sections_of_the_table() -> None:
    path = ROOT / "manifests/crd/nodeattestationpolicies.yaml"
    crd = yaml.safe_load(path.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    rows = registry.BUILT_IN
    assert rows.keys() <= spec.keys()
    for name, row in rows.items():
        for key in row.required_lists:
            assert spec[name]["properties"][key]["type"] == "array"
    rule = spec["providers"]["x-kubernetes-validations"][0]["rule"]
    assert set(re.findall("'([a-z]+)'", rule)) == rows.keys()


@pytest.mark.parametrize("row", registry.BUILT_IN.values(), ids=registry.BUILT_IN)
def test_the_table_tells_which_attestors_know_their_machine(row: registry.BuiltIn) -> None:
    module, _, kind = row.attestor.partition(":")
    is_telling = getattr(import_module(module), kind).provider_id is not Attestor.provider_id
    assert is_telling is row.knows_provider_id or row.name == "composite"  # which asks its parts


REQUEST = filed(Evidence(ProviderName("insecure"), 1, {}))
SIGNER = InsecureSigner()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"evidence": Evidence(ProviderName("tpm"), 1, {})}, Reason.PROVIDER_MISMATCH),
        ({"evidence": Evidence(ProviderName("insecure"), 2, {})}, Reason.EVIDENCE_VERSION_UNSUPPORTED),
        ({"evidence": Evidence(ProviderName("insecure"), 1, {"x": 1})}, Reason.EVIDENCE_MALFORMED),
        ({"username": "system:node:n-0"}, Reason.ROTATION_NOT_ALLOWED),
        ({"purpose": Purpose.SERVING}, Reason.SERVING_NOT_ALLOWED),
    ],
)
async def test_the_insecure_provider_attests_a_first_join_and_nothing_else(
    changes: dict[str, object], reason: Reason
) -> None:
    attested = await SIGNER.verify_client_attestation_data(REQUEST, FACTS)
    assert (attested.provider_id, attested.fingerprints, attested.proven_node_name) == (
        REQUEST.csr.provider_id,
        {},
        None,
    )
    request = dataclasses.replace(REQUEST, **changes)  # pyright: ignore[reportArgumentType] - the rows name real fields
    serves = request.purpose is Purpose.SERVING
    verify = SIGNER.verify_serving_attestation_data if serves else SIGNER.verify_client_attestation_data
    with denied_for(reason):
        await verify(request, FACTS)


async def test_a_provider_without_a_platform_tells_no_endorsement_keys() -> None:
    with pytest.raises(Unavailable):
        await SIGNER.endorsement_key(ProviderID("x"), accounts=frozenset(), shown=KEY.public_key())
