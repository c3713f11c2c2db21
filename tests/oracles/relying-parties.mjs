// npm jose and openid-client as relying parties: which of the given tokens do they take?
// In: {issuer, audience, nonce, tokens: {name: {alg, token}}}. Out: {library: {name: true or the error's code}}.
import { createRemoteJWKSet, jwtVerify } from "jose";
import * as openid from "openid-client";
import { json } from "node:stream/consumers";

const question = await json(process.stdin);
const issuer = new URL(question.issuer);

async function verdicts(take) {
  const found = {};
  for (const [name, { alg, token }] of Object.entries(question.tokens)) {
    try {
      found[name] = (await take(token, alg)) === true;
    } catch (error) {
      found[name] = error.code ?? error.name;
    }
  }
  return found;
}

// openid-client discovers the issuer and validates ID tokens; it has one algorithm a client.
const clients = {};
for (const alg of ["RS256", "ES256", "ES384", "ES512"]) {
  clients[alg] = await openid.discovery(issuer, question.audience, { id_token_signed_response_alg: alg });
  openid.useIdTokenResponseType(clients[alg]);
}
const metadata = clients.RS256.serverMetadata();
const keys = createRemoteJWKSet(new URL(metadata.jwks_uri));

console.log(JSON.stringify({
  jose: await verdicts(async (token) => {
    const expected = { issuer: question.issuer, audience: question.audience, algorithms: ["RS256", "ES256", "ES384", "ES512"] };
    return (await jwtVerify(token, keys, expected)).payload.iss === question.issuer;
  }),
  "openid-client": await verdicts(async (token, alg) => {
    const answer = new URL(`https://client.example/callback#id_token=${token}`);
    return (await openid.implicitAuthentication(clients[alg], answer, question.nonce)).iss === question.issuer;
  }),
}));
