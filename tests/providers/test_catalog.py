from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nodeattest_providers import attestors, signers
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.platform import Platform

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", sorted(signers.IN_TREE))
def test_each_name_of_the_catalogue_makes_its_signer(name: str) -> None:
    signer = signers.signer(ProviderName(name))
    assert signer.provider == name
    assert signer.versions == tuple(sorted(signer.versions, reverse=True)) != ()
    assert signer.secure is (name != "insecure")


def test_both_halves_have_the_same_names() -> None:
    assert signers.IN_TREE.keys() == attestors.IN_TREE.keys()


def test_an_attestor_is_made_from_its_settings() -> None:
    assert not attestors.attestor(ProviderName("insecure"), {}).two_step
    assert attestors.attestor(ProviderName("challenge"), {"secretFile": "/x"}).two_step
    with pytest.raises(Denied) as denied:
        attestors.attestor(ProviderName("insecure"), {"x": 1})
    assert denied.value.reason is Reason.POLICY_INVALID


@pytest.mark.parametrize("name", ["null", "", "nobody", "nodeattest_providers.null.verifier:NullSigner", "../x", "x\0"])
def test_an_unknown_name_is_denied(name: str) -> None:
    for find in (lambda: signers.signer(ProviderName(name)), lambda: attestors.attestor(ProviderName(name), {})):
        with pytest.raises(Denied) as denied:
            find()
        assert denied.value.reason is Reason.SIGNER_UNKNOWN


def _install(folder: Path, distribution: str, **targets: str) -> None:
    """Lay out a third party's package: a module and its metadata."""
    metadata = folder / f"{distribution}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
    lines = "".join(f"{name} = {target}\n" for name, target in targets.items())
    (metadata / "entry_points.txt").write_text(f"[{signers.ENTRY_POINTS}]\n{lines}[{attestors.ENTRY_POINTS}]\n{lines}")


_MODULE = """
class Acme:
    provider = "acme"
    versions = (2, 1)
    async def verify_client_attestation_data(self, request, facts): ...
    async def verify_serving_attestation_data(self, request, facts): ...
    async def machine_name(self, request): ...
    def __init__(self, settings=None): self.settings = settings
    def attest(self, binding, challenge=None): ...

class Asking(Acme):
    provider, takes_platform = "asking", True
    def __init__(self, settings=None, *, platform=None): self.platform = platform

class Impostor(Acme):
    provider = "tpm"

class Versionless(Acme):
    provider, versions = "lame", ()

class Upside(Acme):
    provider, versions = "lame", (1, 2)

class Twice(Acme):
    provider, versions = "lame", (2, 2)

class Zeroth(Acme):
    provider, versions = "lame", (1, 0)

class Wordy(Acme):
    provider, versions = "lame", ("2", "1")

class Lame:
    versions = (1,)
    provider = "lame"
    def __init__(self, settings=None): ...
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped
    (tmp_path / "acme_attestation.py").write_text(_MODULE)
    monkeypatch.delitem(sys.modules, "acme_attestation", raising=False)
    return tmp_path


def test_a_third_party_is_found_by_its_entry_point(third_party: Path) -> None:
    _install(third_party, "acme", acme="acme_attestation:Acme")
    assert signers.signer(ProviderName("acme")).provider == "acme"
    assert attestors.attestor(ProviderName("acme"), {"a": 1}).provider == "acme"


def test_a_signer_that_asks_a_platform_gets_its_settings_and_the_others_refuse_any(third_party: Path) -> None:
    _install(third_party, "acme", acme="acme_attestation:Acme", asking="acme_attestation:Asking")
    platform = Platform(settings={"endpoint": "https://127.0.0.1:1"})
    assert getattr(signers.signer(ProviderName("asking"), platform), "platform", None) is platform
    assert getattr(signers.signer(ProviderName("asking")), "platform", None) == Platform()
    assert not hasattr(signers.signer(ProviderName("acme"), Platform()), "platform")
    with pytest.raises(Denied) as denied:
        signers.signer(ProviderName("acme"), platform)
    assert denied.value.reason is Reason.POLICY_INVALID


def test_a_name_of_the_catalogue_cannot_be_taken_over(third_party: Path) -> None:
    _install(third_party, "acme", tpm="acme_attestation:Impostor")
    assert type(signers.signer(ProviderName("tpm"))).__module__ == "nodeattest_providers.tpm.verifier"
    assert "acme_attestation" not in sys.modules


@pytest.mark.parametrize("target", ["Impostor", "Lame", "Versionless", "Upside", "Twice", "Zeroth", "Wordy"])
def test_a_half_of_another_provider_or_without_methods_or_versions_is_refused(third_party: Path, target: str) -> None:
    _install(third_party, "acme", lame=f"acme_attestation:{target}")
    for find in (lambda: signers.signer(ProviderName("lame")), lambda: attestors.attestor(ProviderName("lame"), {})):
        with pytest.raises(Denied) as denied:
            find()
        assert denied.value.reason is Reason.SIGNER_UNKNOWN


def test_a_name_that_two_packages_offer_is_refused(third_party: Path) -> None:
    for distribution in ("acme", "zeta"):
        _install(third_party, distribution, acme="acme_attestation:Acme")
    with pytest.raises(Denied):
        signers.signer(ProviderName("acme"))


def _modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_an_in_tree_half_loads_neither_the_other_half_nor_package_metadata() -> None:
    loaded = _modules_after("from nodeattest_providers.attestors import attestor; attestor('insecure', {})")
    assert not {name for name in loaded if name.endswith(".verifier")}
    assert not loaded & {"importlib.metadata", "nodeattest_providers.challenge", "nodeattest_providers.tpm", "pyasn1"}
    loaded = _modules_after("from nodeattest_providers.signers import signer; signer('challenge')")
    assert not {name for name in loaded if name.endswith(".attestor")}


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_a_cloud_that_is_not_asked_costs_none_of_its_libraries(provider: str) -> None:
    heavy = {"aiohttp", "boto3", "botocore", "google", "google.auth"}
    offline = "from nodeattest_providers.platform import OFFLINE; from nodeattest_providers.signers import signer; "
    assert not heavy & _modules_after(f"{offline}signer({provider!r}, OFFLINE)")
    assert not heavy & _modules_after("import nodeattest_providers.signers, nodeattest_providers.attestors")
    loaded = _modules_after(f"from nodeattest_providers.attestors import attestor; attestor({provider!r}, {{}})")
    assert not heavy & loaded


def test_encoding_an_envelope_does_not_load_the_parser() -> None:
    assert "pyasn1" not in _modules_after("import nodeattest_providers.envelope")


def test_the_rubber_stamp_never_ships() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "providers/nodeattest_providers/null" in wheel["exclude"]
    for group in (signers.ENTRY_POINTS, attestors.ENTRY_POINTS):
        assert "null" not in PYPROJECT["project"]["entry-points"][group]


def test_entry_points_and_catalogue_agree() -> None:
    for group, in_tree in ((signers.ENTRY_POINTS, signers.IN_TREE), (attestors.ENTRY_POINTS, attestors.IN_TREE)):
        assert PYPROJECT["project"]["entry-points"][group] == dict(in_tree)
