// Figures of the virtual clock, with Node alone: the 48-hour test of a watch, and a year of 1,000 cron tasks.
// PUNCTUAL_BIN=… node clients/bench-clock.mjs [TASKS]
// The year fails unless every task was received at exactly the times that `preview` gives.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { createInterface } from "node:readline";

const TASKS = Number(process.argv[2] ?? 1000);
const WATCHES = 30;
const START = "2027-01-04T08:00:00.000Z";
const END = "2028-01-04T08:00:00.000Z";
const ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"];

async function startBroker(flags = []) {
  const args = ["dev", "--exit-with-stdin", "--clock", START, ...flags];
  const broker = spawn(process.env.PUNCTUAL_BIN ?? "punctual", args, { stdio: ["pipe", "pipe", "ignore"] });
  for await (const line of createInterface(broker.stdout)) return { broker, url: JSON.parse(line).url };
  throw new Error("the broker did not start");
}

async function call(method, url, body) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const json = await response.json();
  assert.ok(response.ok, `${method} ${url}: ${JSON.stringify(json)}`);
  return json;
}

const median = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)].toFixed(1);

/** Touch, 48 hours of silence, the delivery, its ack. */
async function watchTest(url, key, queue) {
  const begin = performance.now();
  await call("POST", `${url}/v1/home/touch`, { keys: [key], create: { within: "48h", target: { queue } } });
  await call("POST", `${url}/v1/clock/advance`, { by: "48h" });
  const { deliveries } = await call("POST", `${url}/v1/home/queues/${queue}/lease`, { max: 10 });
  assert.deepEqual(deliveries.map((one) => one.key), [key]);
  await call("POST", `${url}/v1/home/queues/${queue}/ack`, { tokens: [deliveries[0].token] });
  return performance.now() - begin;
}

async function watches() {
  const begin = performance.now();
  const { broker, url } = await startBroker();
  await watchTest(url, "first", "first");
  const whole = performance.now() - begin;
  const [times, again] = [[], []];
  for (let n = 0; n < WATCHES; n += 1) times.push(await watchTest(url, `lamp-${n}`, `silent-${n}`));
  // The worker of a queue that was polled a moment ago is waited for, in case it polls again.
  for (let n = 0; n < WATCHES; n += 1) again.push(await watchTest(url, `again-${n}`, "silent"));
  broker.stdin.end();
  console.log(`48-hour test of a watch: median ${median(times)} ms, longest ${Math.max(...times).toFixed(1)} ms; ` +
    `with the start of the broker ${whole.toFixed(1)} ms; in a queue just polled ${median(again)} ms`);
}

async function previewUntil(url, cron, zone) {
  const times = [];
  for (let from = START; ; from = times.at(-1)) {
    const query = new URLSearchParams({ cron, timezone: zone, count: "100", from });
    for (const { fire_at: at } of (await call("GET", `${url}/v1/preview?${query}`)).fires) {
      if (at > END) return times;
      times.push(at);
    }
  }
}

async function year() {
  const received = new Map();
  const receiver = createServer((request, response) => {
    const { "punctual-key": key, "punctual-fire-at": at } = request.headers;
    if (!received.has(key)) received.set(key, []);
    received.get(key).push(at);
    request.resume();
    response.writeHead(204).end();
  });
  await new Promise((resolve) => receiver.listen(0, "127.0.0.1", resolve));
  const target = { http: { url: `http://127.0.0.1:${receiver.address().port}/` } };
  const tasks = Array.from({ length: TASKS }, (_, n) => ({
    key: `report-${n}`, cron: `${n % 60} ${n % 24} * * *`, timezone: ZONES[n % ZONES.length], target,
  }));
  const { broker, url } = await startBroker();
  const { results } = await call("POST", `${url}/v1/shop/tasks`, tasks);
  assert.ok(results.every((one) => one.id !== undefined));
  const begin = performance.now();
  const { fires } = await call("POST", `${url}/v1/clock/advance`, { to: END });
  const seconds = (performance.now() - begin) / 1000;
  let count = 0;
  for (const { key, cron, timezone } of tasks) {
    assert.deepEqual(received.get(key), await previewUntil(url, cron, timezone), key);
    count += received.get(key).length;
  }
  assert.equal(fires, count);
  console.log(`a year of ${TASKS} cron tasks: ${fires} fires in ${seconds.toFixed(1)} s, ` +
    `${Math.round(fires / seconds)} per second, equal to preview`);
  broker.stdin.end();
  receiver.close();
}

await watches();
await year();
