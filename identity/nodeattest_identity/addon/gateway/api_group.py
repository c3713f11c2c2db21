"""Where the gateway is found in the API: its group, its one resource, and the sub-resource that people call.

The group is its own, and not that of our CRDs: an APIService hands a whole version of a group to one server. It does
not end in ``.k8s.io``, which is Kubernetes' own (apiextensions-apiserver pkg/apihelpers, IsProtectedCommunityGroup).
"""

from __future__ import annotations

from typing import Final

__all__ = ["API_SERVICE", "GROUP", "GROUP_ROOT", "RESOURCE", "ROOT", "SUBRESOURCE", "VERSION"]

GROUP: Final = "addonauth.nodeattest.x-k8s.io"
VERSION: Final = "v1alpha1"
API_SERVICE: Final = f"{VERSION}.{GROUP}"
RESOURCE: Final = "services"
SUBRESOURCE: Final = "proxy"
GROUP_ROOT: Final = f"/apis/{GROUP}"
ROOT: Final = f"{GROUP_ROOT}/{VERSION}"
