"""Which names a machine may have, and from which source."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_member

from nodeattest_controller.model.machine_view import ContractReference
from nodeattest_controller.model.node_names import NameSources, claimed_names, node_names

HOSTNAME = ("Hostname", "host-0")
METAL = ContractReference("infrastructure.cluster.x-k8s.io", "HetznerBareMetalMachine", "metal-0")


@pytest.mark.parametrize(
    ("changes", "sources", "names"),
    [
        ({}, {}, ["node-0"]),
        ({"infra": ContractReference("g", "k", "infra-0")}, {}, ["node-0", "infra-0"]),
        ({"infra": METAL}, {}, ["node-0", "metal-0", "bm-metal-0"]),
        ({}, {"proven": "proven"}, ["proven", "node-0"]),
        ({"addresses": (("InternalIP", "10.0.0.1"), ("ExternalDNS", "www"))}, {}, ["node-0"]),
        (
            {"addresses": (HOSTNAME, ("InternalDNS", "host-0.lan"))},
            {"proven": "proven"},
            ["proven", "node-0", "host-0", "host-0.lan"],
        ),
        ({"addresses": (HOSTNAME,)}, {"host": {"BareMetalHost": ["rack-1"]}}, ["node-0", "rack-1", "host-0"]),
        ({"addresses": (HOSTNAME,)}, {"registered": "given", "proven": "proven"}, ["given"]),
        ({"node_ref_name": "ref-0", "addresses": (HOSTNAME,)}, {"registered": "given"}, ["ref-0"]),
        ({"node_ref_name": "ref-0"}, {"recorded": "joined"}, ["joined"]),
        ({"given_name": "mine", "node_ref_name": "ref-0"}, {"registered": "given", "recorded": "joined"}, ["mine"]),
        ({"given_name": ""}, {"proven": "proven"}, []),
        ({"kind": "MachinePool"}, {}, []),
        ({"kind": "MachinePool"}, {"proven": "proven"}, ["proven"]),
        ({"kind": "MachinePool"}, {"registered": "given"}, ["given"]),
    ],
)
def test_sources_count_in_order_of_trust(changes: dict[str, object], sources: dict[str, Any], names: list[str]) -> None:
    found = node_names(make_member(**changes), NameSources(**sources))
    assert [claim.name for claim in found] == names
    assert all(claim.source for claim in found)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("Worker-01", "worker-01"),
        ("ip-10-0-0-1.Corp.Example.com", "ip-10-0-0-1.corp.example.com"),
        ("worker-01.corp.example.com.", "worker-01.corp.example.com"),
        ("worker-01..", None),
        ("localhost", None),
        ("localhost.localdomain", None),
        ("LOCALHOST.localdomain.", None),
        ("10.0.0.5", None),
        ("fd00::1", None),
        ("\u212aelvin", None),
        ("worker_01", None),
        ("", None),
    ],
)
def test_addresses_are_normalized_and_what_no_host_has_alone_is_no_name(reported: str, name: str | None) -> None:
    names = claimed_names(make_member(addresses=(("Hostname", reported),)))
    assert names == (("node-0", name) if name else ("node-0",))
