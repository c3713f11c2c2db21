"""Costs of what a node reads, and of the parsers that everything uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fuzz import agent, agent_discovery, discovery, discovery_node, gcp, tpm_device
from fuzz.costs import worst
from fuzz.costs.handler import KIB, MIB, Handler, runner
from fuzz.keys import NODE_KEY, authority, key_pem, pem_of
from fuzz.seeds.tpm_device import listed, response
from nodeattest_authenticator import certificate
from nodeattest_authenticator.cluster import kubelet_config
from nodeattest_authenticator.commands import kubeadm_config
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats import csr_object, exec_credential
from nodeattest_authenticator.formats.strict_json import FieldsError, parse_config_object
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node import configmap, discovery_file, https
from nodeattest_discovery.node.http1 import ProtocolError
from nodeattest_parsing import strict_json, strict_yaml, times
from nodeattest_parsing.durations import parse_duration, parse_seconds
from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_providers import metadata_service
from nodeattest_providers.aws.api.caller_identity import parse_error_code, parse_identity
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.gcp.api.instance import parse_instance, parse_page
from nodeattest_providers.names import NodeName
from nodeattest_providers.tpm.node import nv_certificates

__all__ = ["HANDLERS"]

_ANSWER: Final = 4 * MIB
"""Bytes of one answer of an API server to the agent (``transport.api_client``)."""
_PAGE: Final = 4 * MIB
"""Bytes of one answer of the Compute API (``gcp.api.client``)."""
_TARGETS: Final = {
    target.name: target
    for module in (agent, agent_discovery, discovery, discovery_node, gcp, tpm_device)
    for target in module.TARGETS
}
_CERTIFICATE: Final = 64 * KIB
_RESPONSE: Final = https.LIMIT + 64 * KIB
"""Bytes of a body and what comes with it (``https``)."""
_HEAD: Final = b"HTTP/1.1 200 OK\r\n"
_CHUNKED: Final = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_LINE: Final = 16 * KIB
_NO_VALUES: Final = bytes.fromhex("00000000 00000001 000b 03 000000 000007f0") + bytes(2 * 0x7F0)
"""Parameters of a response to TPM2_PCR_Read: as many values as fit, of no bytes."""


def _answer(data: bytes) -> object:
    return csr_object.parse(parse_config_object(data))


def _certificate(data: bytes) -> object:
    wanted = certificate.ExpectedCertificate(node_name=NodeName("node-0"), ca_pem=pem_of(authority()))
    with suppress(ValueError):
        certificate.names_of(data)
    return certificate.validate(data, key_pem(NODE_KEY), wanted)


def _by_lines(data: bytes) -> object:
    response = discovery_node.response_reader(data)
    return sum(1 for _ in iter(lambda: response.readline(https.LIMIT), b""))


def _response(data: bytes) -> object:
    return discovery_node.response_reader(data).read(https.LIMIT), _by_lines(data)


def _cluster_info(data: bytes) -> object:
    published = configmap.parse(data)
    return clusterinfo.parse(published.text())


def _file(data: bytes) -> object:
    return discovery_file.parse(data.decode("utf-8", "surrogateescape"), local=True, allow_credentials=True)


def _kubelet(data: bytes) -> object:
    read = kubelet_config.parse({"data": {"kubelet": data.decode("utf-8", "replace")}})
    return kubelet_config.render(kubelet_config.adjust(read, ca_file="/ca.crt"))


def _instances(data: bytes) -> object:
    return [parse_instance(item, gcp.PLACE) for item in parse_page(data).items]


def _sts(data: bytes) -> object:
    return parse_error_code(data), parse_identity(data)


def _time(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    for parse in (parse_duration, parse_seconds, times.parse_rfc3339):
        with suppress(ValueError):
            parse(text)
    return text


def _json(data: bytes) -> object:
    return strict_json.parse(data, max_size=MIB, max_depth=32, max_values=4096)


def _yaml(data: bytes) -> object:
    return strict_yaml.parse_object(data, scalars=Scalars.KUBERNETES, max_depth=16, max_values=4096)


def _info(inside: bytes) -> bytes:
    identity = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "kube-public", "name": "cluster-info"},
    }
    return worst.to_json({**identity, "data": {"kubeconfig": inside.decode()}})


def _yamls(size: int, values: int = 4096, depth: int = 15) -> dict[str, Callable[[], bytes]]:
    return {
        "flow": lambda: worst.yaml_flow(size, values - 4),
        "keys": lambda: worst.yaml_keys(size, values),
        "levels": lambda: worst.yaml_levels(size, depth),
        "lines": lambda: worst.yaml_lines(size),
        "sexagesimal": lambda: worst.yaml_numbers(size),
        "escapes": lambda: worst.yaml_escapes(size),
    }


HANDLERS: Final = (
    Handler(
        name="agent-answer",
        reads="an answer of an API server to the agent, of the cluster that the node joins",
        runs="process",
        run=runner(_answer, FieldsError),
        largest=_ANSWER,
        milliseconds=300.0,
        mebibytes=48.0,
        worst={
            "most lists": lambda: worst.json_lists(_ANSWER, most=49_000),
            "most keys": lambda: worst.json_keys(_ANSWER, {"x": ["@@"]}, most=24_000),
            "lists": lambda: worst.json_lists(_ANSWER),
            "keys": lambda: worst.json_keys(_ANSWER, {"x": ["@@"]}),
            "numbers": lambda: worst.json_numbers(_ANSWER, {"x": ["@@"]}),
            "levels": lambda: worst.json_nested(_ANSWER, 60),
            "escapes": lambda: worst.json_escapes(_ANSWER, {"x": "@@"}),
        },
        target=_TARGETS["agent-csr-object"],
        strangers=True,
    ),
    Handler(
        name="agent-certificate",
        reads="the certificate that an API server answers the agent with",
        runs="process",
        run=runner(_certificate, AgentError),
        largest=_CERTIFICATE,
        milliseconds=60.0,
        mebibytes=4.0,
        worst={
            "blocks": lambda: worst.pem_without_end(_CERTIFICATE),
            "certificates": lambda: worst.filled(b"", worst.pem_of(worst.looping_chain()[1]), b"", _CERTIFICATE),
            "long exponents": lambda: b"".join(worst.pem_of(each) for each in worst.slow_exponents()),
            "empty lines": lambda: pem_of(authority()).replace(b"\n", b"\n" * 6_400),
            "short lines": lambda: worst.filled(b"-----BEGIN CERTIFICATE-----\n", b"AA\n", b"\n", _CERTIFICATE),
        },
        target=_TARGETS["agent-certificate"],
        strangers=True,
    ),
    Handler(
        name="https-response",
        reads="the HTTP of an unverified server's answer to a node, whole and by lines",
        runs="process",
        run=runner(_response, ProtocolError),
        largest=_RESPONSE,
        milliseconds=2000.0,
        mebibytes=6.0,
        worst={
            "chunks": lambda: worst.filled(_CHUNKED, b"1\r\na\r\n", b"0\r\n\r\n", _RESPONSE),
            "chunks of line ends": lambda: worst.filled(_CHUNKED, b"1\r\n\n\r\n", b"0\r\n\r\n", _RESPONSE),
            "lines": lambda: worst.filled(_HEAD + b"\r\n", b"\n", b"", _RESPONSE),
            "interim responses": lambda: worst.filled(b"", b"HTTP/1.1 100\r\n\r\n", _HEAD + b"\r\n", _RESPONSE),
            "spaces": lambda: (
                _HEAD + (b"A:" + b" " * (_LINE - 4) + b"\r\n") * 64 + b"A:" + b" " * (_LINE - 5) + b"\0\r\n"
            ),
            "a field without end": lambda: _HEAD + b"A:" + b" " * (_LINE - 2),
        },
        target=_TARGETS["discovery-response"],
        strangers=True,
    ),
    Handler(
        name="cluster-info",
        reads="the answer of an unverified server to a node that looks for its cluster",
        runs="process",
        run=runner(_cluster_info, Denied),
        largest=https.LIMIT,
        milliseconds=1000.0,
        mebibytes=64.0,
        worst={
            "lists": lambda: worst.json_lists(https.LIMIT),
            "keys": lambda: worst.json_keys(https.LIMIT, {"x": ["@@"]}),
            "levels": lambda: worst.json_nested(https.LIMIT),
            "YAML lines": lambda: _info(worst.yaml_lines(clusterinfo.MAX_KUBECONFIG)),
            "YAML levels": lambda: _info(worst.yaml_levels(clusterinfo.MAX_KUBECONFIG, 15)),
            "YAML escapes": lambda: _info(worst.yaml_escapes(clusterinfo.MAX_KUBECONFIG)),
            "YAML flow": lambda: _info(worst.yaml_flow(clusterinfo.MAX_KUBECONFIG, 4000)),
        },
        target=_TARGETS["discovery-configmap"],
        strangers=True,
    ),
    Handler(
        name="discovery-file",
        reads="a discovery file, of an HTTPS server or this machine",
        runs="process",
        run=runner(_file, Denied),
        largest=https.LIMIT,
        milliseconds=4000.0,
        mebibytes=64.0,
        worst=_yamls(https.LIMIT),
        target=_TARGETS["discovery-file"],
    ),
    Handler(
        name="kubelet-configuration",
        reads="the ConfigMap kubelet-config of the cluster that the node joins",
        runs="process",
        run=runner(_kubelet, AgentError),
        largest=https.LIMIT,
        milliseconds=4000.0,
        mebibytes=64.0,
        worst={"lines": lambda: worst.yaml_lines(https.LIMIT), "flow": lambda: worst.yaml_flow(https.LIMIT, 4000)},
        target=_TARGETS["agent-kubelet-configuration"],
    ),
    Handler(
        name="kubeadm-configuration",
        reads="the file of kubeadm in a machine's bootstrap data",
        runs="process",
        run=runner(lambda data: kubeadm_config.parse(data, limit=300), AgentError),
        largest=MIB,
        milliseconds=4000.0,
        mebibytes=64.0,
        worst={"lines": lambda: worst.yaml_lines(MIB), "flow": lambda: worst.yaml_flow(MIB, 4000)},
        target=_TARGETS["agent-kubeadm-configuration"],
    ),
    Handler(
        name="exec-info",
        reads="what kubelet hands to the agent",
        runs="process",
        run=runner(exec_credential.parse, AgentError, FieldsError),
        largest=_ANSWER,
        milliseconds=300.0,
        mebibytes=48.0,
        worst={
            "lists": lambda: worst.json_lists(_ANSWER),
            "escapes": lambda: worst.json_escapes(_ANSWER, {"x": "@@"}),
        },
        target=_TARGETS["agent-exec-info"],
    ),
    Handler(
        name="tpm-certificates",
        reads="certificates in the TPM's NV indexes",
        runs="process",
        run=runner(lambda data: list(nv_certificates.split_der(data))),
        largest=64 * KIB,
        milliseconds=30.0,
        mebibytes=4.0,
        worst={"elements": lambda: b"\x30\x01\x00" * (21 * KIB), "padding": lambda: b"\xff" * (64 * KIB)},
    ),
    Handler(
        name="tpm-responses",
        reads="a TPM's responses to one operation of the agent",
        runs="process",
        run=runner(tpm_device.converse, Denied, Unavailable),
        largest=MIB,
        milliseconds=600.0,
        mebibytes=16.0,
        worst={
            "an index a response": lambda: (
                b"\0" + b"".join(listed(0x01C00000 + number, more=b"\1") for number in range(0x8000))
            ),
            "values of no PCR": lambda: b"\6" + response(_NO_VALUES) * 256,
        },
        target=_TARGETS["tpm-responses"],
    ),
    Handler(
        name="compute-instances",
        reads="an answer of the Compute API",
        runs="loop",
        run=runner(_instances, Denied),
        largest=_PAGE,
        milliseconds=300.0,
        mebibytes=64.0,
        worst={
            "lists": lambda: worst.json_lists(_PAGE),
            "keys": lambda: worst.json_keys(_PAGE, {"items": ["@@"]}),
            "most keys": lambda: worst.json_keys(_PAGE, {"items": ["@@"]}, most=24_000),
        },
        target=_TARGETS["gcp-instances"],
    ),
    Handler(
        name="sts-answer",
        reads="an answer of AWS STS",
        runs="loop",
        run=runner(_sts),
        largest=16 * KIB,
        milliseconds=6.0,
        mebibytes=2.0,
        worst={
            "lists": lambda: worst.json_lists(16 * KIB),
            "keys": lambda: worst.json_keys(16 * KIB, {"x": ["@@"]}),
            "levels": lambda: worst.json_nested(16 * KIB),
        },
    ),
    Handler(
        name="strict-json",
        reads="JSON, by the parser that all of them use; here with 1 MiB, 32 levels and 4,096 values",
        runs="loop",
        run=runner(_json, ParseError),
        largest=metadata_service.LIMIT,
        milliseconds=40.0,
        mebibytes=8.0,
        worst={
            "lists": lambda: worst.json_lists(metadata_service.LIMIT),
            "numbers": lambda: worst.json_numbers(metadata_service.LIMIT, {"x": ["@@"]}, most=4000),
            "levels": lambda: worst.json_nested(metadata_service.LIMIT),
            "escapes": lambda: worst.json_escapes(metadata_service.LIMIT, {"x": "@@"}),
        },
    ),
    Handler(
        name="strict-yaml",
        reads="YAML, by the parser that all of them use; here with 64 KiB, 16 levels and 4,096 values",
        runs="thread",
        run=runner(_yaml, ParseError),
        largest=64 * KIB,
        milliseconds=300.0,
        mebibytes=8.0,
        worst=_yamls(64 * KIB),
    ),
    Handler(
        name="times",
        reads="a duration or a time",
        runs="loop",
        run=runner(_time),
        largest=4 * KIB,
        milliseconds=1.0,
        mebibytes=0.1,
        worst={
            "units": lambda: b"1h" * (2 * KIB),
            "digits": lambda: b"9" * (4 * KIB),
            "short units": lambda: b"1h" * 64,
            "fraction": lambda: b"2026-01-01T00:00:00." + b"9" * (4 * KIB - 21) + b"Z",
        },
        target=_TARGETS["discovery-time"],
    ),
)
