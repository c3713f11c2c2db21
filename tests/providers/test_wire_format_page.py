"""The normative page and the code cannot disagree about names and limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeattest_providers import canonical_json, challenge_response, cms, envelope, identifiers, node_interface, pkcs10
from nodeattest_providers.aws import checks
from nodeattest_providers.aws import protocol as aws
from nodeattest_providers.azure import protocol as azure
from nodeattest_providers.azure import verifier as azure_claims
from nodeattest_providers.challenge import protocol
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_SUPPORTED_VERSIONS,
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    PROVIDER_ID_OID,
    ProviderName,
    Purpose,
    signer_for,
)
from nodeattest_providers.oci import protocol as oci
from nodeattest_providers.registry import BUILT_IN
from nodeattest_providers.tpm import boot_state
from nodeattest_providers.tpm import protocol as tpm
from nodeattest_providers.tpm.key_templates import AK_ATTRIBUTES, AK_POLICY, EK_TEMPLATES
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS, MAX_PCR

ANNOTATIONS = (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_SUPPORTED_VERSIONS,
    ANNOTATION_TPM_ENDORSEMENT_KEY,
)
LABELS = (challenge_response.LABEL_NONCE, challenge_response.LABEL_SECRET)
PROVIDER = ProviderName("<provider>")
BANKS = sorted(BANK_ALGORITHMS)
TEMPLATES = sorted((template.tcg_name for template in EK_TEMPLATES), key=lambda name: (name[0] != "L", name))
PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        *(f"| {number} | `{label}` |" for number, label in enumerate(envelope.LABELS, 1)),
        f"`{PROVIDER_ID_OID}`",
        f"`{ANNOTATION_CHALLENGE}`",
        f"`{ANNOTATION_SUPPORTED_VERSIONS}`",
        f"| envelope | {envelope.MAX_SIZE // 1024} KiB",
        f"| PKCS#10 DER | {pkcs10.MAX_SIZE // 1024} KiB |",
        f"| provider ID | 1 to {identifiers.MAX_PROVIDER_ID} characters |",
        f"| names in a serving request | 1 to {pkcs10.MAX_NAMES} |",
        f"| nesting of JSON | {canonical_json.MAX_DEPTH} levels",
        f"1 to {tpm.MAX_EVENT_LOG:,} bytes".replace(",", " "),
        f"At most {boot_state.MAX_EVENTS} events; at most {boot_state.MAX_EVENT_DATA:,} bytes of data".replace(
            ",", " "
        ),
        f"{protocol.MIN_SECRET} to {protocol.MAX_SECRET} bytes",
        f"at most {challenge_response.CHALLENGE_TTL.seconds} s after",
        f"more than {challenge_response.CLOCK_SKEW.seconds} s before",
        *(f'lp("{label.decode()}")' for label in LABELS),
        f"2 to {aws.MAX_DOCUMENT} bytes exactly",
        f"in DER, 1 to {aws.MAX_PKCS7} bytes",
        f"at most {aws.MAX_AUTHORIZATION}, exactly 16, and 1 to {aws.MAX_TOKEN} characters",
        f"within {checks.FRESHNESS.seconds} s of the request's",
        *(f"    {name}: " for name in aws.SIGNED_HEADERS),
        f"out of base64), 1 to {azure.MAX_SIGNATURE} bytes",
        f"first {azure.NONCE} characters of the binding",
        f"in DER, 1 to {oci.MAX_CERTIFICATE} bytes",
        f"at most {oci.MAX_INTERMEDIATES} certificates in DER",
        f"`createdOn` is within {azure_claims.TOLERANCE.seconds} s of",
        f"at most {cms.MAX_CERTIFICATES} certificates",
        *(f"`{partition.dns_suffix}`" for partition in aws.PARTITIONS),
        *(f"### {name}/v1" for name in BUILT_IN),
        f"`{AK_POLICY.hex()}`",
        *(f"| `{annotation}` |" for annotation in ANNOTATIONS),
        f"`{signer_for(PROVIDER, Purpose.CLIENT)}`",
        f"`{signer_for(PROVIDER, Purpose.SERVING)}`",
        f"There are at most {node_interface.MAX_VERSIONS};",
        f"exactly 0x{AK_ATTRIBUTES:08x} ",
        f"bank {', '.join(f'`{bank}`' for bank in BANKS[:-1])} or `{BANKS[-1]}`, 1 to {MAX_PCR + 1} PCRs",
        f"templates {', '.join(TEMPLATES[:-1])} and {TEMPLATES[-1]} ",
    ],
)
def test_the_page_says_what_the_code_does(words: str) -> None:
    assert words in PAGE or words in " ".join(PAGE.split())
