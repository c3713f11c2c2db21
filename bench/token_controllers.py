"""``token_controllers.py KUBECONFIG``: the token controllers alone, as a process to be measured."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from nodeattest_discovery.controllers.deps import TokenController
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_kube.client import ApiClient, ApiError


class Silent:
    """Hears what they did, and keeps it for itself."""

    def signed(self, tokens: int, seconds: float) -> None:
        pass

    def cleaned(self, name: str) -> None:
        pass

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        pass


async def run(kubeconfig: Path) -> None:
    async with ApiClient.from_kubeconfig_file(kubeconfig) as client:
        await TokenControllers(client, frozenset(TokenController), observer=Silent()).run()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
