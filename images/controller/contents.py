"""What the image holds: tables, each row with its reason. ``build`` reads them."""

from __future__ import annotations

import re
from typing import Final

from images.debian import PYTHON

USER: Final = 65532
"""User and group, as the manifests have them."""
SITE_PACKAGES: Final = f"usr/local/lib/python{PYTHON}/dist-packages"

DEBIAN_FILES: Final = re.compile(
    r"""
    lib(64)? | usr/lib(64)?/ld-linux[^/]+            # links to usr/lib and to the loader
    | usr/lib/\w+-linux-gnu/[^/]+\.so[^/]*           # shared libraries; not gconv
    | usr/bin/python3\.13
    | usr/lib/python3\.13/.+
    | usr/lib/os-release | etc/os-release | etc/debian_version
    | usr/share/doc/[^/]+/copyright
    | usr/share/ca-certificates/mozilla/[^/]+\.crt   # joined into one file
    """,
    re.VERBOSE,
)
"""Paths that are taken from Debian packages."""
LEFT_OUT: Final = (
    (r"usr/lib/python3\.13/(_pyrepl|pydoc_data|idlelib|turtledemo|ensurepip|tkinter|venv)/.*", "for people"),
    (r"usr/lib/python3\.13/(sitecustomize|turtle|antigravity|this)\.py", "for people"),
    (r"usr/lib/python3\.13/lib-dynload/(_sqlite3|_dbm|_gdbm|_curses|_curses_panel|readline|_uuid)\..*", "others"),
    (r"usr/lib/python3\.13/lib-dynload/(_xxtestfuzz|xxlimited.*|_test.*|_ctypes_test)\..*", "tests"),
    (r".*/botocore/data/(?!ec2/|sts/)[^/]+/.*", "services that no verifier calls"),
    (r".*/boto3/examples/.*", "examples"),
    (r".*\.(c|h|pxd|pyx|pyi|a)", "sources of extension modules, types"),
    (r".*/direct_url\.json", "names the folder of the build"),
)
"""Paths that are left out of packages and wheels, as regular expressions, and why."""

OWN_WHEELS: Final = {"common": "providers", "agent": "authenticator", "controller": "controller", "cli": "cli"}
"""``nodeattest-<name>`` and its folder. cli has the commands of issuer, discovery and add-ons, and needs agent."""
ROOT: Final = "nodeattest-cli"
"""The wheel that needs all of them."""
EXTRAS: Final = frozenset({"aws", "azure", "gcp", "store"})
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


def is_wanted(path: str) -> bool:
    """Tell whether a path of a Debian package is in the image."""
    return DEBIAN_FILES.fullmatch(path) is not None and not is_left_out(path)


def is_left_out(path: str) -> bool:
    """Tell whether a path of the image is left out."""
    return _LEFT_OUT.fullmatch(path) is not None
