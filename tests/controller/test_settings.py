"""Settings and the component configuration: in range, strictly read, flag over file over default."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Self

import pytest

from nodeattest_controller import configfile, library
from nodeattest_controller.configfile import check_platforms
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import CONTROLLERS, Settings
from nodeattest_controller.verification.verifiers import VerifierRegistry
from nodeattest_providers import registry
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest
from nodeattest_serving.bounded_server import SettingsError

HEADER = f"apiVersion: {configfile.API_VERSION}\nkind: {configfile.KIND}\n"

BY_DEFAULT = {"attestation", "serving", "standing", "hardening", "bootstrap-config", "bootstrap-token"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "controller.yaml"


def read(config: Path, body: str, **flags: object) -> Settings:
    config.write_text(HEADER + body)
    return configfile.load(config, flags, identity="replica-a")


def test_the_file_beats_the_default_and_a_flag_beats_the_file(config: Path) -> None:
    settings = read(config, "workers: 4\nlogLevel: debug\n", workers=8, log_level=None)
    assert (settings.workers, settings.log_level) == (8, "debug")


def test_every_setting_can_be_written_in_the_file(config: Path, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    unusual = Settings(
        identity="replica-a",
        kubeconfig=kubeconfig,
        namespace="elsewhere",
        watch_namespace="team-a",
        watch_filter="blue",
        controllers=("attestation", "-serving"),
        inventory=("MachineRecords", "ClusterAPI"),
        leader_elect=False,
        lease_name="another",
        lease_duration=30.0,
        renew_deadline=20.5,
        retry_period=3.0,
        health_bind_address="[::1]:0",
        metrics_bind_address=":0",
        metrics_secure=True,
        metrics_cert_dir="/metrics-certificates",
        metrics_audiences=("metrics.example",),
        platforms={"aws": {"endpoints": {"sts": "https://127.0.0.1:1"}, "regions": ["a", "b"], "retries": 3}},
        webhook_bind_address=":9443",
        webhook_cert_dir="/certificates",
        webhook_configuration_name="another",
        webhook_client_ca_file=kubeconfig,
        webhook_client_names=("kube-apiserver",),
        webhook_allowed_cidrs=("10.0.0.0/28", "fd00::1"),
        issuer_base="https://tokens.example/fleet",
        issuer_place="s3://bucket/fleet",
        issuer_max_age=600.0,
        workers=3,
        clusters_per_namespace=7,
        certificate_lifetime=3600.0,
        wait_limit=60.0,
        challenge_key_rotation=7200.0,
        provider_id_oid="1.2.3",
        request_timeout=2.5,
        allowed_addresses=("127.0.0.0/8", "fe80::1"),
        verification_timeout=3.5,
        log_level="error",
        log_format="text",
    )
    default = Settings(identity="replica-a")
    for field in dataclasses.fields(Settings):
        assert field.name == "identity" or getattr(unusual, field.name) != getattr(default, field.name), field.name
    config.write_text(configfile.dump(unusual))
    assert configfile.load(config, identity="replica-a") == unusual


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("leaseDuratoin: 15s\n", ".leaseDuratoin: unknown field; did you mean .leaseDuration?"),
        ("xyzzy: 1\n", ".xyzzy: unknown field; known are kubeconfig, namespace"),
        ("17: 1\n", "a key that is not text at line 3"),
        ("workers: many\n", ".workers: expected a whole number, got 'many'"),
        ("workers: true\n", ".workers: expected a whole number, got true (a boolean)"),
        ("leaderElect: 'no'\n", ".leaderElect: expected true or false, got 'no'"),
        ("namespace: 7\n", ".namespace: expected a string, got 7 (a number)"),
        ("workers: 0o17\n", "readers read differently at line 3"),
        ("controllers: attestation\n", ".controllers: expected a list of strings, got 'attestation'"),
        ("controllers: [1]\n", ".controllers: expected a list of strings, got a list"),
        ("waitLimit: .nan\n", "readers read differently at line 3"),
        ("kubeconfig: /nowhere/at/all\n", ".kubeconfig: expected a file that exists, got '/nowhere/at/all'"),
        ("workers: 3\nworkers: 4\n", "a duplicate key at line 4"),
        ("workers: [\n", "expected YAML, got"),
        ("workers: !!python/object/apply:os.getcwd []\n", "expected YAML, got"),
    ],
)
def test_a_wrong_file_says_where_what_was_expected_and_what_was_found(config: Path, body: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(config, body)
    assert message in str(refused.value)
    assert str(config) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_flag_names_the_flag() -> None:
    with pytest.raises(SettingsError, match=r"^--certificate-lifetime: expected a duration .* got 'long'$"):
        configfile.load(None, {"certificate_lifetime": "long"}, identity="replica-a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 0}, "workers: expected 1 to 256, got 0"),
        ({"certificate_lifetime": 599.0}, "certificateLifetime: expected 10m to 8760h, got 9m59s"),
        ({"challenge_key_rotation": 599.0}, "challengeKeyRotation: expected 10m to 720h"),
        ({"lease_duration": 15.5}, "leaseDuration: expected whole seconds"),
        ({"renew_deadline": 15.0}, "renewDeadline: expected less than leaseDuration"),
        ({"retry_period": 8.4}, "renewDeadline: expected more than 1.2 times retryPeriod"),
        ({"namespace": "Upper"}, "namespace: expected a namespace's name"),
        ({"namespace": "a" * 64}, "namespace: expected a namespace's name"),
        ({"watch_namespace": ""}, "watchNamespace: expected a namespace's name"),
        ({"watch_filter": ""}, "watchFilter: expected a label's value"),
        ({"watch_filter": "Blue"}, "watchFilter: expected a label's value"),
        ({"lease_name": "a..b"}, "leaseName: expected an object's name"),
        ({"provider_id_oid": "1.2.03"}, "providerIDOID: expected a dotted object identifier"),
        ({"log_format": "xml"}, "logFormat: expected one of json, text"),
        ({"health_bind_address": "localhost"}, "healthBindAddress: expected host:port"),
        ({"metrics_bind_address": "1.2.3.4:65536"}, "metricsBindAddress: expected host:port"),
        ({"metrics_bind_address": "::1:80"}, "metricsBindAddress: expected host:port"),
        ({"webhook_bind_address": "9443"}, "webhookBindAddress: expected host:port"),
    ],
)
def test_settings_out_of_range_do_not_exist(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        dataclasses.replace(Settings(identity="replica-a"), **change)  # pyright: ignore[reportArgumentType] - a table
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("wanted", "enabled"),
    [
        (("*",), BY_DEFAULT),
        (("*", "-serving"), BY_DEFAULT - {"serving"}),
        (("attestation", "-attestation"), {"attestation"}),
        (("-attestation", "*"), BY_DEFAULT - {"attestation"}),
        (("token-cleaner",), {"token-cleaner"}),
    ],
)
def test_controllers_are_chosen_as_in_kube_controller_manager(wanted: tuple[str, ...], enabled: set[str]) -> None:
    settings = Settings(identity="replica-a", controllers=wanted)
    assert {name for name in CONTROLLERS if settings.enabled(name)} == enabled


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (("*", "issuer"), "issuerBase: expected a value, since issuers are to be published, got nothing"),
        (("atestation",), "got 'atestation'"),
        (("-*",), "got '-*'"),
        ((*(f"-{name}" for name in sorted(BY_DEFAULT)), "*"), "at least one enabled controller"),
        (("-serving",), "at least one enabled controller"),
        ((), "at least one enabled controller"),
    ],
)
def test_a_controller_that_cannot_run_is_refused_by_name(wanted: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(identity="replica-a", controllers=wanted)
    assert message in str(refused.value)


def test_a_kubeconfig_may_not_lead_to_the_pod_unless_the_operator_allows_it() -> None:
    assert Settings(identity="a").workload_addresses("10.1.2.3").refuses("10.1.2.3")
    allowing = Settings(identity="a", allowed_addresses=("10.0.0.0/8",))
    assert not allowing.workload_addresses("10.1.2.3").refuses("10.1.2.3")
    with pytest.raises(SettingsError, match="POD_IPS: expected IP addresses"):
        allowing.workload_addresses("node-1")


# The command as a real process: exit codes, one-line errors, signals

COMMAND = str(Path(sys.executable).with_name("node-attestation-controller"))

WORK = textwrap.dedent(
    """
    import asyncio, signal, sys
    from nodeattest_controller.main import serve

    async def stubborn() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("still busy", flush=True)
            await asyncio.sleep(600)

    async def work() -> int:
        print("started", flush=True)
        try:
            {body}
        finally:
            print("cleaned up", flush=True)
        return 7

    sys.exit(serve(work()))
    """
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


class Work:
    """A process that serves a piece of work; it never outlives its test."""

    def __init__(self, body: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        assert self.line() == "started"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def end(self) -> tuple[int, str, str]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.read(), self.process.stderr.read()
        return self.process.wait(timeout=120), out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--worker", "3"), "Did you mean '--workers'?"),
        (("run", "--workers", "0"), "workers: expected 1 to 256, got 0"),
        (
            ("run", "--config", "/nowhere/config.yaml"),
            "/nowhere/config.yaml: cannot be read: No such file or directory",
        ),
        (("start",), "No such command 'start'"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("node-attestation-controller: ")
    assert message in line


def test_outside_a_cluster_a_kubeconfig_is_asked_for() -> None:
    done = subprocess.run([COMMAND, "run"], capture_output=True, text=True, timeout=120, check=False, env={})
    assert done.returncode == 2
    assert "run in a pod" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_work_in_order_with_exit_code_0(signum: signal.Signals) -> None:
    with Work("await asyncio.sleep(600)") as work:
        work.process.send_signal(signum)
        assert work.end() == (0, "cleaned up\n", "")


def test_a_second_signal_ends_it_at_once() -> None:
    with Work("await stubborn()") as work:
        work.process.send_signal(signal.SIGTERM)
        assert work.line() == "still busy"
        work.process.send_signal(signal.SIGTERM)
        assert work.end()[0] == -signal.SIGTERM


# The section platforms: a provider reads its own when the controller starts


@pytest.mark.parametrize(
    ("name", "section", "said"),
    [
        ("aws", {"endpionts": {}}, "aws: expected platforms.aws: one of"),
        ("asw", {}, "asw: unknown provider; did you mean .platforms.aws?"),
        ("challenge", {"a": 1}, "challenge: expected no settings: this provider asks no platform, got 'a'"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_known(name: str, section: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_platforms({name: {**section}}, "c.yaml")
    assert str(refused.value).startswith(f"c.yaml: .platforms.{said}")
    assert "\n" not in str(refused.value)


# The controller as a library: which signers its caller may hand in, and that they are used and never closed


SETTINGS = library.read_settings()


class Mine(ClusterAPISigner):
    """A signer of the caller's own."""

    versions: tuple[int, ...] = (1,)
    secure = True

    def __init__(self, provider: str = "contosocloud") -> None:
        self.provider = ProviderName(provider)
        self.closed = False

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        raise AssertionError(request, facts)

    verify_serving_attestation_data = verify_client_attestation_data

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("name", [*registry.BUILT_IN, "null"])
async def test_no_built_in_name_can_be_taken_over(name: str) -> None:
    with pytest.raises(library.SettingsError, match="a name of a built-in provider"):
        await library.run(SETTINGS, {}, signers={name: Mine(name)})


async def test_a_signer_is_handed_in_beside_no_settings_and_no_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = dataclasses.replace(SETTINGS, platforms={"contosocloud": {}})
    with pytest.raises(library.SettingsError, match="contosocloud: expected none"):
        await library.run(configured, {}, signers={"contosocloud": Mine()})
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped
    metadata = tmp_path / "mine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.SIGNERS}]\ncontosocloud = mine:Mine\n")
    with pytest.raises(library.SettingsError, match="a name of an installed entry point"):
        await library.run(SETTINGS, {}, signers={"contosocloud": Mine()})


async def test_a_signer_that_was_handed_in_is_used_as_it_is_and_left_open() -> None:
    mine = Mine()
    verifiers = VerifierRegistry({}, Metrics(), {mine.provider: mine})
    assert verifiers(mine.provider) is mine
    await verifiers.aclose()
    assert not mine.closed
    with pytest.raises(Denied):
        VerifierRegistry({}, Metrics(), {})(mine.provider)
