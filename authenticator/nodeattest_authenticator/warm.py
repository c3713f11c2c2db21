"""For scripts that were installed before the fast path moved: run ``pip install`` again and they need it no more."""

from nodeattest_authenticator.exec_plugin.fast_path import run

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run what the script of today runs."""
    status = run(argv)
    if status is not None:
        return status
    from nodeattest_authenticator.main import main as run_command

    return run_command(argv)
