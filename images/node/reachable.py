"""Prints the files in the folders argv[2:] that the agent can import on argv[1], such as ``x86_64-linux-gnu``.

Imports inside functions count. What C code imports by name, and packages whose modules are chosen at run time, are
listed here. Joins in the tests run with nothing but these files. Runs in Debian 13's Python for the building machine.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Final

_BY_NAME: Final = """
    _cffi_backend _strptime copyreg linecache site traceback warnings
    encodings.aliases encodings.ascii encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_8
    encodings.utf_8_sig
"""
"""What C code imports by name."""
_ROOTS: Final = """
    nodeattest_authenticator/**/*.py nodeattest_providers/*/attestor.py cryptography/**/*.py
    botocore/auth.py botocore/awsrequest.py botocore/credentials.py
"""
"""The agent, the attestors that the table of providers names, and packages whose C code imports modules by name."""
_NEVER: Final = """
    _pydecimal _pyio _pyrepl _uuid asyncio bz2 ctypes curses doctest ftplib http.server lzma multiprocessing pdb
    pydoc readline rlcompleter smtplib sqlite3 tarfile test tkinter unittest xml.dom xml.sax xmlrpc zoneinfo awscrt
    botocore.crt botocore.docs dateutil.zoneinfo requests setuptools urllib3.contrib yaml._yaml
"""
"""Reached by code that the agent does not run."""


def main(system: str, folders: list[Path]) -> None:
    """Print one path a line."""
    suffixes = [f".{sys.implementation.cache_tag}-{system}.so", *EXTENSION_SUFFIXES[1:]]
    loaders = (ExtensionFileLoader, suffixes), (SourceFileLoader, [".py"])
    sys.path_hooks.insert(0, FileFinder.path_hook(*loaders))
    sys.path_importer_cache.clear()
    path = [str(folder) for folder in folders] + [str(folder / "lib-dynload") for folder in folders]
    finder = ModuleFinder(path=path, excludes=_NEVER.split())
    for folder in folders:
        for file in sorted(file for pattern in _ROOTS.split() for file in folder.glob(pattern)):
            parts = file.relative_to(folder).with_suffix("").parts
            finder.import_hook(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    for name in _BY_NAME.split():
        finder.import_hook(name)
    for module in finder.modules.values():
        found: str | None = getattr(module, "__file__", None)  # typeshed does not know this attribute
        if found is not None:
            sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(sys.argv[1], [Path(name) for name in sys.argv[2:]])
