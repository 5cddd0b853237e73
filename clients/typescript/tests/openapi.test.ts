// Compares the package with /openapi.json of the broker: every call is made by some method with every parameter, every
// field of every schema is in src/types.ts, and answers are converted as the document says.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { NotFoundError, Punctual, PunctualError, queue } from "punctual";
import { Receiver, Serve } from "./support.js";

type Json = Record<string, any>;

/** Schemas that another type of this package stands for, or that the client takes apart. */
const RENAMED: Record<string, string> = { Lease: "LeaseOptions", Fire: "FireRecord", Step: "ForecastStep", LagAnswer: "Lags", NewTask: "Task", TaskFields: "Task" };
/** Bodies that a method wraps or unwraps: their fields are the arguments and the answer of the method. */
const UNWRAPPED = new Set([
  "Ack", "Acked", "Alarms", "CancelMany", "CancelManyAnswer", "DeadLetters", "Deliveries", "Extend", "Fail", "FirePage",
  "Fires", "Namespaces", "OneOperation", "Operations", "Queues", "Refuse", "Results", "Tasks", "Touch", "TouchMany", "TouchRules",
  "Workers",
]);
/** Unions and wrappers that are types, not interfaces. */
const UNIONS = new Set([
  "AlarmCondition", "AlarmReceiver", "Backoff", "CancelAnswer", "CancelOutcome", "CancelResult", "NewTaskWithoutKey", "Target",
]);
/** Schemas whose instants are text in the document. */
const TEXT_INSTANTS = new Set(["Connection", "RedrivenFire", "Source"]);

// Not a public module of the package, so it is loaded by its path.
const codec = (await import(pathToFileURL("dist/codec.js").href)) as typeof import("../dist/codec.js");
const { INSTANT_FIELDS, OPAQUE_FIELDS, camel } = codec;
const broker = await Serve.start();
test.after(() => broker[Symbol.asyncDispose]());
const document = (await new Punctual({ url: broker.url }).openapi()) as Json;
const schemas = document["components"]["schemas"] as Record<string, Json>;
const source = readFileSync("src/types.ts", "utf8");

/** The fields of each interface of src/types.ts, with those that it extends. */
function interfaces(): Map<string, Set<string>> {
  const found = new Map<string, Set<string>>();
  for (const [, name, parents, body] of source.matchAll(/export interface (\w+)(?:<[^>]*>)?(?: extends ([^{]+))? \{\n([\s\S]*?)\n\}/g)) {
    const fields = new Set([...(body ?? "").matchAll(/^  (\w+)\??:/gm)].map((field) => field[1] ?? ""));
    for (const parent of (parents ?? "").match(/\w+/g) ?? []) for (const field of found.get(parent) ?? []) fields.add(field);
    found.set(name ?? "", fields);
  }
  return found;
}

/** All properties of a schema, through its compositions. */
function properties(schema: Json): [string, Json][] {
  const own = Object.entries((schema["properties"] ?? {}) as Record<string, Json>);
  const parts = [...(schema["allOf"] ?? []), ...(schema["oneOf"] ?? []), ...(schema["anyOf"] ?? [])] as Json[];
  return [...own, ...parts.flatMap(properties)];
}

test("every field of every schema is in the types", () => {
  const types = interfaces();
  const missing: string[] = [];
  let compared = 0;
  for (const [name, schema] of Object.entries(schemas)) {
    const fields = properties(schema).map(([field]) => field);
    if (fields.length === 0) continue;
    const type = types.get(RENAMED[name] ?? name);
    for (const field of fields) {
      compared += 1;
      const isThere = type === undefined ? (UNWRAPPED.has(name) || UNIONS.has(name)) && new RegExp(`\\b${camel(field)}\\b`).test(source + readFileSync("src/client.ts", "utf8")) : type.has(camel(field));
      if (!isThere) missing.push(`${name}.${field}`);
    }
  }
  assert.deepEqual(missing, []);
  assert.ok(compared > 200, `only ${compared} fields compared`);
});

test("every field of a task can be sent", () => {
  const sendable = new Set(["TaskOptions", "SeriesOptions", "OnceIn", "OnceAt", "CronSchedule", "EverySchedule", "WatchSchedule"]
    .flatMap((name) => [...(interfaces().get(name) ?? [])]));
  const missing = Object.keys(schemas["NewTask"]?.["properties"]).map((name) => (name === "target" ? "to" : camel(name)))
    .filter((name) => name !== "key" && !sendable.has(name));
  assert.deepEqual(missing, []);
});

test("answers are converted as the document says", () => {
  const resolve = (schema: Json): Json => {
    const [only] = (schema["oneOf"] ?? []) as Json[];
    const ref = schema["$ref"] ?? only?.["$ref"];
    return ref === undefined ? schema : (schemas[ref.split("/").at(-1)] ?? {});
  };
  for (const [name, schema] of Object.entries(schemas)) {
    for (const [field, property] of properties(schema)) {
      const ref = String(property["$ref"] ?? property["oneOf"]?.[0]?.["$ref"] ?? "").split("/").at(-1) ?? "";
      const isInstant = ref === "Instant" || ref === "Time";
      const resolved = resolve(property);
      const isText = resolved["type"] === "string" && property["const"] === undefined;
      if (isInstant) assert.ok(INSTANT_FIELDS.has(field), `${name}.${field} is an instant`);
      else if (isText && !TEXT_INSTANTS.has(name)) assert.ok(!INSTANT_FIELDS.has(field), `${name}.${field} is no instant`);
      const isFree = ["Payload", "Result", "Labels", "Headers", "ExpectedValues", "StatementParams"].includes(ref);
      if (isFree) assert.ok(OPAQUE_FIELDS.has(field), `${name}.${field} belongs to the caller`);
    }
  }
});

test("every call of the document is made by a method, with every parameter", async () => {
  const calls: { method: string; path: string; query: string[]; headers: string[] }[] = [];
  const recording: typeof fetch = (input, init) => {
    const url = new URL(String(input));
    const headers = Object.keys((init?.headers ?? {}) as Record<string, string>);
    calls.push({ method: init?.method ?? "GET", path: url.pathname, query: [...url.searchParams.keys()], headers });
    return fetch(input, init);
  };
  await using receiver = await Receiver.start([{ status: 204 }]);
  const p = new Punctual({ url: broker.url, namespace: "shop", fetch: recording, learn: false });
  const now = new Date();
  const to = queue("unpaid");
  const ignored = async (call: Promise<unknown>): Promise<void> => {
    await call.catch((error: unknown) => assert.ok(error instanceof PunctualError, String(error)));
  };
  const page = { limit: 1 };
  const filter = { state: "scheduled", kind: "once", keyPrefix: "a", label: { x: "1" }, from: now, to: now } as const;
  const labels = { x: "1" };
  for (const key of ["a1", "a2"]) await p.schedule(key, { in: "1h", to, labels }, { ifNoneMatch: "*" });
  await p.schedule("a1", { in: "1h", to, labels }, { ifMatch: 1, minimal: true });
  await p.schedule({ in: "1h", to }, { idempotencyKey: "one", minimal: true });
  await p.scheduleMany([{ in: "1h", to }]);
  await p.get("a1", { afterVersion: 1, wait: "0s" });
  await p.touch("a1", { in: "2h", minimal: true });
  await p.touchMany(["a1"], { in: "2h" });
  await p.pause("a1");
  await p.resume("a1");
  await p.fire("a1");
  await p.explain("a1");
  await p.history("a1", page);
  const { next } = await p.list({ ...page, keyPrefix: "a" }).page();
  assert.ok(next !== undefined);
  await ignored(p.list({ ...filter, ...page }).page(next));
  const { state: _state, kind: _kind, ...fires } = filter;
  await ignored(p.fires({ ...fires, end: "done", ...page }).page(next));
  await ignored(p.dead({ reason: "x", target: "queue unpaid", ...page }).page(next));
  await ignored(p.putRule("unit:", { within: "48h", to, onReturn: true }));
  await ignored(p.rules());
  await ignored(p.deleteRule("unit:"));
  await p.deadGroups();
  await p.redrive({ where: { reason: "x" } });
  await p.deleteDead({ ids: [] });
  await ignored(p.deleteDead("01q3dcbd0001r0000c0000001a-01q3dcbd00"));
  const operation = await p.startOperation({ do: "spread", later: "10m", where: { keyPrefix: "none-" } });
  assert.deepEqual([operation.do, operation.later], ["spread", "10m"]);
  assert.equal((await p.startOperation({ do: "pause", where: { keyPrefix: "a" }, dryRun: true })).matched, 2);
  assert.ok((await p.operations()).length > 0);
  const { actions, since } = await p.actions(page);
  assert.deepEqual([actions.length, actions[0]?.by, since instanceof Date], [1, "admin", true]);
  await p.operation(operation.id);
  await ignored(p.stopOperation(operation.id));
  await p.putAlarm("late", { when: { overdue: { over: 30_000 } }, to: { http: { url: receiver.url } }, repeatAfter: "1h" });
  assert.ok((await p.alarm("late")).since instanceof Date);
  assert.equal((await p.alarms()).length, 1);
  assert.equal((await p.testAlarm("late")).state, "done");
  await p.deleteAlarm("late");
  await p.stats();
  await p.forecast({ for: "2h", step: "1h", at: now, by: "target" });
  await p.series({ for: "2m", step: "1m" });
  for (const all of [true, false]) {
    for await (const second of p.live({ all })) {
      assert.ok(second.at instanceof Date);
      break;
    }
  }
  await p.preview("0 9 * * *", { timezone: "UTC", count: 1, from: now, dstGap: "after", dstOverlap: "once" });
  await p.queues();
  await p.lanes();
  await p.workers();
  await ignored(p.namespaces(page).page(next));
  await p.topology();
  await p.whoami();
  assert.deepEqual(await p.connections(), { connections: [], sources: [] });
  await assert.rejects(p.testConnection("shop-db"), NotFoundError);
  assert.equal(await p.isAlive(), true);
  assert.equal((await p.ready()).ready, true);
  assert.match(await p.metrics(), /punctual_/);
  await p.openapi();
  const [delivery] = await p.lease("unpaid", { max: 1, wait: "5s", lease: "30s", worker: "w" });
  assert.ok(delivery !== undefined);
  assert.deepEqual(await p.extend("unpaid", delivery.token, 60_000), { result: "extended" });
  assert.deepEqual((await p.ack("unpaid", [delivery.token])).map(({ result }) => result), ["acked"]);
  assert.deepEqual(await p.fail("unpaid", delivery.token, { reason: "x", retryIn: 5_000 }), { result: "stale" });
  assert.deepEqual(await p.refuse("unpaid", delivery.token, { reason: "x" }), { result: "stale" });
  await p.cancelMany({ keys: ["a2"] });
  assert.deepEqual(await p.cancel("none"), { result: "not_found" });
  // Only `punctual dev` has a clock that can be moved.
  const clock = [() => p.clock(), () => p.advance("1s"), () => p.runClock(60), () => p.freezeClock()];
  for (const call of clock) await assert.rejects(call, NotFoundError);

  const missing: string[] = [];
  for (const [path, methods] of Object.entries(document["paths"] as Record<string, Record<string, Json>>)) {
    const pattern = new RegExp(`^${path.replace(/[.]/g, "\\.").replace(/\{\w+\}/g, "[^/]+")}$`);
    for (const [method, operation] of Object.entries(methods)) {
      const made = calls.filter((call) => call.method.toLowerCase() === method && pattern.test(call.path));
      if (made.length === 0) missing.push(`${method} ${path}`);
      for (const { name, in: where } of (operation["parameters"] ?? []) as Json[]) {
        if (where === "query" && !made.some(({ query }) => query.includes(name))) missing.push(`${method} ${path}?${name}`);
        if (where === "header" && !made.some(({ headers }) => headers.includes(name))) missing.push(`${method} ${path} ${name}`);
      }
    }
  }
  assert.deepEqual(missing, []);
});
