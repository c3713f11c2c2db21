"""The samples for machine images: their text parses, names what the packages hold, and real tools take it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml
from needs import ONLY_ROOT, lacks

from nodeattest_authenticator.commands.cli import parser

NODE = Path(__file__).parents[2] / "images" / "node"
SAMPLES = NODE / "samples"
FILES = sorted(path for path in SAMPLES.rglob("*.yaml"))


def texts(value: object) -> Iterator[str]:
    """Yield every string of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for item in cast("dict[str, object]", value).values() for text in texts(item))
    elif isinstance(value, list):
        yield from (text for item in cast("list[object]", value) for text in texts(item))


@pytest.mark.parametrize("sample", FILES, ids=lambda path: path.name)
def test_a_sample_names_units_and_paths_that_the_packages_have(sample: Path) -> None:
    text = sample.read_text()
    assert yaml.safe_load(text)
    units = {path.name for path in (NODE / "files").iterdir()} | {"nodeattest-install.service"}
    named = {name for name in re.findall(r"[a-z-]+\.(?:service|timer)\b", text) if name != "kubelet.service"}
    assert named <= units
    assert set(re.findall(r"[\w/-]*/kubelet-authenticator\b", text)) <= {
        "/usr/bin/kubelet-authenticator",
        "/opt/nodeattest/current/bin/kubelet-authenticator",
        "/opt/bin/kubelet-authenticator",
    }


@ONLY_ROOT
def test_the_tmpfiles_rule_keeps_the_modes_of_kubelets_folders(tmp_path: Path) -> None:
    """systemd-tmpfiles runs at each boot, in this case on a machine whose operator closed these folders."""
    program = shutil.which("systemd-tmpfiles") or lacks("systemd-tmpfiles is not installed")
    modes = {"etc/kubernetes": 0o711, "var/lib/kubelet": 0o700}
    for name, mode in modes.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).chmod(mode)
    subprocess.run([program, f"--root={tmp_path}", "--create", NODE / "files/nodeattest.conf"], check=True)
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in modes} == modes
    assert (tmp_path / "var/lib/kubelet-authenticator").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["cloud-init.yaml", "butane.yaml"])
def test_the_join_of_a_sample_is_one_that_the_agent_takes(name: str) -> None:
    document = yaml.safe_load((SAMPLES / name).read_text())
    [line] = [text.strip() for text in texts(document) if text.startswith("JOIN=")]
    [join] = shlex.split(line.removeprefix("JOIN="))
    options = parser().parse_args(["join", *join.split()])
    assert (options.provider, options.token_file) == ("tpm", "/etc/nodeattest/token")
    kept = {text for text in texts(document) if text.startswith("/etc/nodeattest/")}
    assert {options.token_file, options.provider_id_file, "/etc/nodeattest/join.conf"} <= kept


def test_secrets_of_samples_are_readable_by_root_only() -> None:
    cloud = yaml.safe_load((SAMPLES / "cloud-init.yaml").read_text())["write_files"]
    assert {one["path"]: one["permissions"] for one in cloud}["/etc/nodeattest/token"] == "0600"
    butane = yaml.safe_load((SAMPLES / "butane.yaml").read_text())["storage"]["files"]
    assert {one["path"]: one["mode"] for one in butane}["/etc/nodeattest/token"] == 0o600


def test_ansible_takes_the_role() -> None:
    accepted("ansible-playbook", "--syntax-check", "--inventory", "localhost,", str(SAMPLES / "ansible" / "image.yaml"))


def test_cloud_init_takes_the_configuration() -> None:
    said = accepted("cloud-init", "schema", "--config-file", str(SAMPLES / "cloud-init.yaml"))
    assert "Valid" in said


def accepted(program: str, *words: str) -> str:
    found = shutil.which(program)
    if found is None:
        lacks(f"{program} is not installed: tools/system-packages packages")
    done = subprocess.run([found, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
