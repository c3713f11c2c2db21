"""The provider ID of an Oracle Cloud instance: ``oci://`` and the instance's OCID, as Cluster API's provider spells it.

Source: Oracle, "Resource Identifiers": ``ocid1.<type>.<realm>.[region][.future use].<unique ID>``.
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable

PREFIX: Final = "oci://"
_INSTANCE: Final = re.compile(r"ocid1\.instance\.oc[0-9]{1,4}\.[-a-z0-9]{1,30}\.[a-z0-9.]{1,160}")


def is_instance(ocid: str) -> bool:
    """Whether this is the OCID of an instance."""
    return _INSTANCE.fullmatch(ocid) is not None


def parse_provider_id(text: str) -> str:
    """Return the OCID of the instance that a provider ID names."""
    ocid = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or not is_instance(ocid):
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="oci://ocid1.instance.<realm>.<region>.<unique ID>",
            got=printable(text),
            remedy="compare the Machine's spec.providerID with the instance's OCID",
        )
    return ocid
