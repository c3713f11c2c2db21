"""Who signed, according to STS: its answer to ``GetCallerIdentity``, and the ARN of an instance's role session.

Promises: any bytes give a value or None; any text gives a role session or None. An ARN is taken apart in one way only:
``arn:<partition>:sts::<account>:assumed-role/<role>/<session>``, with nothing before, between or behind.
Source: AWS, "GetCallerIdentity"; IAM, "IAM ARNs" (no path in a session's ARN); STS gives JSON to clients that accept
``application/json`` (kubernetes-sigs/aws-iam-authenticator, ``pkg/token/token.go``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast

from nodeattest_parsing import strict_json
from nodeattest_parsing.errors import ParseError
from nodeattest_providers.aws.provider_id import PARTITION_NAME

_ROLE_SESSION: Final = re.compile(
    rf"arn:(?P<partition>{PARTITION_NAME}):sts::(?P<account>[0-9]{{12}}):"
    r"assumed-role/(?P<role>[A-Za-z0-9_+=,.@-]{1,64})/(?P<session>[A-Za-z0-9_+=,.@-]{2,64})"
)
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_USER_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_ARN: Final = re.compile(r"[\x20-\x7e]{20,2048}")
_CODE: Final = re.compile(r"[A-Za-z.]{1,64}")


class NotSignedOverError(Exception):
    """STS says that the signature is not over this request: it may be over another binding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerIdentity:
    """STS's answer."""

    account: str
    arn: str
    user_id: str
    """For a role session: the role's unique ID, a colon, the session's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSession:
    """What the ARN of a role session says."""

    partition: str
    account: str
    role: str
    session: str
    """For a session that EC2 made, the instance's ID."""


def parse_identity(body: bytes) -> CallerIdentity | None:
    """Read the answer to a request that STS accepted."""
    result = _inside(_json(body), "GetCallerIdentityResponse", "GetCallerIdentityResult")
    account, arn, user_id = (_text(result, name) for name in ("Account", "Arn", "UserId"))
    if not (_ACCOUNT.fullmatch(account) and _ARN.fullmatch(arn) and _USER_ID.fullmatch(user_id)):
        return None
    return CallerIdentity(account=account, arn=arn, user_id=user_id)


def parse_error_code(body: bytes) -> tuple[str, str] | None:
    """Read code and message of a refusal."""
    error = _inside(_json(body), "Error")
    code = _text(error, "Code")
    return (code, _text(error, "Message")) if _CODE.fullmatch(code) else None


def parse_role_session(arn: str) -> RoleSession | None:
    """Take the ARN of a role session apart."""
    match = _ROLE_SESSION.fullmatch(arn)
    if match is None:
        return None
    return RoleSession(
        partition=match["partition"], account=match["account"], role=match["role"], session=match["session"]
    )


def _json(body: bytes) -> object:
    try:
        return strict_json.parse(body, max_size=None, floats=True)
    except ParseError:
        return None


def _inside(value: object, *path: str) -> object:
    for name in path:
        value = cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
    return value


def _text(value: object, name: str) -> str:
    found = _inside(value, name)
    return found if isinstance(found, str) else ""
