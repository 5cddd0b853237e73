import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Punctual, Refuse, Retry, TouchBuffer, Worker, queue } from "punctual";
import { Cluster, Serve, eventually } from "./support.js";

test("a worker settles by what its handlers do, and routes by prefix", { timeout: 120_000 }, async () => {
  await using broker = await Serve.start();
  const p = new Punctual({ url: broker.url, namespace: "shop" });
  const retry = { attemptsMax: 3, backoff: { fixed: 10 } };
  await p.scheduleMany(["ok-1", "retry-1", "refuse-1", "long-1", "other"].map((key) => ({ key, in: 0, to: queue("q"), retry, timeout: "1s" })));
  let longRuns = 0;
  await using worker = new Worker(p, { concurrency: 5, name: "cashier" })
    .on("q", () => ({ refund: 9.5 }), { prefix: "ok-" })
    .on("q", (fire) => {
      if (fire.attempt === 1) throw new Retry("10ms", "not ready");
    }, { prefix: "retry-" })
    .on("q", () => {
      throw new Refuse("no such order");
    }, { prefix: "refuse-" })
    .on("q", async () => {
      longRuns += 1;
      // Three times the lease of one second: it has to be extended.
      await sleep(3_000);
    }, { prefix: "long-" })
    .start();
  await eventually("workers", async () => (await p.workers()).some(({ name }) => name === "cashier"));
  const end = async (key: string): Promise<unknown> => {
    const [fire] = await p.history(key);
    return fire !== undefined && fire.end !== null ? fire : undefined;
  };
  const ended = async (key: string): Promise<any> => eventually(key, () => end(key));
  assert.deepEqual((await ended("ok-1")).result, { refund: 9.5 });
  assert.deepEqual((await ended("retry-1")).attempts.map(({ outcome }: any) => outcome), ["failed", "acked"]);
  const refused = await ended("refuse-1");
  assert.deepEqual([refused.end, refused.reason, refused.attempts[0].reason], ["dead", "refused", "no such order"]);
  assert.deepEqual((await ended("long-1")).attempts.length, 1);
  assert.equal(longRuns, 1);
  assert.match((await ended("other")).attempts[0].reason, /no handler for key "other"/);
  await worker.stop();
});

test("the handler of the longest prefix gets a delivery, and each prefix has one handler", { timeout: 60_000 }, async () => {
  await using broker = await Serve.start();
  const p = new Punctual({ url: broker.url, namespace: "home" });
  const keys = ["unit:1", "unit:door:2", "lamp-3"];
  await p.scheduleMany([...keys.map((key) => ({ key, in: 0, to: queue("silent") })), { in: 0, to: queue("silent") }]);
  const seen: string[] = [];
  const worker = new Worker(p)
    .on("silent", (fire) => void seen.push(`others ${fire.key ?? "none"}`))
    .on("silent", (fire) => void seen.push(`units ${fire.key}`), { prefix: "unit:" })
    .on("silent", (fire) => void seen.push(`doors ${fire.key}`), { prefix: "unit:door:" });
  assert.throws(() => worker.on("silent", () => undefined, { prefix: "unit:" }), /has a handler for "unit:" already/);
  await using _running = worker.start();
  await eventually("four fires", async () => seen.length === 4);
  assert.deepEqual(seen.sort(), ["doors unit:door:2", "others lamp-3", "others none", "units unit:1"]);
});

test("a stopped worker finishes what is in flight, and takes nothing more", { timeout: 120_000 }, async () => {
  await using broker = await Serve.start();
  const p = new Punctual({ url: broker.url, namespace: "shop" });
  await p.scheduleMany(Array.from({ length: 20 }, (_, at) => ({ key: `k${at}`, in: 0, to: queue("q") })));
  let started = 0;
  let finish: () => void = () => undefined;
  const go = new Promise<void>((resolve) => (finish = resolve));
  const worker = new Worker(p, { concurrency: 3 }).on("q", async () => {
    started += 1;
    await go;
  }).start();
  await eventually("three handlers", async () => started === 3);
  const stopped = worker.stop();
  finish();
  await stopped;
  assert.equal(started, 3);
  await eventually("three acked", async () => (await p.stats()).done === 3);
});

test("a redelivered fire is not handled twice", { timeout: 120_000 }, async () => {
  await using broker = await Serve.start();
  // The first ack never arrives: the delivery comes again after its lease of one second.
  let dropped = 0;
  const dropping: typeof fetch = (input, init) => {
    if (String(input).endsWith("/ack") && dropped++ === 0) return Promise.resolve(new Response('{"results":[]}'));
    return fetch(input, init);
  };
  const p = new Punctual({ url: broker.url, namespace: "shop", fetch: dropping });
  await p.schedule("once", { in: 0, to: queue("q"), timeout: "1s", guarantee: "exactly_once", retry: { backoff: { fixed: 10 } } });
  let handled = 0;
  await using _worker = new Worker(p).on("q", () => {
    handled += 1;
    return "sent";
  }).start();
  const fire = await eventually("the end", async () => (await p.history("once")).find((one) => one.end === "done"));
  assert.deepEqual([fire.result, fire.attempts.map(({ outcome }) => outcome), handled], ["sent", ["expired", "acked"], 1]);
});

test("a touch buffer sends each key once, and everything when it is closed", { timeout: 60_000 }, async () => {
  await using broker = await Serve.start();
  const bodies: string[] = [];
  const recording: typeof fetch = (input, init) => {
    if (String(input).endsWith("/touch")) bodies.push(String(init?.body));
    return fetch(input, init);
  };
  const p = new Punctual({ url: broker.url, namespace: "home", fetch: recording });
  const buffer = new TouchBuffer(p, { create: { within: "48h", to: queue("silent") }, every: "1h", max: 100 });
  for (let beat = 0; beat < 1_000; beat += 1) buffer.touch(`lamp-${beat % 100}`);
  assert.throws(() => buffer.touch("lamp-100"), { name: "BufferFullError" });
  await buffer.close();
  assert.equal(bodies.length, 1);
  assert.equal((await p.list().toArray()).length, 100);
});

test("a key that no task can have does not hold up the others of a touch buffer", { timeout: 60_000 }, async () => {
  await using broker = await Serve.start();
  const p = new Punctual({ url: broker.url, namespace: "home" });
  const errors: unknown[] = [];
  const onError = (error: unknown): void => void errors.push((error as { field?: string }).field);
  const buffer = new TouchBuffer(p, { create: { within: "48h", to: queue("silent") }, every: "1h", onError });
  for (const key of ["lamp-1", "", "lamp-2", "x".repeat(5_000), "lamp-3"]) buffer.touch(key);
  await buffer.close();
  assert.deepEqual((await p.list().toArray()).map(({ key }) => key).sort(), ["lamp-1", "lamp-2", "lamp-3"]);
  assert.deepEqual(errors, ["keys[1]", "keys[2]"]);
});

test("workers handle everything although the leader of three brokers is killed", { timeout: 180_000 }, async () => {
  await using cluster = await Cluster.start();
  const p = new Punctual({ url: cluster.brokers[0]?.url ?? "", namespace: "shop", retryFor: "60s" });
  const COUNT = 600;
  /** The fire ids that were handled, by key. */
  const handled = new Map<string, Set<string>>();
  const startWorker = (name: string): Worker => new Worker(p, { concurrency: 15, name }).on("q", async (fire) => {
    await sleep(20);
    const key = fire.key ?? "";
    handled.set(key, (handled.get(key) ?? new Set()).add(fire.fireId));
  }).start();
  await using _first = startWorker("first");
  await using _second = startWorker("second");
  for (const worker of ["first", "second"]) {
    await eventually(`${worker} at every broker`, async () =>
      new Set((await p.workers()).filter(({ name }) => name === worker).map(({ broker }) => broker)).size === 3);
  }
  assert.equal(p.addresses.length, 3);
  const retry = { attemptsMax: 20, backoff: { fixed: "100ms" } };
  const tasks = Array.from({ length: COUNT }, (_, at) => ({ key: `k${at}`, in: at * 5, to: queue("q"), retry, timeout: "3s" }));
  assert.deepEqual((await p.scheduleAll(tasks)).problems, []);
  await eventually("the first fires", async () => handled.size > 20);
  const leader = await cluster.leader();
  await leader.kill();
  assert.ok(handled.size < COUNT, "the leader was killed after the last fire");
  await eventually("all fires", async () => handled.size === COUNT);
  await eventually("all settled", async () => {
    const { scheduled, firing, deadLetters } = await p.stats();
    assert.equal(deadLetters, 0);
    return scheduled === 0 && firing === 0;
  });
  // A fire may be handled twice, by its id it is still the same fire: no task has fired twice.
  assert.deepEqual([...handled].filter(([, fires]) => fires.size !== 1), []);
  assert.equal((await p.topology()).brokers.some(({ address }) => leader.url.endsWith(address)), false);
});
