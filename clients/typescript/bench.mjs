// Figures: tasks per second in batches, and no-op deliveries per second that a worker acknowledges.
// PUNCTUAL_BIN=… node bench.mjs [TASKS]   (after ./test or npm run build)
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Punctual, Worker, queue } from "./dist/index.js";

const TASKS = Number(process.argv[2] ?? 200_000);
const directory = mkdtempSync(join(tmpdir(), "punctual-ts-bench-"));
const server = createServer().listen(0, "127.0.0.1");
await new Promise((resolve) => server.once("listening", resolve));
const { port } = server.address();
await new Promise((resolve) => server.close(resolve));
const broker = spawn(process.env.PUNCTUAL_BIN ?? "punctual", ["serve", "--listen", `127.0.0.1:${port}`, "--data-dir", join(directory, "data")], { stdio: "ignore" });
try {
  const p = new Punctual({ url: `http://127.0.0.1:${port}`, namespace: "bench" });
  for (let tries = 0; tries < 100 && !(await p.ready().then(({ ready }) => ready, () => false)); tries += 1) await sleep(100);
  function* tasks(count, when, name) {
    for (let at = 0; at < count; at += 1) yield { in: when, to: queue(name), payload: { order: at } };
  }
  const measure = async (what, count, work) => {
    const started = performance.now();
    await work();
    const seconds = (performance.now() - started) / 1_000;
    console.log(`${what}: ${Math.round(count / seconds)}/s (${count} in ${seconds.toFixed(2)} s)`);
  };
  await p.scheduleAll(tasks(20_000, "2h", "later"));
  await measure("scheduleAll", TASKS, () => p.scheduleAll(tasks(TASKS, "1h", "later")));
  await measure("scheduleMany", TASKS, () => p.scheduleMany(tasks(TASKS, "1h", "later")));
  await p.scheduleAll(tasks(TASKS, "1s", "now"));
  await sleep(1_500);
  let handled = 0;
  let finish;
  const all = new Promise((resolve) => (finish = resolve));
  const worker = new Worker(p, { concurrency: 1_000, dedup: 10_000 }).on("now", () => {
    if (++handled === TASKS) finish();
  });
  await measure("worker, no-op, acked", TASKS, async () => {
    worker.start();
    await all;
    await worker.stop();
  });
  // An ack is durable, and counted, a moment after it was answered.
  let done = 0;
  for (let tries = 0; tries < 50 && done < TASKS; tries += 1) {
    await sleep(100);
    ({ done } = await p.stats());
  }
  console.log(`done ${done} of ${TASKS}`);
} finally {
  broker.kill("SIGKILL");
  await new Promise((resolve) => broker.once("exit", resolve));
  rmSync(directory, { recursive: true, force: true });
}
