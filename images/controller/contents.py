"""What the image holds: tables, each row with its reason. ``build`` reads them."""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "COMMANDS",
    "DEBIAN_FILES",
    "DEBIAN_PACKAGES",
    "EXTRAS",
    "LEFT_OUT",
    "OWN_WHEELS",
    "PYTHON",
    "ROOT",
    "SITE_PACKAGES",
    "SYSTEM_FILES",
    "USER",
    "is_left_out",
]

PYTHON: Final = "3.11"
USER: Final = 65532
"""User and group, as the manifests have them."""
SITE_PACKAGES: Final = f"usr/local/lib/python{PYTHON}/dist-packages"

DEBIAN_PACKAGES: Final = (
    "base-files",  # /etc/os-release: scanners read it
    "ca-certificates",  # clouds' APIs
    "libbz2-1.0",  # bz2, which shutil imports
    "libc6",
    "libexpat1",  # xml, for clouds' answers
    "libffi8",  # ctypes
    "libgcc-s1",  # threads' cancellation; extension modules
    "liblzma5",  # lzma, which shutil imports
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",  # ssl, hashlib
    "python3.11-minimal",
    "zlib1g",
)
DEBIAN_FILES: Final = re.compile(
    r"""
    lib(64)?/(x86_64-linux-gnu/)?[^/]+\.so[^/]*      # shared libraries; not gconv
    | usr/lib/x86_64-linux-gnu/[^/]+\.so[^/]*
    | usr/bin/python3\.11
    | usr/lib/python3\.11/.+
    | usr/lib/os-release | etc/os-release | etc/debian_version
    | usr/share/doc/[^/]+/copyright
    | usr/share/ca-certificates/mozilla/[^/]+\.crt   # joined into one file
    """,
    re.VERBOSE,
)
"""Paths that are taken from Debian packages."""
LEFT_OUT: Final = (
    (r"usr/lib/python3\.11/(pydoc_data|idlelib|turtledemo|ensurepip|lib2to3|tkinter|venv|distutils)/.*", "for people"),
    (r"usr/lib/python3\.11/(sitecustomize|turtle|antigravity|this)\.py", "for people"),
    (
        r"usr/lib/python3\.11/lib-dynload/(_sqlite3|_dbm|_gdbm|_curses|_curses_panel|readline|nis|_uuid|_crypt)\..*",
        "others",
    ),
    (
        r"usr/lib/python3\.11/lib-dynload/(ossaudiodev|_xxtestfuzz|xxlimited|xxlimited_35|_test.*|_ctypes_test)\..*",
        "tests",
    ),
    (r".*/botocore/data/(?!ec2/|sts/|s3/)[^/]+/.*", "services that no verifier and no issuer calls"),
    (r".*/boto3/examples/.*", "examples"),
    (r".*\.(c|h|pxd|pyx|pyi|a)", "sources of extension modules, types"),
    (r".*/direct_url\.json", "names the folder of the build"),
)
"""Paths that are left out of packages and wheels, as regular expressions, and why."""

OWN_WHEELS: Final = {"common": "providers", "agent": "authenticator", "controller": "controller", "cli": "cli"}
"""``nodeattest-<name>`` and its folder. cli has the commands of issuer, discovery and add-ons, and needs agent."""
ROOT: Final = "nodeattest-cli"
"""The wheel that needs all of them."""
EXTRAS: Final = frozenset({"aws", "azure", "gcp"})
"""Every provider that a policy can name."""

COMMANDS: Final = {
    "node-attestation-controller": "nodeattest_controller.main",
    "nodeattest": "nodeattest_cli.main",
}
"""Command to the module whose ``main`` it runs."""

SYSTEM_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/nonexistent:/sbin/nologin\n"
    f"nonroot:x:{USER}:{USER}:nonroot:/nonexistent:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",  # glibc's own default asks DNS first
}

_LEFT_OUT: Final = re.compile("|".join(f"(?:{pattern})" for pattern, _ in LEFT_OUT))


def is_left_out(path: str) -> bool:
    """Tell whether a path of the image is left out."""
    return _LEFT_OUT.fullmatch(path) is not None
