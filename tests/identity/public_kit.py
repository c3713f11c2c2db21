"""The public side of a place: HTTPS on loopback over a directory or a bucket, with the faults of web servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from front_kit import Authority
from store_kit import BUCKET, bucket_client

from nodeattest_identity.issuer.documents import default_jwks_uri

_TYPES = {"jwks": "application/jwk-set+json", "openid-configuration": "application/json"}
Spoil = Callable[[web.Request, web.Response], web.StreamResponse]


def _as_it_is(_request: web.Request, response: web.Response) -> web.StreamResponse:
    return response


@dataclass
class Public:
    """A running server and what it serves."""

    root: Path
    authority: Authority
    ca_file: Path
    port: int = 0
    bucket: str | None = None
    """URL of an S3 whose bucket's objects below ``c1/`` are served instead of the directory's files."""
    max_age: int = 3600
    spoil: Spoil = _as_it_is
    asked: list[str] = field(default_factory=list[str])

    @property
    def issuer(self) -> str:
        return f"https://127.0.0.1:{self.port}/c1"

    @property
    def jwks_uri(self) -> str:
        return default_jwks_uri(self.issuer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        assert "Authorization" not in request.headers
        assert "Cookie" not in request.headers
        path = request.path.removeprefix("/c1/")
        found = await (self._file(path) if self.bucket is None else self._object(path))
        return self.spoil(request, found)

    async def _file(self, path: str) -> web.Response:
        file = self.root / path
        if not file.is_file():
            return web.Response(status=404)
        headers = {"Cache-Control": f"public, max-age={self.max_age}", "Content-Type": _TYPES[file.name]}
        return web.Response(body=file.read_bytes(), headers=headers)

    async def _object(self, path: str) -> web.Response:
        """Hand on what the private bucket says, as a CDN with an identity of its own does."""
        assert self.bucket is not None
        found = await asyncio.to_thread(bucket_client(self.bucket).get_object, Bucket=BUCKET, Key=f"c1/{path}")
        headers = {"Content-Type": found["ContentType"], "Cache-Control": found["CacheControl"]}
        return web.Response(body=found["Body"].read(), headers=headers)


@asynccontextmanager
async def public(directory: Path) -> AsyncGenerator[Public]:
    """Serve ``directory/www`` over HTTPS, by an authority of its own."""
    authority = Authority("the public")
    root, ca_file = directory / "www", directory / "ca.crt"
    root.mkdir()
    ca_file.write_bytes(authority.pem)
    certificate, key = authority.certify(directory / "tls")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    served = Public(root, authority, ca_file)
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", served.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    served.port = runner.addresses[0][1]
    try:
        yield served
    finally:
        await runner.cleanup()
