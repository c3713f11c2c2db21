// npm oidc-provider as an issuer over HTTPS. In, a line each: {"keys": private JWKs, "alg": what signs} makes a provider of
// these keys; {"token": true} has it issue an ID token. Out, a line for each: {"issuer", "token"}.
import * as https from "node:https";
import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import Provider from "oidc-provider";

console.info = console.log = console.warn = console.error; // the library's notices; standard output is ours

const [certificate, key] = process.argv.slice(-2);
let provider;
const server = https.createServer({ cert: readFileSync(certificate), key: readFileSync(key) }, async (request, response) => {
  if (request.url.startsWith("/interaction/")) {
    // Nobody logs in here: the account is always the same.
    await provider.interactionFinished(request, response, { login: { accountId: "alice" } });
  } else {
    provider.callback()(request, response);
  }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `https://localhost:${server.address().port}`;

function start(keys, alg) {
  provider = new Provider(issuer, {
    clients: [{
      client_id: "vault", client_secret: "not a secret", redirect_uris: ["https://client.example/callback"],
      response_types: ["code"], grant_types: ["authorization_code"], token_endpoint_auth_method: "client_secret_post",
      id_token_signed_response_alg: alg,
    }],
    enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "ES384", "ES512"] },
    jwks: { keys },
    ttl: { Grant: 600, IdToken: 600, Interaction: 600, Session: 600, AuthorizationCode: 60, AccessToken: 60 },
    cookies: { keys: ["of a test"] },
    pkce: { required: () => false },
    features: { devInteractions: { enabled: false } },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    loadExistingGrant: async (context) => {
      const grant = new provider.Grant({ clientId: context.oidc.client.clientId, accountId: context.oidc.session.accountId });
      grant.addOIDCScope("openid");
      await grant.save();
      return grant;
    },
  });
}

// A browser of a few lines: follows redirects with cookies until the client's own address.
async function token() {
  const cookies = {};
  let url = `${issuer}/auth?client_id=vault&response_type=code&scope=openid&redirect_uri=https%3A%2F%2Fclient.example%2Fcallback`;
  for (let hops = 0; hops < 8 && !url.startsWith("https://client.example/"); hops += 1) {
    const headers = { cookie: Object.entries(cookies).map((pair) => pair.join("=")).join("; ") };
    const answer = await fetch(url, { headers, redirect: "manual" });
    for (const cookie of answer.headers.getSetCookie()) {
      const [name, value] = cookie.split(";")[0].split(/=(.*)/s);
      cookies[name] = value;
    }
    url = new URL(answer.headers.get("location") ?? "https://client.example/nowhere", url).href;
  }
  const form = new URLSearchParams({
    grant_type: "authorization_code", code: new URL(url).searchParams.get("code"), client_id: "vault",
    client_secret: "not a secret", redirect_uri: "https://client.example/callback",
  });
  return (await (await fetch(`${issuer}/token`, { method: "POST", body: form })).json()).id_token;
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  if (asked.keys) start(asked.keys, asked.alg);
  process.stdout.write(`${JSON.stringify({ issuer, token: asked.token ? await token() : null })}\n`);
}
server.closeAllConnections();
server.close();
