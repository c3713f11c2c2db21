"""Day one, first part: verifies the release and installs from it, with Debian's Python and a network.

The second part (``journey``) runs without a network but for its own loopback.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from steps import AGENT, CLI, DIST, StepFailed, agent_package, run, step

_KEY: Final = Path("/srv/release.pub")
_SANDBOX: Final = Path("/srv/sandbox")


def verify(release: Path) -> None:
    """Verify signature and checksums as docs/install.md says."""
    sums = release / "SHA256SUMS"
    run("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", _KEY, "-rawin", "-in", sums, "-sigfile", f"{sums}.sig")
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", folder=release)


def refuses_tampered(release: Path) -> None:
    """A release of which one byte was changed does not verify."""
    chosen = agent_package(release)
    content = chosen.read_bytes()
    chosen.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        verify(release)
    except StepFailed:
        return
    finally:
        chosen.write_bytes(content)
    raise StepFailed("expected that a changed package is refused")


def command_line() -> None:
    """Install the command as docs/install.md says."""
    run("python3", "-m", "venv", CLI)
    run(CLI / "bin" / "pip", "install", "--quiet", "-r", DIST / "requirements-cli.txt")


def sandbox() -> None:
    """Put the sandbox beside it, by its hash; the command's libraries are all that it needs here."""
    lines = (DIST / "requirements-sandbox.txt").read_text().splitlines()
    [row] = [number for number, line in enumerate(lines) if line.startswith("nodeattest-sandbox==")]
    pinned = Path("/srv/sandbox.txt")
    pinned.write_text(f"--require-hashes\n--no-index\n--find-links {DIST}\n{lines[row]}\n{lines[row + 1]}\n")
    run(CLI / "bin" / "pip", "install", "--quiet", "--no-deps", "--target", _SANDBOX, "-r", pinned)


def main() -> None:
    """Verify and install."""
    with step("the release's signature and checksums are verified"):
        verify(DIST)
    with step("a changed package is refused"):
        refuses_tampered(DIST)
    with step("the command nodeattest is installed by hashes"):
        command_line()
    with step("the sandbox, in place of Cluster API and of machines"):
        sandbox()
    with step("the agent's package is installed"):
        run("dpkg", "--install", agent_package(DIST))
        run(AGENT, "--version")


if __name__ == "__main__":
    main()
