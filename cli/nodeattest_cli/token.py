"""``nodeattest token``: bootstrap tokens, with the options and the output of ``kubeadm token``.

Standard output holds the token and nothing else; that it is a powerful credential is printed to standard error. A token
lasts a day by default, and forever only if that is said. At most one source of a token; an error shows no character of
it. The table has kubeadm's columns, and JSON and YAML are what kubeadm prints, one object after the other.
Source: kubernetes cmd/kubeadm/app/cmd/token.go, cmd/util/join.go, apis/bootstraptoken/v1/utils.go and
apis/output/v1alpha3; apimachinery pkg/util/duration; docs/decisions.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.connection import Connection, explained, run
from nodeattest_cli.errors import ExitCode, StateError, UserError, user_errors
from nodeattest_cli.options import Duration, connected, output_option
from nodeattest_cli.output import format_table, print_document, print_exactly, print_lines, to_json, to_yaml
from nodeattest_discovery.clusterinfo import parse_ca_bundle
from nodeattest_discovery.secret import (
    DEFAULT_GROUP,
    NAMESPACE,
    SECRET_TYPE,
    TokenSecret,
    Usage,
    encode,
    secret_name,
    stored_token,
    text_values,
)
from nodeattest_discovery.tls import pin_of
from nodeattest_discovery.token import BootstrapToken, generate, parse, parse_id
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, ApiError, NotFound
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.times import format_rfc3339, try_parse_rfc3339
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason

DEFAULT_TTL: Final = "24h0m0s"
_COLLECTION: Final = paths.core_path("secrets", namespace=NAMESPACE)
_LARGEST: Final = 1024
"""Bytes of a file with a token."""
_SHOWN: Final = 253
"""Characters of a name; Kubernetes takes no more."""
_HOST_PORT: Final = re.compile(r"https://((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)/?", re.ASCII)
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}", re.ASCII)
_USAGE_PREFIX: Final = "usage-bootstrap-"
_MISTAKEN: Final = "auth-groups"
"""The key of an early proposal; every reader looks for ``auth-extra-groups``."""
_HEADINGS: Final = ("TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS")
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A stored token, as it is shown."""

    token: BootstrapToken
    description: str
    expires: datetime | None
    usages: tuple[str, ...]
    groups: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Return kubeadm's object; what is empty is left out."""
        fields: JsonObject = {
            "kind": "BootstrapToken",
            "apiVersion": "output.kubeadm.k8s.io/v1alpha3",
            "token": self.token.reveal(),
            "description": self.description,
            "expires": format_rfc3339(self.expires) if self.expires else "",
            "usages": [*self.usages],
            "groups": [*self.groups],
        }
        return {name: value for name, value in fields.items() if value}


def _take_apart(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> list[str] | None:
    """Take lists apart, as cobra's string slices are; None where nothing was given, empty where "" was."""
    return [word for one in given for word in one.split(",") if word] if given else None


@click.command()
@click.argument("token", required=False)
@click.option("--token-file", metavar="FILE", help="Read the token from a file; - is standard input.")
@click.option(
    "--usages",
    multiple=True,
    callback=_take_apart,
    help="signing, authentication or both, with commas or repeated (both).",
)
@click.option(
    "--groups",
    multiple=True,
    callback=_take_apart,
    help=f"Extra groups of the user that authenticates with it ({DEFAULT_GROUP}).",
)
@click.option("--ttl", type=Duration(), default=DEFAULT_TTL, help="When it expires, such as 1h30m; 0 is never.")
@click.option("--description", help="What it is for.")
@click.option("--print-join-command", is_flag=True, help="Print kubeadm's command that joins with it, instead of it.")
@click.option(
    "--provider", metavar="NAME", help="With --print-join-command: that of kubelet-authenticator, with this provider."
)
@connected
def create(
    *,
    connection: Connection,
    token: str | None,
    token_file: str | None,
    usages: list[str] | None,
    groups: list[str] | None,
    ttl: timedelta,
    description: str | None,
    print_join_command: bool,
    provider: str | None,
) -> None:
    """Create a bootstrap token in the cluster, and print it.

    TOKEN is the token to create, a random one if it is left away. Others on this machine can read the arguments of a
    command: - takes it from standard input.
    """
    if provider is not None and (not print_join_command or _PROVIDER.fullmatch(provider) is None):
        raise UserError("--provider: expected --print-join-command, and a name such as tpm or aws")
    made = make_token(read_token(token, token_file), ttl, description=description or "", usages=usages, groups=groups)
    printed = made.token.reveal()
    if print_join_command:
        printed = join_command(connection.endpoint, made.token, provider)
    run(connection, lambda client: store(client, made))
    if said := warning(made):
        print_lines(f"nodeattest: {said}", err=True)
    print_exactly(f"{printed}\n")


@click.command()
@click.argument("token", nargs=-1)
@click.option("--ignore-not-found", is_flag=True, help="A token that does not exist counts as deleted.")
@connected
def delete(*, connection: Connection, token: tuple[str, ...], ignore_not_found: bool) -> int:
    """Delete bootstrap tokens.

    TOKEN is a token's id, a whole token, or - for one on standard input. API servers accept a deleted token for some
    more seconds. Every TOKEN is tried: exit code 1 when one does not exist, 3 when one could not be deleted.
    """
    with user_errors("the token"):
        ids = [parse_id(read_token_text(word, None) or "") for word in token]
    if not ids:
        raise UserError("expected a token, or its id: six lower-case letters or digits")

    async def work(client: ApiClient) -> ExitCode:
        code = ExitCode.DONE
        for token_id in ids:
            try:
                await client.delete(secret_path(token_id))
            except NotFound:
                code = max(code, ExitCode.DONE if ignore_not_found else ExitCode.REFUSED)
                print_lines(f'bootstrap token "{token_id}" not found', err=not ignore_not_found)
            except ApiError as error:
                failure = explained(error)
                code = max(code, failure.code)
                print_lines(f'nodeattest: bootstrap token "{token_id}" is not deleted: {failure}', err=True)
            else:
                print_lines(f'bootstrap token "{token_id}" deleted')
        return code

    return run(connection, work)


@click.command("generate")
def generate_token() -> None:
    """Print a random token, and create nothing."""
    print_lines(generate().reveal())


@click.command("list")
@output_option("text", "json", "yaml")
@connected
def list_tokens(*, connection: Connection, output: str) -> None:
    """List the bootstrap tokens of the cluster, secrets included.

    A Secret that is no token is reported on standard error, and the rest is listed.
    """
    found: list[TokenView] = []
    for secret in run(connection, token_secrets):
        print_lines(*(f"nodeattest: {said}" for said in warnings(secret)), err=True)
        try:
            found.append(stored_view(secret))
        except Denied as denied:
            print_lines(f"nodeattest: {_name(secret)}: expected {denied.expected}, got {denied.got}", err=True)
    print_document(format_tokens(found, output, datetime.now(UTC)))


def read_token(word: str | None, file: str | None) -> BootstrapToken | None:
    """Read the token of an argument (``-``: standard input) or of a file (the same); None where neither is given."""
    written = read_token_text(word, file)
    if written is None:
        return None
    with user_errors("the token"):
        return parse(written)


def read_token_text(word: str | None, file: str | None) -> str | None:
    """Read the text of an argument or a file, without white space around it."""
    if word is not None and file is not None:
        raise UserError("the token: expected an argument or --token-file, got both")
    path = file if file is not None else "-" if word == "-" else None
    if path is None:
        return word
    try:
        if path == "-":
            content = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with Path(path).open("rb") as opened:
                content = opened.read(_LARGEST + 1)
        found = content.decode("ascii").strip()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: expected a bootstrap token, got no ASCII") from None
    if not found or len(content) > _LARGEST:
        raise UserError(f"{path}: expected a bootstrap token, got {'too much' if found else 'nothing'}")
    return found


def make_token(
    token: BootstrapToken | None,
    ttl: timedelta,
    *,
    description: str = "",
    usages: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
) -> TokenSecret:
    """Make a token, a random one without ``token``; raises ``UserError`` for what no API server would take as one."""
    known = [usage.value for usage in Usage]
    for word in usages if usages is not None else known:
        if word not in known:
            raise UserError(f"--usages: expected {' or '.join(known)}, got {word[:40]!a}")
    wanted = frozenset(map(Usage, usages)) if usages is not None else frozenset(Usage)
    default = (DEFAULT_GROUP,) if Usage.AUTHENTICATION in wanted else ()
    made = TokenSecret(
        token=token or generate(),
        usages=wanted,
        groups=default if groups is None else tuple(groups),
        expires=datetime.now(UTC) + ttl if ttl else None,
        description=description,
    )
    with user_errors("the token"):
        encode(made)
    return made


async def store(client: ApiClient, made: TokenSecret) -> None:
    """Create the Secret; raises ``StateError`` where the id is taken."""
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(made.token.id), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "data": {**encode(made)},
    }
    try:
        await client.create(_COLLECTION, body)
    except AlreadyExists:
        raise StateError(f'a token with id "{made.token.id}" already exists') from None


def secret_path(token_id: str) -> str:
    """Return the path of a token's Secret."""
    return paths.core_path("secrets", secret_name(token_id), namespace=NAMESPACE)


async def token_secrets(client: ApiClient) -> list[JsonObject]:
    """Read every Secret of the type of bootstrap tokens."""
    query = {"fieldSelector": f"type={SECRET_TYPE}"}
    return [secret async for page in client.pages(_COLLECTION, query) for secret in items(page, "items")]


def warning(made: TokenSecret) -> str:
    """Say what a token that authenticates is worth; empty for one that only signs."""
    if Usage.AUTHENTICATION not in made.usages:
        return ""
    return (
        f"token {made.token.id} authenticates: its holder may ask for certificates as a new node"
        f"{'' if made.expires else ', for ever'}; hand it to one machine only, and delete it afterwards: nodeattest "
        f"token delete {made.token.id}"
    )


def join_command(endpoint: ApiEndpoint, token: BootstrapToken, provider: str | None) -> str:
    """Write kubeadm's join line, or with a ``provider`` the agent's; each CA of the kubeconfig is pinned.

    Raises ``UserError`` for a kubeconfig that no machine can join by.
    """
    found = _HOST_PORT.fullmatch(endpoint.server)
    if found is None:
        raise UserError("the kubeconfig's server: expected https://host:port and no path, which machines join by")
    if endpoint.ca_pem is None:
        raise UserError("the kubeconfig: expected certificate-authority-data, of which machines pin the CA, got none")
    with user_errors("the kubeconfig's CA"):
        pins = dict.fromkeys(map(pin_of, parse_ca_bundle(endpoint.ca_pem.encode())))
    hashes = "".join(f"--discovery-token-ca-cert-hash {pin} " for pin in pins)
    rest = f"{found[1]}{'' if found[2] else ':443'} --token {token.reveal()} {hashes}"
    return f"kubeadm join {rest}" if provider is None else f"kubelet-authenticator join {rest}--provider {provider}"


def stored_view(secret: JsonObject) -> TokenView:
    """Read a Secret by kubeadm's rules; raises ``Denied``.

    1. Type, name and ``token-id`` agree. 2. The secret is one. 3. The expiration, if there is one, is RFC 3339.
    """
    # 1
    stored = stored_token(secret)
    if stored is None:
        raise _unreadable("a name of bootstrap-token- and the token-id", "others")
    # 2
    token = parse(stored.reveal())
    # 3
    keys = ("expiration", "description", "auth-extra-groups")
    expiration, description, groups = (
        value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in text_values(secret, keys)
    )
    expires = try_parse_rfc3339(expiration)
    if expiration and expires is None:
        raise _unreadable("an expiration such as 2026-01-01T00:00:00Z", ascii(expiration[:40]))
    usages = (key for key in mapping(secret, "data") if key.startswith(_USAGE_PREFIX))
    return TokenView(
        token=token,
        description=description,
        expires=expires,
        usages=tuple(sorted(u.removeprefix(_USAGE_PREFIX) for u in usages if text_values(secret, [u]) == ("true",))),
        groups=tuple(groups.split(",")) if groups and not groups.startswith(",") else (),
    )


def warnings(secret: JsonObject) -> Iterator[str]:
    """Yield what its author may not have meant."""
    if _MISTAKEN in mapping(secret, "data"):
        yield f"{_name(secret)}: the key {_MISTAKEN} is read by nobody; extra groups belong in auth-extra-groups"


def format_tokens(tokens: Sequence[TokenView], output: str, now: datetime) -> str:
    """Write tokens as text, JSON or YAML; nothing where there are none."""
    if not tokens:
        return ""
    match output:
        case "json":
            return "".join(f"{to_json(token.to_json(), indent=4)}\n" for token in tokens)
        case "yaml":
            return "---\n".join(to_yaml(token.to_json()) for token in tokens)
        case _:
            return "".join(f"{line}\n" for line in format_table([_HEADINGS, *(_row(token, now) for token in tokens)]))


def _row(token: TokenView, now: datetime) -> tuple[str, ...]:
    ttl, expires = "<forever>", "<never>"
    if token.expires is not None:
        ttl, expires = _time_left(token.expires - now), format_rfc3339(token.expires)
    cells = (token.token.reveal(), ttl, expires, ",".join(token.usages), token.description, ",".join(token.groups))
    return tuple(cell or "<none>" for cell in cells)


def _time_left(left: timedelta) -> str:
    """Write a time to live in its largest unit, as kubeadm does: ``59m``, ``23h``, ``3d``."""
    seconds = int(left.total_seconds())
    if seconds < -1:  # clocks differ
        return "<invalid>"
    for size, unit in ((365 * _DAY, "y"), (_DAY, "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "m")):
        if seconds >= size.total_seconds():
            return f"{int(seconds // size.total_seconds())}{unit}"
    return f"{max(seconds, 0)}s"


def _name(secret: JsonObject) -> str:
    return ascii(text(secret, "metadata", "name")[:_SHOWN])[1:-1] or "(no name)"


def _unreadable(expected: str, got: str) -> Denied:
    remedy = "delete the Secret, and make a token with: nodeattest token create"
    return Denied(Reason.TOKEN_MALFORMED, expected=expected, got=got, remedy=remedy)
