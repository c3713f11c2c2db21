// A WebSocket client that is not ours (npm ws): connects, sends, and tells what came back and how it ended.
import { text } from "node:stream/consumers";
import WebSocket from "ws";

const { url, headers, messages } = JSON.parse(await text(process.stdin));
const told = { received: [], status: 0, code: 0 };

const client = new WebSocket(url, { headers, perMessageDeflate: true });
client.on("open", () => messages.forEach((message) => client.send(message)));
client.on("message", (message) => told.received.push(message.toString()));
client.on("unexpected-response", (request, response) => {
  told.status = response.statusCode;
  process.stdout.write(JSON.stringify(told), () => process.exit(0));
});
client.on("error", () => {});
client.on("close", (code) => {
  told.code = code;
  process.stdout.write(JSON.stringify(told));
});
