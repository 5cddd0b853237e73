import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { LostError, Punctual, Refuse, Retry, UnavailableError, nodeWebhook, queue, sign, webhook, type WebhookFire } from "punctual";
import { Serve, eventually, freePort } from "./support.js";

const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

test("a receiver answers by what its handler does", async () => {
  const receive = webhook<{ do: string }>(SECRET, (fire) => {
    if (fire.payload.do === "retry") throw new Retry("1500ms", "later");
    if (fire.payload.do === "refuse") throw new Refuse("never");
    if (fire.payload.do === "error") throw new Error("broken");
    return fire.payload.do === "result" ? { ok: true } : undefined;
  });
  const call = async (body: string, changed = body): Promise<Response> => {
    const timestamp = Math.floor(Date.now() / 1_000);
    const headers = { "webhook-id": "f1", "webhook-timestamp": String(timestamp), "webhook-signature": await sign(SECRET, "f1", timestamp, body) };
    return receive(new Request("http://localhost/hook", { method: "POST", headers, body: changed }));
  };
  const statuses = ["none", "result", "retry", "refuse", "error"].map(async (verb) => (await call(JSON.stringify({ do: verb }))).status);
  assert.deepEqual(await Promise.all(statuses), [204, 200, 503, 410, 500]);
  assert.equal((await call('{"do":"retry"}')).headers.get("retry-after"), "2");
  assert.equal((await call('{"do":"none"}', '{"do": "none"}')).status, 401);
});

test("a signed webhook of a broker is accepted by Node's http", { timeout: 60_000 }, async () => {
  await using broker = await Serve.start(["--signing-secret", `shop=${SECRET}`]);
  const fires: WebhookFire<{ order: number }>[] = [];
  const receive = nodeWebhook<{ order: number }>([SECRET], (fire) => void fires.push(fire));
  const server = createServer((request, response) => void receive(request, response));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    const p = new Punctual({ url: broker.url, namespace: "shop" });
    await p.schedule("order-1", { in: 0, to: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, payload: { order: 1 } });
    const [record] = await eventually("the end", async () => (await p.history("order-1")).filter(({ end }) => end === "done").length > 0 && p.history("order-1"));
    const [fire] = fires;
    assert.deepEqual([fire?.key, fire?.namespace, fire?.attempt, fire?.payload, fire?.fireId], ["order-1", "shop", 1, { order: 1 }, record?.fireId]);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("calls are repeated only where that is safe, at the next broker", { timeout: 60_000 }, async () => {
  await using broker = await Serve.start();
  const dead = `http://127.0.0.1:${await freePort()}`;
  const p = new Punctual({ url: [dead, broker.url], namespace: "shop" });
  assert.equal((await p.schedule({ in: "1h", to: queue("q") })).state, "scheduled");
  assert.equal(p.addresses[0], broker.url);
  const away = new Punctual({ url: dead, namespace: "shop", retryFor: 0 });
  await assert.rejects(away.fire("a"), UnavailableError);

  // A server that breaks every connection after it has read the request: it may have carried it out.
  let requests = 0;
  const breaking = createServer((request) => {
    requests += 1;
    request.socket.destroy();
  });
  await new Promise<void>((resolve) => breaking.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(breaking.address() as AddressInfo).port}`;
  try {
    const broken = new Punctual({ url: [url, broker.url], namespace: "shop", learn: false });
    await assert.rejects(broken.fire("a"), (error) => error instanceof LostError && error.type === "urn:punctual:lost");
    assert.equal(requests, 1);
    assert.equal((await broken.schedule("a", { in: "1h", to: queue("q") })).version, 1);
    assert.equal(requests, 2);
  } finally {
    breaking.close();
  }
});

test("429 is repeated after Retry-After, and 503 with urn:punctual:lost only if the call can be repeated", async () => {
  const answers: [number, Record<string, string>, string][] = [
    [429, { "retry-after": "0" }, '{"type":"urn:punctual:share-used-up","title":"","status":429,"detail":"x"}'],
    [503, {}, '{"type":"urn:punctual:busy","title":"","status":503,"detail":"x"}'],
    [503, {}, '{"type":"urn:punctual:lost","title":"","status":503,"detail":"x"}'],
  ];
  let requests = 0;
  const keys = new Set<string | null>();
  // No broker answers these on request, so `fetch` is replaced.
  const fake: typeof fetch = (_input, init) => {
    keys.add(new Headers(init?.headers).get("idempotency-key"));
    const [status, headers, body] = answers[requests++] ?? [201, {}, '{"id":"1","version":1}'];
    return Promise.resolve(new Response(body, { status, headers }));
  };
  const p = new Punctual({ url: "http://localhost:1", fetch: fake, learn: false });
  assert.equal((await p.schedule({ in: "1h", to: queue("q") })).id, "1");
  assert.deepEqual([requests, keys.size], [4, 1]);
  requests = 2;
  await assert.rejects(p.fire("a"), LostError);
  assert.equal(requests, 3);
});
