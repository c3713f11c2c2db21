"""The table ``odd_secrets.toml`` as Secrets."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nodeattest_discovery.secret import SECRET_TYPE, secret_name
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

_SOUND = {
    "token-id": "ID",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-signing": "true",
    "usage-bootstrap-authentication": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OddSecret:
    """A Secret, the token of whoever knows it, and what Kubernetes makes of both."""

    description: str
    id: str
    body: JsonMap
    token: str
    signed: bool
    cleaned: bool
    groups: tuple[str, ...] | None

    @property
    def name(self) -> str:
        return cast("dict[str, str]", self.body["metadata"])["name"]


def odd_secrets(prefix: str) -> list[OddSecret]:
    """Make the Secrets; their ids begin with the letter ``prefix``."""
    table = tomllib.loads(Path(__file__).with_name("odd_secrets.toml").read_text(encoding="utf-8"))
    outcomes = cast("list[dict[str, list[object]]]", table["outcome"])
    rows = [(outcome, row) for outcome in outcomes for row in [*outcome.get("secrets", []), *_expiring(outcome)]]
    return [_odd_secret(*cast("tuple[_Row, _Row]", row), f"{prefix}{number:05}") for number, row in enumerate(rows)]


_Row = Mapping[str, object]


def _expiring(outcome: Mapping[str, list[object]]) -> list[object]:
    return [{"is": f"expiration {text!r}", "data": {"expiration": text}} for text in outcome.get("expirations", [])]


def _odd_secret(outcome: _Row, row: _Row, token_id: str) -> OddSecret:
    without = cast("list[str]", row.get("without", []))
    data = {**_SOUND, **cast("dict[str, str]", row.get("data", {}))}
    data = {key: value.replace("ID", token_id, 1) for key, value in data.items() if key not in without}
    name = secret_name(token_id) + str(row.get("name-suffix", ""))
    groups = outcome.get("groups")
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return OddSecret(
        description=str(row["is"]),
        id=token_id,
        body={"metadata": {"name": name}, "type": str(row.get("type", SECRET_TYPE)), "data": {**encoded}},
        token=f"{token_id}.{data['token-secret']}",
        signed=outcome["signed"] is True,
        cleaned=outcome["cleaned"] is True,
        groups=tuple(cast("list[str]", groups)) if groups is not None else None,
    )
