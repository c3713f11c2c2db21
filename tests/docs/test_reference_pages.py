"""The pages of the reference say what commands, metrics, definitions and the settings' types say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from core_kit import CA, pem

from nodeattest_authenticator import settings as agent
from tools import reference

TREE: Final = Path(__file__).parents[2]
CONFIGURATION: Final = (TREE / "docs/configuration.md").read_text(encoding="utf-8")
PACKAGES: Final = (
    *("parsing", "providers", "kube", "serving", "discovery", "identity"),
    *("authenticator", "controller", "cli", "sandbox/nodeattest_demo"),
)
VARIABLE: Final = re.compile(r"(?:environb?(?:\.get|\.setdefault)?[(\[]|environment\.get\(|envvar=)b?\"([A-Z0-9_]+)\"")


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert reference.page(name) == (reference.DOCS / name).read_text(encoding="utf-8"), "make reference"


def rows(section: str) -> list[str]:
    text = CONFIGURATION.partition(f"## {section}")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w.\[\]]+)` \|", text, re.MULTILINE)


def test_every_field_of_the_agents_file_has_a_row() -> None:
    ca = pem(CA).decode()
    server = {"server": "https://10.0.0.1:6443", "tlsServerName": "api.c1"}
    written = {
        "apiVersion": agent.API_VERSION,
        "kind": agent.KIND,
        **server,
        "certificateAuthority": ca,
        "nodeName": "n",
        "provider": {"name": "tpm", "settings": {"device": "/dev/tpmrm0"}},
        "bootstrapTokenFile": "/token",
        "timeoutSeconds": 60,
        "expirationSeconds": 3600,
        "serving": {"dnsNames": ["n"], "ipAddresses": ["10.0.0.2"]},
        "discovery": {
            "servers": ["https://10.0.0.1:6443"],
            "kubeconfig": "/kubelet.conf",
            "caFile": "/ca.crt",
            "keepsServer": True,
            "former": [{**server, "certificateAuthority": ca}],
        },
    }
    paths: set[str] = set()
    for source in ({"value": "p://1"}, {"file": "/id"}, {"command": ["/bin/id"]}):
        settings = agent.parse(json.dumps({**written, "providerID": source}).encode(), hostname="n")
        paths |= set(_paths(json.loads(agent.settings_to_json(settings))))
    assert sorted(rows("Agent")) == sorted(paths - {"apiVersion", "kind"})


def _paths(document: Any, before: str = "") -> list[str]:
    found: list[str] = []
    for name, value in document.items():
        match value:
            case dict() if name != "settings":
                found += _paths(value, f"{before}{name}.")
            case [dict(), *_]:
                found += _paths(value[0], f"{before}{name}[].")
            case _:
                found.append(f"{before}{name}")
    return found


def test_every_variable_that_the_code_reads_has_a_row() -> None:
    files = [file for package in PACKAGES for file in (TREE / package).rglob("*.py")]
    read = {name for file in files for name in VARIABLE.findall(file.read_text(encoding="utf-8"))}
    assert read == set(rows("Environment"))
