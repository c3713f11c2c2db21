"""A flood: one bootstrap token files junk as fast as the API server takes it; a process of its own.

``python -m bench.flooder SERVER CA_FILE COUNT NODE PROVIDER_ID <TOKEN``. A third of the requests is not well-formed, a
third names a machine that is not there, and a third names NODE's Machine, with the evidence of another TPM. All are
made before the first is filed, and filing gives way to everybody else, since a thief's machine is none of the
cluster's. Prints one character a hundred requests.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from bench.software_tpm import SoftwareAttestor
from nodeattest_authenticator.enrollment.enroll import USAGES
from nodeattest_authenticator.formats.csr_object import manifest
from nodeattest_authenticator.transport.api_client import ApiServerClient, Credentials
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers import envelope
from nodeattest_providers.csr import build_csr
from nodeattest_providers.names import ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence

CONNECTIONS = 8
PATIENCE = 600.0
PROGRESS = 100
KINDS = 3
YIELDING = 10
SIGNER = signer_for(ProviderName("tpm"), Purpose.CLIENT)


def main() -> None:
    server, ca_file, count, node, provider_id = sys.argv[1:]
    token = sys.stdin.readline().strip()
    key, attestor = ec.generate_private_key(ec.SECP256R1()), SoftwareAttestor()
    evidence = Evidence(attestor.provider, attestor.versions[0], attestor.tpm.first().to_json())

    def junk(number: int) -> bytes:
        who = (node, provider_id) if number % KINDS == 1 else (f"junk-{number}", f"demo://nowhere/{number}")
        request = envelope.encode(build_csr(key, *who), evidence)
        return request[: request.rindex(b"-----BEGIN")] if number % KINDS == 0 else request

    made = [junk(number) for number in range(int(count))]
    os.nice(YIELDING)

    def file(numbers: range) -> None:
        login = Credentials(username=f"system:bootstrap:{token[:6]}", token=token)
        deadline = Deadline.after(Clock(), PATIENCE)
        api = ApiServerClient(Endpoint.parse(server), login, ca_pem=Path(ca_file).read_bytes(), deadline=deadline)
        for number in numbers:
            request = made[number]
            name = f"junk-{number}-{hashlib.sha256(request).hexdigest()[:16]}"
            api.create(manifest(name, request, signer_name=SIGNER, usages=USAGES, expiration_seconds=None))
            if number % PROGRESS == 0:
                print(".", end="", flush=True)
        api.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(file, range(first, int(count), CONNECTIONS)) for first in range(CONNECTIONS)]:
            done.result()


if __name__ == "__main__":
    main()
