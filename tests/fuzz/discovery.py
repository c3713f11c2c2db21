"""Targets of discovery's core: what a person types, what any token's Secret holds, what an untrusted server answers.

Laws that need a second opinion ask one: PyYAML's own constructor.
"""

from __future__ import annotations

import json
from typing import Final

import yaml

from fuzz.keys import NOW
from fuzz.target import Target, refused, require
from nodeattest_discovery import clusterinfo, jws, pins, secret, token
from nodeattest_discovery.secret import Expiry, Usage
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import parse_json
from nodeattest_parsing.strict_yaml import Scalars, parse_object
from nodeattest_parsing.values import IntegerJsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.pem import decode

SIGNER: Final = BootstrapToken("abcdef", "0123456789abcdef")
_LONGEST_MESSAGE: Final = 1024
_CERTIFICATE: Final = "CERTIFICATE"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _told(denied: Denied, *allowed: Reason) -> bool:
    require(len(str(denied)) <= _LONGEST_MESSAGE and str(denied).isprintable(), "a refusal of one line")
    return refused(denied, *allowed)


def _secret(data: bytes) -> bool:
    """Evaluate an object; ``Denied`` is no answer here."""
    try:
        body = parse_json(data, max_values=1000)
    except ValueError:
        return False
    found, signs, groups = (
        secret.stored_token(body),
        secret.signing_token(body, NOW),
        secret.authenticating_groups(body, NOW),
    )
    past = secret.expiry(body, NOW)[0] is Expiry.PAST
    require(signs is None or (signs == found and bool(signs.secret) and not past), "an empty secret signs nothing")
    require(signs is None or Usage.SIGNING in secret.usages_of(body), "a token signs if it may")
    require(groups is None or (found is not None and not past), "what has ended authenticates nobody")
    require(groups is None or Usage.AUTHENTICATION in secret.usages_of(body), "a token authenticates if it may")
    for group in groups or ():
        require(group == token.BOOTSTRAP_GROUP or secret.check_group(group) == group, "bootstrappers, and no others")
    return signs is not None or groups is not None


def _signature(data: bytes) -> bool:
    """Read a signature off the first line, and its content off the rest."""
    shown, _, content = data.partition(b"\n")
    valid = jws.is_valid(_text(shown), content, SIGNER)
    require(valid is (jws.sign(content, SIGNER).encode() == shown), "one text is the signature")
    require(not jws.is_valid(_text(shown), content + b"\0", SIGNER) or not valid, "a signature is of one content")
    return valid


def _parse_yaml(text: str) -> IntegerJsonObject:
    return parse_object(text, scalars=Scalars.TEXT, max_depth=16, max_values=4096)


def _yaml(data: bytes) -> bool:
    text = _text(data)
    try:
        read = _parse_yaml(text)
    except ValueError as error:
        require(len(str(error)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    require(read == yaml.safe_load(text), "PyYAML reads the same")
    again = yaml.dump(json.loads(json.dumps(read)), Dumper=_Dumper, allow_unicode=True)
    require(_parse_yaml(again) == read, "what was read can be written and read again")
    return True


class _Dumper(yaml.SafeDumper):
    """A writer without aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Write each value out."""
        del data
        return True


def _in_quotes(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    del dumper
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style='"')


_Dumper.add_representer(str, _in_quotes)


def _cluster_info(data: bytes) -> bool:
    try:
        info = clusterinfo.parse(_text(data))
    except Denied as denied:
        return _told(denied, Reason.CLUSTER_INFO_MALFORMED)
    require(clusterinfo.check_server(info.server).startswith("https://"), "HTTPS only")
    require(bool(info.ca_certificates), "a CA at least")
    blocks = decode(info.ca_pem, [_CERTIFICATE] * len(info.ca_certificates))
    require(clusterinfo.parse_ca_bundle(info.ca_pem) == info.ca_certificates, "a bundle of CAs is one")
    again = clusterinfo.parse(clusterinfo.build(info.server, info.ca_pem))
    require((again.server, again.ca_pem) == (info.server, info.ca_pem), "what was read can be written and read again")
    first = pins.pin_of(info.ca_certificates[0])
    kept = pins.select_pinned(info.ca_certificates, [first])
    require({pins.pin_of(each) for each in kept} == {first} and len(kept) <= len(blocks), "what is kept is pinned")
    return True


TARGETS: Final = (
    Target("discovery-secret", _secret),
    Target("discovery-signature", _signature, 256),
    Target("discovery-yaml", _yaml, 1024),
    Target(
        "discovery-cluster-info",
        _cluster_info,
        8192,
    ),
)
