"""The ``azure`` provider's attestor: asks the metadata service for a document about this machine, with our nonce.

The service caches documents: one with an older nonce is not sent, and the service is asked again.
Source: Azure, "Instance Metadata Service" (attested data, instance metadata).
"""

from __future__ import annotations

from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.azure import protocol
from nodeattest_providers.metadata_service import MetadataAttestor
from nodeattest_providers.node_interface import Binding, Evidence, PublishedChallenge

_HEADERS: Final = {"Metadata": "true"}
_DOCUMENT: Final = "/metadata/attested/document?api-version=2020-09-01&nonce="
_INSTANCE: Final = "/metadata/instance/compute?api-version=2021-02-01"
_ATTEMPTS: Final = 3
_ENCODING: Final = "pkcs7"


class AzureAttestor(MetadataAttestor):
    """Makes Azure evidence."""

    provider = protocol.PROVIDER
    service_name = "Azure's metadata service"

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        nonce = protocol.nonce_for(binding.digest)
        for _ in range(_ATTEMPTS):
            signature = self._signature(self._service.get(_DOCUMENT + nonce, _HEADERS))
            if nonce.encode() in signature:
                return Evidence(protocol.PROVIDER, protocol.VERSION, protocol.AzureEvidence(signature).to_json())
        raise self._unusable("documents with another nonce than was asked for")

    def provider_id(self) -> str:
        compute = self._object(self._service.get(_INSTANCE, _HEADERS))
        found = protocol.provider_id_of(str(compute.get("resourceId", "")))
        if found is None:
            raise self._unusable("no resource ID of a virtual machine")
        return found

    def _signature(self, answer: bytes) -> bytes:
        document = self._object(answer)
        encoded = document.get("signature")
        if document.get("encoding") != _ENCODING or not isinstance(encoded, str):
            raise self._unusable("no document in PKCS#7")
        try:
            signature = decode_base64(encoded)
        except ValueError:
            raise self._unusable("a document that is not base64") from None
        if not 1 <= len(signature) <= protocol.MAX_SIGNATURE:
            raise self._unusable(f"a document of {len(signature)} bytes")
        return signature

    def _object(self, answer: bytes) -> JsonObject:
        try:
            return strict_json.parse_object(answer, max_size=None, floats=True)
        except ParseError as error:
            raise self._unusable(f"an answer with {error.found}") from None
