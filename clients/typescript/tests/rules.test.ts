import assert from "node:assert/strict";
import { test } from "node:test";
import { Punctual, queue } from "punctual";

test("touch rules are sent and read as the API describes them", async () => {
  const requests: [string, string, unknown][] = [];
  const rule = { prefix: "unit:", create: { within: "48h", on_return: true, target: { queue: "silent" }, labels: { a_b: "1" } } };
  // What is compared is the form of the requests, so `fetch` is replaced.
  const fake: typeof fetch = (input, init) => {
    const { pathname } = new URL(String(input));
    requests.push([init?.method ?? "", pathname, init?.body == null ? undefined : JSON.parse(String(init.body))]);
    const answer = init?.method === "GET" ? { rules: [rule] } : init?.method === "PUT" ? rule : { result: "deleted" };
    return Promise.resolve(new Response(JSON.stringify(answer)));
  };
  const p = new Punctual({ url: "http://localhost:1", namespace: "home", fetch: fake, learn: false });
  const read = { prefix: "unit:", create: { within: "48h", onReturn: true, target: { queue: "silent" }, labels: { a_b: "1" } } };
  assert.deepEqual(await p.putRule("unit:", { within: "48h", onReturn: true, to: queue("silent"), labels: { a_b: "1" } }), read);
  assert.deepEqual(await p.rules(), [read]);
  assert.deepEqual(await p.deleteRule("unit:"), { result: "deleted" });
  assert.throws(() => p.deleteRule(".."), RangeError);
  assert.deepEqual(requests, [
    ["PUT", "/v1/home/rules/unit%3A", { within: "48h", on_return: true, target: { queue: "silent" }, labels: { a_b: "1" } }],
    ["GET", "/v1/home/rules", undefined],
    ["DELETE", "/v1/home/rules/unit%3A", undefined],
  ]);
});
