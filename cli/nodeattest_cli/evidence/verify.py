"""``nodeattest evidence verify``: verifies a signed attestation result, and shows what it says, without any cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from nodeattest_cli.errors import ExitCode, UserError, user_errors
from nodeattest_cli.evidence.attestation_result import MAX_RESULT, RECORD, AttestationResult, verify_result
from nodeattest_cli.explain.command import config_option, explanation_lines, read_platforms
from nodeattest_cli.explain.replay import explain_request
from nodeattest_cli.issuer.options import read_keys
from nodeattest_cli.output import output_option, print_document, print_lines, to_json
from nodeattest_controller.model.objects import mapping, rfc3339, text

__all__ = ["verify"]

_NO_REQUEST = "no request to evaluate again: the result was made when the workload cluster had none of the machine"


@click.command()
@click.argument("path", metavar="FILE")
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Public key of who signs results, in PEM. As many files as you like; one key must fit.",
)
@config_option
@output_option("text", "json")
def verify(*, path: str, keys: tuple[Path, ...], config: Path | None, output: str) -> int:
    """Verify a signed attestation result, and evaluate its evidence again, without any cluster.

    FILE was written by nodeattest evidence export --signing-key; - is standard input. Signature and claims are
    verified, then that the result follows from the machine's record inside. If the record's request was still there at
    the export, its checks run once more, as of the request's own day; what only a cluster or a platform can tell is
    shown as not checked.

    Exit code 0: verified, and nothing refuses the request. 1: the result is not genuine, or a check refuses the
    request. What tier the machine has does not change the exit code.
    """
    platforms = read_platforms(config)
    token, known = _read(path), read_keys(keys)
    with user_errors(path, found=True):
        result = verify_result(token, known, datetime.now(UTC))
    found = result.evidence
    explanation = explain_request(found.csr, found.documents, platforms) if found.csr is not None else None
    if output == "json":
        print_document(
            to_json(
                {
                    "machine": result.machine,
                    "made": rfc3339(result.made),
                    "build": result.build,
                    "keyID": result.key_id,
                    "appraisal": result.appraisal,
                    "explanation": explanation.to_json() if explanation is not None else None,
                }
            )
        )
    else:
        print_lines(*_lines(result), "")
        print_lines(*(explanation_lines(explanation) if explanation is not None else (_NO_REQUEST,)))
    refused = explanation is not None and (explanation.failed or explanation.unexplained)
    return ExitCode.REFUSED if refused else ExitCode.DONE


def _lines(result: AttestationResult) -> Iterator[str]:
    record = mapping(result.appraisal, RECORD)
    yield f"signed by    key {result.key_id}, {rfc3339(result.made)}, nodeattest {result.build}"
    yield f"machine      {result.machine}"
    yield f"status       {result.tier}"
    for name, label in (
        ("state", "state"),
        ("provider", "provider"),
        ("providerID", "provider ID"),
        ("nodeName", "node"),
    ):
        if said := text(record, name):
            yield f"{label.ljust(11)}  {said}"
    if serial := text(record, "certificate", "serial"):
        yield f"serial       {serial}, certificate until {text(record, 'certificate', 'notAfter')}"


def _read(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(MAX_RESULT + 1).strip()
        with Path(path).open("rb") as file:
            return file.read(MAX_RESULT + 1).strip()
    except OSError as error:
        raise UserError(f"{path}: expected a signed attestation result, got {error.strerror}") from None
