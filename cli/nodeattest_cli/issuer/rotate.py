"""``nodeattest issuer rotate``: which step of a key's rotation is due, and when the next ones may come.

Promises: it changes nothing; it reads what is published and says what to do, so that no live token breaks. Exit code 0,
or 1 where live tokens break as things are, or 3 where a step that was asked for (``--may``) must wait. Everything else
is ``nodeattest_identity.publish.rotation``.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.durations import seconds
from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.issuer.options import Place, moment, place_options, read_keys
from nodeattest_cli.output import output_option, print_document, print_lines, to_json
from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.issuer.urls import UrlError
from nodeattest_identity.publish.key_lifecycle import confirmed_state
from nodeattest_identity.publish.paths import object_paths
from nodeattest_identity.publish.rotation import SLACK, Status, StepName, Timeline, timeline
from nodeattest_identity.publish.state import IssuerState, IssuerStateError, parse
from nodeattest_identity.publish.store import ForeignIssuerError, PublishError, StoreUnavailableError
from nodeattest_identity.tokens.jwt import printable
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["rotate"]

_FILE: Final = click.Path(path_type=Path)
_GATES: Final = {"sign": StepName.SIGN, "retire": StepName.RETIRE}
_WHAT: Final = {
    StepName.MAKE: "make the next key",
    StepName.PUBLISH: "let everybody know it",
    StepName.WAIT: "wait until no cache lacks it",
    StepName.SIGN: "sign with it",
    StepName.KEEP: "keep the old key until its last token has expired",
    StepName.RETIRE: "retire the old key",
}
_BEFORE: Final = {Status.DONE: "", Status.DUE: "now", Status.WAITING: "until ", Status.LATER: "from "}
_DO: Final[dict[StepName, tuple[str, ...]]] = {
    StepName.MAKE: (
        "openssl ecparam -name prime256v1 -genkey -noout -out sa-new.key (AWS: openssl genrsa -out sa-new.key 2048)",
        "openssl pkey -in sa-new.key -pubout -out sa-new.pub",
    ),
    StepName.PUBLISH: (
        "every kube-apiserver, one by one: add --service-account-key-file=sa-new.pub; the signing key stays",
        "nodeattest issuer publish with --service-account-key-file for both",
    ),
    StepName.WAIT: ("nothing",),
    StepName.SIGN: (
        "every kube-apiserver, one by one: --service-account-signing-key-file=sa-new.key; both key files stay",
        "kube-controller-manager: --service-account-private-key-file=sa-new.key",
    ),
    StepName.KEEP: (
        "nodeattest issuer publish without the old file: it stays published, and its time begins",
        "every kube-apiserver keeps the old --service-account-key-file",
    ),
    StepName.RETIRE: (
        "every kube-apiserver, one by one: remove the old --service-account-key-file",
        "nodeattest issuer publish takes the key out of the key set by itself",
    ),
}
"""For people: flags of kube-apiserver and commands, in their order."""


@click.command()
@place_options
@click.option(
    "--service-account-signing-key-file",
    "signing_file",
    type=_FILE,
    required=True,
    metavar="FILE",
    help="The key that signs now, as kube-apiserver's; its public half will do.",
)
@click.option(
    "--new-key-file", type=_FILE, metavar="FILE", help="The next one  [a key published after the one that signs]"
)
@click.option("--max-token-life", default="8761h", show_default=True, help="The longest life of a token.")
@click.option(
    "--slack", default=f"{SLACK}s", show_default=True, help="Beyond max-age; a CDN that holds for longer needs more."
)
@click.option(
    "--may", type=click.Choice(list(_GATES)), help="Only report, by exit code 0 or 3, whether this step may come now."
)
@output_option("table", "json")
def rotate(
    *,
    signing_file: Path,
    new_key_file: Path | None,
    max_token_life: str,
    slack: str,
    may: str | None,
    output: str,
    **flags: object,
) -> int:
    """Plan the rotation of a service accounts' key without an outage: what is due now, what may come when.

    Run it again after each step. Exit code 1: live tokens break as things are; 3: the step of --may must wait.
    """
    place = Place.of(flags)
    signer = _one(signing_file)
    new = None if new_key_file is None else _one(new_key_file)
    try:
        state = asyncio.run(_state(place))
    except StoreUnavailableError as error:
        print_lines(f"nodeattest: {error}; run it again", err=True)
        return ExitCode.NO_ACCESS
    except (PublishError, KeysError, UrlError) as error:
        raise UserError(str(error)) from None
    plan = timeline(
        state,
        signer,
        new,
        now=int(time.time()),
        slack=seconds("--slack", slack),
        token_life=seconds("--max-token-life", max_token_life),
    )
    if may is not None:
        return _may(plan, _GATES[may], signs_already=new == signer)
    if output == "json":
        print_document(to_json(_members(plan), indent=None))
    else:
        print_lines(*_table(plan))
    for trouble in plan.problems:
        print_lines(f"nodeattest: {trouble}", err=True)
    return ExitCode.REFUSED if plan.problems else 0


def _one(path: Path) -> str:
    """Name the one key of a file."""
    keys = read_keys((path,))
    if len(keys) != 1:
        raise UserError(f"{path}: expected one key, got {len(keys)}")
    return keys[0].kid


async def _state(place: Place) -> IssuerState | None:
    """Read what was published when, as far as the key set bears it out."""
    where = object_paths(place.issuer, place.jwks_uri)
    async with place.opened() as store:
        found = await store.read(where.state)
        jwks = await store.read(where.jwks)
    if found is None:
        return None
    try:
        state = parse(found.body)
    except IssuerStateError as error:
        raise ForeignIssuerError(f"{place.to}: our state there cannot be read: {error}") from None
    if state.issuer != place.issuer:
        raise ForeignIssuerError(
            f"{place.to}: the state there is of the issuer {state.issuer!a}, not of {place.issuer}"
        )
    return confirmed_state(state, jwks)


def _may(plan: Timeline, name: StepName, *, signs_already: bool) -> int:
    """Return the exit code, and print why not."""
    step = plan.step(name)
    if plan.problems:
        print_lines(f"nodeattest: {plan.problems[0]}", err=True)
        return ExitCode.NO_ACCESS
    if step.status is Status.DUE or (name is StepName.SIGN and signs_already):
        return 0
    due = next(each for each in plan.steps if each.status in {Status.DUE, Status.WAITING})
    if step.status is Status.DONE:
        print_lines(f"nodeattest: {name}: expected a next key that is published, got none", err=True)
        return ExitCode.NO_ACCESS
    print_lines(f"nodeattest: {name}: not before {moment(step.at)}; now: {_WHAT[due.name]} ({due.name})", err=True)
    return ExitCode.NO_ACCESS


def _table(plan: Timeline) -> list[str]:
    lines = [
        f"signs now: {plan.signer}",
        f"next:      {plan.new or '-'}",
        *(f"old:       {printable(kid)}" for kid in plan.old),
        "",
    ]
    for step in plan.steps:
        text = _BEFORE[step.status] + ("" if step.status is Status.DUE else moment(step.at))
        lines.append(f"{step.name:8}{step.status:9}{text:27}{_WHAT[step.name]}")
        if step.status is Status.DUE:
            lines += [f"        - {each}" for each in _DO[step.name]]
    return lines


def _members(plan: Timeline) -> JsonObject:
    steps: list[JsonObject] = [
        {
            "step": str(step.name),
            "status": str(step.status),
            "at": moment(step.at) or None,
            "what": _WHAT[step.name],
            "do": [*_DO[step.name]],
        }
        for step in plan.steps
    ]
    return {
        "signer": plan.signer,
        "new": plan.new,
        "old": [*plan.old],
        "steps": [*steps],
        "troubles": [*plan.problems],
    }
