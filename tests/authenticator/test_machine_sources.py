"""What SMBIOS, the host name and cloud-init say of a machine's provider ID."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeattest_authenticator.enrollment.machine_sources import MachineSources
from nodeattest_authenticator.errors import AgentError, AgentReason

UUID = "421c8d5a-7f3b-1c2d-9a8b-7c6d5e4f3a2b"
DATA = {
    "ds": {
        "meta_data": {"providerid": "fleet/rack-1/m3m", "local-hostname": "worker-1", "droplet_id": 7, "flag": True}
    },
    "v1": {"instance_id": "i-0", "cloud_name": "metal3", "region": "redacted for non-root user"},
    "merged_cfg": {"ratio": 0.5},
}
Machine = Callable[..., MachineSources]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Make a machine with these files of SMBIOS and this instance data."""

    def made(data: Any = None, **dmi: str) -> MachineSources:
        for name, text in dmi.items():
            tmp_path.joinpath(name).write_text(text)
        path = tmp_path / "instance-data.json"
        if data is not None:
            path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return MachineSources(dmi=str(tmp_path), instance_data=str(path))

    return made


def unknown(machine: MachineSources, source: str) -> str:
    with pytest.raises(AgentError) as caught:
        machine.value(source)
    assert caught.value.reason == AgentReason.PROVIDER_ID_UNKNOWN
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("product_uuid", f"{UUID.upper()}\n", UUID),
        ("product_serial", "VMware-42 1c 8d 5a 7f 3b 1c 2d-9a 8b 7c 6d 5e 4f 3a 2b\n", UUID),  # vCenter's order
        ("product_serial", "CZ-12/34\n", "CZ-12/34"),
        ("product_uuid", "", None),
        ("product_uuid", "7", None),
        ("product_uuid", "00000000-0000-0000-0000-000000000000", None),
        ("product_uuid", "03000200-0400-0500-0006-000700080009", None),
        ("product_serial", "To Be Filled By O.E.M.", None),
        ("product_serial", "a{b}", None),
        ("product_serial", "VMware-42 1c", None),
    ],
)
def test_smbios_is_read_in_one_spelling_and_defaults_of_firmware_are_refused(
    machine: Machine, name: str, text: str, value: str | None
) -> None:
    found = machine(**{name: text})
    if value is None:
        assert name in unknown(found, f"dmi:{name}")
    else:
        assert found.value(f"dmi:{name}") == value


def test_the_host_name_is_in_lower_case(machine: Machine) -> None:
    assert machine().value("hostname") == os.uname().nodename.lower()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ds.meta_data.providerid", "fleet/rack-1/m3m"),
        ("ds.meta_data.local_hostname", "worker-1"),
        ("ds.meta_data.local-hostname", "worker-1"),
        ("ds.meta_data.droplet_id", "7"),
        ("v1.instance_id", "i-0"),
        ("instance_id", "i-0"),
    ],
)
def test_keys_are_those_of_cloud_inits_templates(machine: Machine, key: str, value: str) -> None:
    assert machine(DATA).value(f"cloud-init:{key}") == value


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ds.meta_data", "got dict"),
        ("ds.meta_data.flag", "got bool"),
        ("ds.meta_data.nothing.deeper", "got none"),
        ("merged_cfg.ratio", "got float"),
        ("region", "without spaces"),
    ],
)
def test_what_is_no_text_of_one_word_is_refused(machine: Machine, key: str, says: str) -> None:
    assert says in unknown(machine(DATA), f"cloud-init:{key}")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"v1": 1e999}', b'{"v1":' + b"[" * 10_000, b"\xff", b" " * (1 << 23)]
)
def test_instance_data_that_is_none_is_refused(machine: Machine, data: bytes) -> None:
    assert "instance-data.json" in unknown(machine(data), "cloud-init:v1.instance_id")
