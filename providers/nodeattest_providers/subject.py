"""The one subject that a kubelet's request and certificate have.

Source: kubernetes pkg/apis/certificates/helpers.go (O ``system:nodes``, CN ``system:node:<name>``).
"""

from __future__ import annotations

import warnings

from cryptography import x509
from cryptography.x509.oid import NameOID

from nodeattest_providers.names import NODE_USER_PREFIX, NODES_GROUP, NodeName

# cryptography warns when it reads a subject longer than the 64 characters of X.520, as those of long node names are.
warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)


def kubelet_subject(node_name: NodeName) -> x509.Name:
    """Build O and CN for a node.

    A node name may have 253 characters, more than X.520's ub-common-name of 64: Kubernetes' own certificates exceed it
    too, and its API server reads them; the library would rather warn.
    """
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        common_name = x509.NameAttribute(NameOID.COMMON_NAME, NODE_USER_PREFIX + node_name, _validate=False)
    return x509.Name([organization, common_name])
