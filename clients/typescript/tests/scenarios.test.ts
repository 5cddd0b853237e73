// Runs every scenario of clients/scenarios through the public methods of this package. What it does not know fails.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Punctual, PunctualError, Refuse, Retry, Worker, SignatureError, verify, type Fire, type NewTask, type NewWatch } from "punctual";
import { testBroker, type TestBroker } from "punctual/testing";
import { Cluster, Receiver, Serve, WAIT_MAX_MS } from "./support.js";

type Json = Record<string, any>;

const FOLDER = process.env["PUNCTUAL_SCENARIOS"] ?? join(process.cwd(), "../scenarios");
const FILE_KEYS = new Set(["name", "broker", "clock", "args", "token", "steps"]);
const STEP_KEYS = new Set(["gives", "fails", "bind", "token"]);
const OPAQUE = new Set(["payload", "result", "labels", "headers", "json", "params"]);

const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const camel = (name: string): string => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** An answer of the client in the form of the API. */
function toWire(value: unknown): unknown {
  if (value instanceof Date) return value.toISOString();
  if (Array.isArray(value)) return value.map(toWire);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)
    .map(([name, field]) => [snake(name), OPAQUE.has(name) ? field : toWire(field)]));
}

/** Arguments in the form of the client. */
function fromWire(value: any): any {
  if (Array.isArray(value)) return value.map(fromWire);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [camel(name), OPAQUE.has(name) ? field : fromWire(field)]));
}

function taskFromWire({ target, ...others }: Json): NewTask {
  return { ...fromWire(others), ...(target === undefined ? {} : { to: target }) } as NewTask;
}

function filterFromWire({ label, ...others }: Json): Json {
  if (label === undefined) return fromWire(others);
  const [, name, value] = /^([^:=]*)[:=](.*)$/s.exec(label) ?? assert.fail(`label ${label}`);
  return { ...fromWire(others), label: { [name ?? ""]: value ?? "" } };
}

/** Replaces `$name` and `$repeat` in arguments and expectations. */
function fill(value: any, bound: Map<string, unknown>): any {
  if (typeof value === "string") {
    if (/^\$\w+$/.test(value) && bound.has(value.slice(1))) return bound.get(value.slice(1));
    return value.replace(/\$(\w+)/g, (all, name: string) => (bound.has(name) ? String(bound.get(name)) : all));
  }
  if (Array.isArray(value)) return value.map((entry) => fill(entry, bound));
  if (typeof value !== "object" || value === null) return value;
  if ("$repeat" in value) return String(value.$repeat).repeat(value.times);
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, fill(field, bound)]));
}

function match(actual: any, expected: any, path: string): void {
  if (Array.isArray(expected)) {
    assert.ok(Array.isArray(actual), `${path}: expected an array, got ${JSON.stringify(actual)}`);
    assert.equal(actual.length, expected.length, `${path}: length of ${JSON.stringify(actual).slice(0, 500)}`);
    expected.forEach((entry, at) => match(actual[at], entry, `${path}.${at}`));
    return;
  }
  if (typeof expected !== "object" || expected === null) {
    assert.deepEqual(actual, expected, `${path}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`);
    return;
  }
  const condition = Object.keys(expected).find((name) => name.startsWith("$"));
  const shown = `${path}: ${JSON.stringify(actual)?.slice(0, 200)} against ${JSON.stringify(expected)}`;
  switch (condition) {
    case undefined:
      assert.ok(typeof actual === "object" && actual !== null, shown);
      for (const [name, field] of Object.entries(expected)) match(actual[name], field, `${path}.${name}`);
      return;
    case "$lt":
      return assert.ok(actual < expected.$lt, shown);
    case "$gt":
      return assert.ok(actual > expected.$gt, shown);
    case "$length":
      return assert.equal(actual?.length, expected.$length, shown);
    case "$any":
      return assert.ok(actual !== undefined && actual !== null, shown);
    case "$absent":
      return assert.ok(actual === undefined || actual === null, shown);
    case "$starts":
      return assert.ok(String(actual).startsWith(expected.$starts), shown);
    case "$contains":
      return assert.ok(String(actual).includes(expected.$contains), shown);
    default:
      assert.fail(`${path}: unknown condition ${condition}`);
  }
}

class Scenario {
  readonly bound = new Map<string, unknown>();
  receiver: Receiver | undefined;

  constructor(readonly client: Punctual, readonly broker: TestBroker | Serve | Cluster) {}

  async step(step: Json): Promise<void> {
    const verbs = Object.keys(step).filter((name) => !STEP_KEYS.has(name));
    assert.equal(verbs.length, 1, `one verb: ${verbs}`);
    const verb = verbs[0] ?? "";
    const { namespace, ...args } = fill(step[verb] === true ? {} : step[verb], this.bound) as Json;
    const client = this.client.with({ ...(namespace === undefined ? {} : { namespace }), ...(step["token"] === undefined ? {} : { token: step["token"] }) });
    let answer: unknown;
    try {
      answer = toWire(await this.call(verb, args, client));
    } catch (error) {
      if (step["fails"] === undefined || !(error instanceof PunctualError)) throw error;
      match(toWire(error.problem), fill(step["fails"], this.bound), verb);
      return;
    }
    if (step["fails"] !== undefined) assert.fail(`${verb} succeeded: ${JSON.stringify(answer)}`);
    if (step["gives"] !== undefined) match(answer, fill(step["gives"], this.bound), verb);
    for (const [name, path] of Object.entries((step["bind"] ?? {}) as Record<string, string>)) {
      const value = path.split(".").reduce((part: any, name) => part?.[name], answer);
      assert.ok(value !== undefined, `${verb}: nothing at ${path} in ${JSON.stringify(answer)}`);
      this.bound.set(name, value);
    }
  }

  async call(verb: string, args: Json, client: Punctual): Promise<unknown> {
    const only = (...names: string[]): void => {
      for (const name of Object.keys(args)) assert.ok(names.includes(name), `${verb}: unknown argument ${name}`);
    };
    switch (verb) {
      case "schedule": {
        only("key", "task", "if_match", "if_none_match", "idempotency_key");
        const options: Json = {};
        if (args["if_match"] !== undefined) options["ifMatch"] = String(args["if_match"]).replaceAll('"', "");
        if (args["if_none_match"] !== undefined) options["ifNoneMatch"] = "*";
        if (args["idempotency_key"] !== undefined) options["idempotencyKey"] = args["idempotency_key"];
        const task = taskFromWire(args["task"]);
        return args["key"] === undefined ? client.schedule(task, options) : client.schedule(args["key"], task, options);
      }
      case "schedule_many":
        only("tasks");
        return { results: await client.scheduleMany(args["tasks"].map(taskFromWire)) };
      case "get":
      case "pause":
      case "resume":
      case "fire":
      case "explain":
        only("task");
        return client[verb](args["task"]);
      case "cancel": {
        only("task");
        const cancelled = await client.cancel(args["task"]);
        if (cancelled.result !== "not_found") return cancelled;
        const problem = { type: "urn:punctual:task-not-found", title: "", status: 404, detail: "" };
        throw new PunctualError(problem);
      }
      case "touch": {
        only("task", "within", "in", "at");
        const { task, ...options } = args;
        return client.touch(task, options);
      }
      case "touch_many":
        only("keys", "create");
        return client.touchMany(args["keys"], args["create"] === undefined ? {} : { create: taskFromWire(args["create"]) });
      case "rules":
        only();
        return { rules: await client.rules() };
      case "put_rule":
        only("prefix", "create");
        return client.putRule(args["prefix"], taskFromWire(args["create"]) as NewWatch);
      case "delete_rule":
        only("prefix");
        return client.deleteRule(args["prefix"]);
      case "cancel_many":
        only("keys", "ids");
        return { results: await client.cancelMany(args as { keys: string[] }) };
      case "list":
      case "fires":
      case "dead": {
        if (verb === "fires" && args["task"] !== undefined) {
          only("task", "limit");
          return { fires: await client.history(args["task"], fromWire({ limit: args["limit"] })) };
        }
        only("state", "kind", "end", "key_prefix", "label", "from", "to", "limit", "pages");
        const { pages, ...filter } = args;
        assert.ok(pages === undefined || pages === 1, "pages: 1 or none");
        const all = client[verb](filterFromWire(filter));
        const entries = pages === 1 ? (await all.page()).items : await all.toArray();
        return { [verb === "list" ? "tasks" : verb]: entries };
      }
      case "redrive":
        only("ids", "all");
        return client.redrive(args);
      case "delete_dead":
        only("fire_id");
        return client.deleteDead(args["fire_id"] as string);
      case "stats":
      case "lanes":
      case "topology":
      case "whoami":
      case "clock":
        only();
        return client[verb]();
      case "queues":
      case "workers":
        only();
        return { [verb]: await client[verb]() };
      case "namespaces":
        only();
        return { namespaces: await client.namespaces().toArray() };
      case "forecast":
        only("for", "step");
        return client.forecast(args);
      case "preview": {
        only("cron", "timezone", "count", "from");
        const { cron, ...options } = args;
        return client.preview(cron, options);
      }
      case "lease": {
        only("queue", "max", "wait", "lease", "worker");
        const { queue, ...options } = args;
        return { deliveries: await client.lease(queue, { wait: "0s", ...options }) };
      }
      case "ack":
        only("queue", "tokens", "acks");
        return { results: await client.ack(args["queue"], [...(args["tokens"] ?? []), ...(args["acks"] ?? [])]) };
      case "fail":
        only("queue", "token", "reason", "retry_in");
        return client.fail(args["queue"], args["token"], fromWire({ reason: args["reason"], retry_in: args["retry_in"] }));
      case "refuse":
        only("queue", "token", "reason");
        return client.refuse(args["queue"], args["token"], fromWire({ reason: args["reason"] }));
      case "extend":
        only("queue", "token", "lease");
        return client.extend(args["queue"], args["token"], args["lease"]);
      case "advance":
        only("by", "to", "wait");
        return client.advance(args);
      case "work":
        only("queue", "handler", "count");
        return { handled: await this.work(args, client) };
      case "verify":
        only("secret", "headers", "body", "now");
        try {
          const now = new Date(Number(args["now"]) * 1_000);
          await verify(args["secret"], args["headers"], args["body"], { now });
          return { valid: true };
        } catch (error) {
          if (error instanceof SignatureError) return { valid: false };
          throw error;
        }
      case "receiver":
        only("answers");
        assert.equal(this.receiver, undefined, "one receiver");
        this.receiver = await Receiver.start(args["answers"]);
        return { url: this.receiver.url };
      case "received":
        only();
        return { requests: (this.receiver ?? assert.fail("no receiver")).requests };
      case "restart":
        only();
        assert.ok(this.broker instanceof Serve, "restart: only with the broker serve");
        await this.broker.kill();
        await this.broker.run();
        return {};
      case "kill_leader":
        only();
        assert.ok(this.broker instanceof Cluster, "kill_leader: only with the broker cluster");
        await (await this.broker.leader()).kill();
        return {};
      default:
        assert.fail(`unknown verb ${verb}`);
    }
  }

  async work(args: Json, client: Punctual): Promise<Fire[]> {
    const outcomes = args["handler"] as Json[];
    const handled: Fire[] = [];
    let done: () => void = () => undefined;
    const all = new Promise<void>((resolve) => (done = resolve));
    const worker = new Worker(client, { concurrency: 1 }).on(args["queue"], (fire) => {
      handled.push(fire);
      const outcome = outcomes[Math.min(handled.length, outcomes.length) - 1] ?? {};
      if (handled.length >= args["count"]) {
        // With a concurrency of 1 no poll is in flight now, so nothing more is taken.
        void worker.stop();
        done();
      }
      switch (outcome["do"]) {
        case "ok":
          return outcome["result"];
        case "retry":
          throw new Retry(outcome["after"], outcome["reason"]);
        case "refuse":
          throw new Refuse(outcome["reason"]);
        case "error":
          throw new Error(outcome["reason"]);
        default:
          assert.fail(`unknown outcome ${outcome["do"]}`);
      }
    });
    await using running = worker.start();
    const timer = setTimeout(done, WAIT_MAX_MS);
    await all;
    clearTimeout(timer);
    await running.stop();
    return handled;
  }
}

async function start({ broker: kind = "dev", clock = "2027-01-04T08:00:00Z", args = [] }: Json): Promise<TestBroker | Serve | Cluster> {
  switch (kind) {
    case "dev":
      return testBroker({ clock, args });
    case "serve":
      return Serve.start(args);
    case "cluster":
      return Cluster.start();
    default:
      assert.fail(`unknown broker ${kind}`);
  }
}

async function run(file: Json): Promise<void> {
  for (const name of Object.keys(file)) assert.ok(FILE_KEYS.has(name), `unknown key ${name}`);
  const { token, steps } = file;
  await using broker = await start(file);
  const url = broker instanceof Cluster ? await broker.urls() : broker.url;
  const client = new Punctual({ url, namespace: "shop", ...(token === undefined ? {} : { token }) });
  const scenario = new Scenario(client, broker);
  try {
    for (const [at, step] of steps.entries()) {
      try {
        await scenario.step(step);
      } catch (error) {
        throw new Error(`step ${at + 1}, ${JSON.stringify(step).slice(0, 300)}: ${(error as Error).message}`, { cause: error });
      }
    }
  } finally {
    await scenario.receiver?.[Symbol.asyncDispose]();
  }
}

const files = readdirSync(FOLDER).filter((name) => name.endsWith(".json")).sort();
test("there are scenarios", () => assert.ok(files.length > 0, FOLDER));
for (const name of files) {
  const file = JSON.parse(readFileSync(join(FOLDER, name), "utf8")) as Json;
  test(`${name}: ${file["name"]}`, { timeout: 180_000 }, () => run(file));
}
