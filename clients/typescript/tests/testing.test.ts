import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { Punctual, Worker, queue } from "punctual";
import { testBroker } from "punctual/testing";
import { end, eventually } from "./support.js";

test("the silence of 48 hours is tested by moving the clock", { timeout: 60_000 }, async () => {
  await using broker = await testBroker({ clock: "2027-01-04T08:00:00Z", namespace: "home" });
  const p = broker.client;
  await p.touch(["lamp-7"], { create: { within: "48h", to: queue("silent"), onReturn: true } });
  await broker.advance("47h");
  await p.touch(["lamp-7"]);
  await broker.advance({ by: "47h59m59s" });
  assert.deepEqual(await broker.fired("silent"), []);
  assert.deepEqual(await broker.advance(1_000), { now: new Date("2027-01-08T07:00:00Z"), fires: 1, unsettled: 0 });
  const [fire] = await broker.fired("silent");
  assert.deepEqual([fire?.key, fire?.occasion, fire?.fireAt], ["lamp-7", "due", new Date("2027-01-08T07:00:00Z")]);
});

test("a worker handles what becomes due while the clock is moved", { timeout: 60_000 }, async () => {
  await using broker = await testBroker({ clock: "2027-01-04T08:00:00Z" });
  await broker.client.schedule("report", { cron: "0 9 * * *", timezone: "UTC", to: queue("reports") });
  const handled: Date[] = [];
  await using _worker = new Worker(broker.client).on("reports", (fire) => void handled.push(fire.fireAt)).start();
  await eventually("the worker", async () => (await broker.client.workers()).length === 1);
  assert.equal((await broker.advance({ to: "2027-01-07T08:00:00Z" })).fires, 3);
  assert.deepEqual(handled.map((at) => at.toISOString().slice(0, 13)), ["2027-01-04T09", "2027-01-05T09", "2027-01-06T09"]);
});

test("the clock of a test broker runs and stops", { timeout: 60_000 }, async () => {
  await using broker = await testBroker({ clock: "2027-01-04T08:00:00Z" });
  const p = broker.client;
  assert.deepEqual((await p.clock()).now, new Date("2027-01-04T08:00:00Z"));
  await p.runClock(3_600);
  await eventually("an hour", async () => (await p.clock()).now > new Date("2027-01-04T09:00:00Z"));
  const { now } = await p.freezeClock();
  assert.deepEqual((await p.clock()).now, now);
});

test("a test broker ends with the process that started it", { timeout: 60_000 }, async () => {
  const program = `const { testBroker } = await import("punctual/testing"); console.log((await testBroker()).url);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  const url = String(await new Promise((resolve) => child.stdout.once("data", resolve))).trim();
  const isAlive = (): Promise<boolean> => new Punctual({ url, retryFor: 0, learn: false }).isAlive().catch(() => false);
  assert.equal(await isAlive(), true);
  await end(child, "SIGKILL");
  await eventually("the end of the broker", async () => !(await isAlive()));
});

test("a binary that cannot be started is named", async () => {
  await assert.rejects(testBroker({ binary: "/nonexistent/punctual" }), /nonexistent\/punctual dev cannot be started \(set PUNCTUAL_BIN/);
});
