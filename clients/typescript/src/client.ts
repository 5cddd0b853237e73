// The client: one method per call of the HTTP API.

import { decode, encodeAlarm, encodeFilter, encodeTask } from "./codec.js";
import { NotFoundError, PunctualError } from "./errors.js";
import { Pages } from "./pages.js";
import { durationMs, durationText, instantText, type Duration, type Instant } from "./time.js";
import { Transport, type Request } from "./transport.js";
import type {
  AckEntry, AckedOne, Actions, Advanced, Alarm, AlarmRule, AlarmTest, Cancelled, CancelResult, Clock, Connections, ConnectionTest,
  CountedNamespace, DeadGroupFilter, DeadGroups, DeadLetter, DeadLetterSelection, Deleted, DeletedLetters, Delivery,
  DryRun, EndedTask, Explanation, FireFilter, FireRecord, Forecast, Lanes, LeaseOptions, LiveSecond, NewOperation, NewTask,
  NewTaskWithKey, NewWatch, Operation, Preview, Problem, QueueInfo, Ready, Redriven, ScheduledTask, Series, Settled,
  Stats, Task, TaskFilter, Topology, TouchManyAnswer, TouchRule, TouchedTask, WhoAmI, WorkerInfo,
} from "./types.js";

/** Requests of tasks are smaller than the limits of the API (10,000 tasks, 64 MiB), so that brokers and clients need little memory. */
const TASKS_PER_REQUEST = 5_000;
const BYTES_PER_REQUEST = 8 * 1024 * 1024;
/** Requests of one `scheduleMany` at the same time: one is written while another is read. */
const REQUESTS_AT_ONCE = 2;
/** What a call that waits at the broker may take beyond its wait. */
const WAIT_MARGIN_MS = 10_000;
/** Clock calls wait for deliveries. */
const CLOCK_TIMEOUT_MS = 300_000;
/** A message of `live` is shorter; the bound is for a stream that is not one. */
const EVENT_CHARS_MAX = 4 * 1024 * 1024;

export interface ClientOptions {
  /** Addresses of brokers. Default: `PUNCTUAL_URL`, separated by commas, or `http://localhost:7400`. */
  url?: string | string[];
  /** Default: `PUNCTUAL_NAMESPACE`, or `default`. */
  namespace?: string;
  /** Default: `PUNCTUAL_TOKEN`. */
  token?: string;
  /** How long one attempt of a call may take. Default: 30 s. */
  timeout?: Duration;
  /** How long a call is repeated where that is safe. Default: 15 s. 0: never. */
  retryFor?: Duration;
  /** Learn the addresses of the other brokers of the cluster. Default: true. */
  learn?: boolean;
  fetch?: typeof fetch;
}

export interface CallOptions {
  signal?: AbortSignal;
}

export interface ScheduleOptions extends CallOptions {
  /** Replace only this version. */
  ifMatch?: number | string;
  /** Create only. */
  ifNoneMatch?: "*";
  /** Of a task without a key. Default: a random one. */
  idempotencyKey?: string;
  /** Answer only `id`, `fireAt` and `version`. */
  minimal?: boolean;
}

export interface TouchOptions extends CallOptions {
  within?: Duration;
  in?: Duration;
  at?: Instant;
}

export interface PageOptions extends CallOptions {
  /** Entries of one page: 1 to 1,000. */
  limit?: number;
}

type Environment = { process?: { env?: Record<string, string | undefined> } };

function environment(name: string): string | undefined {
  return (globalThis as Environment).process?.env?.[name];
}

/** Whether a result of `scheduleMany` is the problem of a task that was not created. */
export function isProblem(result: Task | Problem): result is Problem {
  return !("id" in result);
}

/** A client of one namespace. It holds no connection that has to be closed. */
export class Punctual {
  readonly namespace: string;
  readonly #token: string | undefined;
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}, transport?: Transport) {
    const url = options.url ?? environment("PUNCTUAL_URL")?.split(",") ?? "http://localhost:7400";
    this.namespace = options.namespace ?? environment("PUNCTUAL_NAMESPACE") ?? "default";
    this.#token = options.token ?? environment("PUNCTUAL_TOKEN");
    this.#transport = transport ?? new Transport({
      urls: typeof url === "string" ? [url] : url,
      fetch: options.fetch ?? globalThis.fetch.bind(globalThis),
      timeoutMs: durationMs(options.timeout ?? 30_000),
      retryForMs: durationMs(options.retryFor ?? 15_000),
      learn: options.learn ?? true,
    });
  }

  /** The same client with another namespace or token. */
  with(change: { namespace?: string; token?: string }): Punctual {
    const token = change.token ?? this.#token;
    const namespace = change.namespace ?? this.namespace;
    return new Punctual({ namespace, ...(token === undefined ? {} : { token }) }, this.#transport);
  }

  /** The URLs of the brokers that are known. */
  get addresses(): readonly string[] {
    return this.#transport.addresses;
  }

  /** Reads the topology and returns the URLs of all brokers. */
  discover(): Promise<string[]> {
    return this.#transport.discover(this.#token);
  }

  // Tasks

  /** Creates the task with this key, or replaces it; or creates a task without a key. */
  schedule(key: string, task: NewTask, options: ScheduleOptions & { minimal: true }): Promise<ScheduledTask>;
  schedule(key: string, task: NewTask, options?: ScheduleOptions): Promise<Task>;
  schedule(task: NewTaskWithKey, options: ScheduleOptions & { minimal: true }): Promise<ScheduledTask>;
  schedule(task: NewTaskWithKey, options?: ScheduleOptions): Promise<Task>;
  schedule(
    first: string | NewTaskWithKey, second?: NewTask | ScheduleOptions, third?: ScheduleOptions,
  ): Promise<Task | ScheduledTask> {
    const isKeyed = typeof first === "string";
    const task = isKeyed ? (second as NewTask) : first;
    const options = (isKeyed ? third : (second as ScheduleOptions | undefined)) ?? {};
    const headers: Record<string, string> = {};
    if (options.ifMatch !== undefined) headers["if-match"] = `"${options.ifMatch}"`;
    if (options.ifNoneMatch !== undefined) headers["if-none-match"] = options.ifNoneMatch;
    if (options.minimal) headers["prefer"] = "return=minimal";
    if (!isKeyed) headers["idempotency-key"] = options.idempotencyKey ?? crypto.randomUUID();
    // With a condition, a second request would fail because of the first one.
    const repeatable = options.ifMatch === undefined && options.ifNoneMatch === undefined;
    const body = JSON.stringify(encodeTask(task));
    return this.#send(isKeyed ? "PUT" : "POST", isKeyed ? this.#task(first) : this.#path("/tasks"),
      { body, headers, repeatable, signal: options.signal });
  }

  /** Creates many tasks in few requests. One result each, in order: the task, or its problem (see `isProblem`). */
  async scheduleMany(
    tasks: Iterable<NewTaskWithKey>, options: CallOptions & { idempotencyKey?: string } = {},
  ): Promise<(Task | Problem)[]> {
    const answers = await this.#scheduleMany(tasks, options);
    return answers.flatMap((text) => decode<{ results: (Task | Problem)[] }>(JSON.parse(text)).results);
  }

  /** Like `scheduleMany`, without reading the tasks: how many were created, and the problems with their positions. */
  async scheduleAll(
    tasks: Iterable<NewTaskWithKey>, options: CallOptions & { idempotencyKey?: string } = {},
  ): Promise<{ scheduled: number; problems: { index: number; problem: Problem }[] }> {
    const problems: { index: number; problem: Problem }[] = [];
    const sizes: number[] = [];
    const answers = await this.#scheduleMany(tasks, options, sizes);
    let index = 0;
    for (const [at, text] of answers.entries()) {
      // A payload may contain this text as well; then the answer is read for nothing.
      const results = text.includes('"urn:punctual:') ? (JSON.parse(text) as { results: (Task | Problem)[] }).results : [];
      for (const [line, result] of results.entries()) {
        if (isProblem(result)) problems.push({ index: index + line, problem: decode<Problem>(result) });
      }
      index += sizes[at] ?? 0;
    }
    return { scheduled: index - problems.length, problems };
  }

  async #scheduleMany(
    tasks: Iterable<NewTaskWithKey>, options: CallOptions & { idempotencyKey?: string }, sizes: number[] = [],
  ): Promise<string[]> {
    const answers: string[] = [];
    const key = options.idempotencyKey ?? crypto.randomUUID();
    const chunks = chunksOf(tasks);
    let count = 0;
    const send = async (): Promise<void> => {
      for (let next = chunks.next(); !next.done; next = chunks.next()) {
        const at = count++;
        sizes[at] = next.value.length;
        const headers = { "idempotency-key": at === 0 ? key : `${key}-${at}` };
        const body = next.value.join("\n");
        answers[at] = await this.#transport.text({
          method: "POST", path: this.#path("/tasks"), token: this.#token, body, contentType: "application/x-ndjson",
          headers, repeatable: true, signal: options.signal,
        });
      }
    };
    await Promise.all(Array.from({ length: REQUESTS_AT_ONCE }, send));
    return answers;
  }

  /** The task with this key or id; after its end what its history has. With `afterVersion` it waits for a change. */
  get(task: string, options: CallOptions & { afterVersion?: number; wait?: Duration } = {}): Promise<Task | EndedTask> {
    const { afterVersion, wait, signal } = options;
    const query = { after_version: afterVersion, wait: wait === undefined ? undefined : durationText(wait) };
    const timeout = wait === undefined ? {} : { timeoutMs: durationMs(wait) + WAIT_MARGIN_MS };
    return this.#send("GET", this.#task(task), { query, signal, ...timeout });
  }

  /** Cancels a task. After `cancelled` it never fires. */
  async cancel(task: string, options: CallOptions = {}): Promise<Cancelled> {
    try {
      return await this.#send<Cancelled>("DELETE", this.#task(task), { repeatable: true, ...options });
    } catch (error) {
      if (error instanceof NotFoundError && error.type === "urn:punctual:task-not-found") return { result: "not_found" };
      throw error;
    }
  }

  /** Cancels up to 10,000 tasks, by keys or by ids: one result each, in order. */
  async cancelMany(
    tasks: string[] | { keys: string[] } | { ids: string[] }, options: CallOptions = {},
  ): Promise<CancelResult[]> {
    const body = JSON.stringify(Array.isArray(tasks) ? { keys: tasks } : tasks);
    const path = this.#path("/cancel");
    return (await this.#send<{ results: CancelResult[] }>("POST", path, { body, repeatable: true, ...options })).results;
  }

  /** Postpones a watch by its `within`, or moves a `once` task. With an array: see `touchMany`. */
  touch(task: string, options: TouchOptions & { minimal: true }): Promise<TouchedTask>;
  touch(task: string, options?: TouchOptions): Promise<Task>;
  touch(keys: string[], options?: TouchOptions & { create?: NewTask }): Promise<TouchManyAnswer>;
  touch(
    task: string | string[], options: TouchOptions & { minimal?: boolean; create?: NewTask } = {},
  ): Promise<Task | TouchedTask | TouchManyAnswer> {
    if (Array.isArray(task)) return this.touchMany(task, options);
    const headers: Record<string, string> = options.minimal ? { prefer: "return=minimal" } : {};
    const body = JSON.stringify(encodeTouch(options));
    return this.#send("POST", `${this.#task(task)}/touch`, { body, headers, repeatable: true, signal: options.signal });
  }

  /** Touches up to 10,000 keys. With `create`, a key without a task gets one. */
  touchMany(keys: string[], options: TouchOptions & { create?: NewTask } = {}): Promise<TouchManyAnswer> {
    const create = options.create === undefined ? {} : { create: encodeTask(options.create) };
    const body = JSON.stringify({ keys, ...create, ...encodeTouch(options) });
    return this.#send("POST", this.#path("/touch"), { body, repeatable: true, signal: options.signal });
  }

  /** Keeps a task from firing until `resume`. */
  pause(task: string, options: CallOptions = {}): Promise<Task> {
    return this.#send("POST", `${this.#task(task)}/pause`, { repeatable: true, ...options });
  }

  resume(task: string, options: CallOptions = {}): Promise<Task> {
    return this.#send("POST", `${this.#task(task)}/resume`, { repeatable: true, ...options });
  }

  /** Fires a task now, once, in addition to its schedule. */
  fire(task: string, options: CallOptions = {}): Promise<Task> {
    return this.#send("POST", `${this.#task(task)}/fire`, { repeatable: false, ...options });
  }

  /** Why a task is in its state, and what it waits for. */
  explain(task: string, options: CallOptions = {}): Promise<Explanation> {
    return this.#send("GET", `${this.#task(task)}/explain`, options);
  }

  /** The fires of one task that have ended, newest first. */
  async history(task: string, options: PageOptions = {}): Promise<FireRecord[]> {
    const { limit, signal } = options;
    return (await this.#send<{ fires: FireRecord[] }>("GET", `${this.#task(task)}/fires`, { query: { limit }, signal })).fires;
  }

  /** Tasks in the order of `fireAt`. */
  list(filter: TaskFilter & PageOptions = {}): Pages<Task> {
    return this.#pages("/tasks", "tasks", filter);
  }

  /** The fires of all tasks that have ended, newest first. */
  fires(filter: FireFilter & PageOptions = {}): Pages<FireRecord> {
    return this.#pages("/fires", "fires", filter);
  }

  // Touch rules

  /** The touch rules of the namespace. */
  async rules(options: CallOptions = {}): Promise<TouchRule[]> {
    return (await this.#send<{ rules: TouchRule[] }>("GET", this.#path("/rules"), options)).rules;
  }

  /** Stores what a touch of a new key with this prefix creates. The longest prefix decides. */
  putRule(prefix: string, watch: NewWatch, options: CallOptions = {}): Promise<TouchRule> {
    return this.#send("PUT", this.#rule(prefix), { body: JSON.stringify(encodeTask(watch)), repeatable: true, ...options });
  }

  /** Deletes a touch rule. Watches that it created stay. */
  deleteRule(prefix: string, options: CallOptions = {}): Promise<Deleted> {
    return this.#send("DELETE", this.#rule(prefix), { repeatable: false, ...options });
  }

  // Dead letters

  dead(filter: DeadGroupFilter & PageOptions = {}): Pages<DeadLetter> {
    return this.#pages("/dead", "dead", filter);
  }

  /** Dead letters by reason and target, the largest group first. */
  deadGroups(options: CallOptions = {}): Promise<DeadGroups> {
    return this.#send("GET", this.#path("/dead/groups"), options);
  }

  /** Schedules dead letters again. Call it again while `more` is true. */
  redrive(selection: DeadLetterSelection, options: CallOptions = {}): Promise<Redriven> {
    const body = JSON.stringify(selection);
    return this.#send("POST", this.#path("/dead/redrive"), { body, repeatable: false, ...options });
  }

  /** Deletes one dead letter by its fire id, or those of a selection. */
  deleteDead(fireId: string, options?: CallOptions): Promise<Deleted>;
  deleteDead(selection: DeadLetterSelection, options?: CallOptions): Promise<DeletedLetters>;
  deleteDead(which: string | DeadLetterSelection, options: CallOptions = {}): Promise<Deleted | DeletedLetters> {
    if (typeof which !== "string") {
      return this.#send("POST", this.#path("/dead/delete"), { body: JSON.stringify(which), repeatable: false, ...options });
    }
    return this.#send("DELETE", this.#path(`/dead/${encodeURIComponent(which)}`), { repeatable: false, ...options });
  }

  // Operations

  /** Cancels, pauses, resumes, fires or moves all tasks that match; with `dryRun` it only counts them. */
  startOperation(operation: NewOperation & { dryRun: true }, options?: CallOptions): Promise<DryRun>;
  startOperation(operation: NewOperation, options?: CallOptions): Promise<Operation>;
  async startOperation(operation: NewOperation, options: CallOptions = {}): Promise<Operation | DryRun> {
    const { do: verb, where, later, dryRun } = operation;
    const moves = later === undefined ? {} : { later: durationText(later) };
    const body = JSON.stringify({ do: verb, where: encodeFilter(where), ...moves, ...(dryRun === undefined ? {} : { dry_run: dryRun }) });
    const answer = await this.#send<{ operation: Operation } | DryRun>("POST", this.#path("/operations"),
      { body, repeatable: dryRun === true, ...options });
    return "operation" in answer ? answer.operation : answer;
  }

  async operations(options: CallOptions = {}): Promise<Operation[]> {
    return (await this.#send<{ operations: Operation[] }>("GET", this.#path("/operations"), options)).operations;
  }

  async operation(id: string, options: CallOptions = {}): Promise<Operation> {
    const path = this.#path(`/operations/${encodeURIComponent(id)}`);
    return (await this.#send<{ operation: Operation }>("GET", path, options)).operation;
  }

  async stopOperation(id: string, options: CallOptions = {}): Promise<Operation> {
    const path = this.#path(`/operations/${encodeURIComponent(id)}`);
    return (await this.#send<{ operation: Operation }>("DELETE", path, { repeatable: true, ...options })).operation;
  }

  /** What operators did, newest first. Brokers keep the latest in memory, and all in their logs. */
  actions(options: CallOptions & { limit?: number } = {}): Promise<Actions> {
    return this.#send("GET", this.#path("/actions"), { query: { limit: options.limit }, signal: options.signal });
  }

  // Alarms

  putAlarm(name: string, rule: AlarmRule, options: CallOptions = {}): Promise<Alarm> {
    return this.#send("PUT", this.#alarm(name), { body: JSON.stringify(encodeAlarm(rule)), repeatable: true, ...options });
  }

  alarm(name: string, options: CallOptions = {}): Promise<Alarm> {
    return this.#send("GET", this.#alarm(name), options);
  }

  async alarms(options: CallOptions = {}): Promise<Alarm[]> {
    return (await this.#send<{ alarms: Alarm[] }>("GET", this.#path("/alarms"), options)).alarms;
  }

  deleteAlarm(name: string, options: CallOptions = {}): Promise<Deleted> {
    return this.#send("DELETE", this.#alarm(name), { repeatable: false, ...options });
  }

  /** Sends a test notice in one attempt. */
  testAlarm(name: string, options: CallOptions = {}): Promise<AlarmTest> {
    return this.#send("POST", `${this.#alarm(name)}/test`, { repeatable: false, ...options });
  }

  // Counts and brokers

  stats(options: CallOptions = {}): Promise<Stats> {
    return this.#send("GET", this.#path("/stats"), options);
  }

  /** How many fires are expected in each step; with `by: "target"` also those of each target. */
  forecast(options: CallOptions & { for?: Duration; step?: Duration; at?: Instant; by?: "target" } = {}): Promise<Forecast> {
    const { by } = options;
    const query = { for: optional(options.for, durationText), step: optional(options.step, durationText), at: optional(options.at, instantText), by };
    return this.#send("GET", this.#path("/forecast"), { query, signal: options.signal });
  }

  /** What ended in each step of the last hours. */
  series(options: CallOptions & { for?: Duration; step?: Duration } = {}): Promise<Series> {
    const query = { for: optional(options.for, durationText), step: optional(options.step, durationText) };
    return this.#send("GET", this.#path("/series"), { query, signal: options.signal });
  }

  /** Counts, rates and lags, once a second; of all namespaces with `all`, which needs an admin token. */
  async *live(options: CallOptions & { all?: boolean } = {}): AsyncGenerator<LiveSecond, void, undefined> {
    const path = options.all ? "/v1/live" : this.#path("/live");
    const response = await this.#transport.stream({ method: "GET", path, token: this.#token, repeatable: true, signal: options.signal });
    if (response.body === null) return;
    let text = "";
    // Leaving the loop cancels the stream, which closes the connection.
    for await (const piece of response.body.pipeThrough(new TextDecoderStream()) as unknown as AsyncIterable<string>) {
      text += piece;
      const events = text.split(/\r?\n\r?\n/);
      text = events.pop() ?? "";
      if (text.length > EVENT_CHARS_MAX) throw new RangeError("live: a message is too long");
      for (const event of events) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
        if (data.trim() !== "") yield decode<LiveSecond>(JSON.parse(data));
      }
    }
  }

  /** The next fires of a cron expression. */
  preview(
    cron: string,
    options: CallOptions & { timezone?: string; count?: number; from?: Instant; dstGap?: "after" | "skip"; dstOverlap?: "once" | "both" } = {},
  ): Promise<Preview> {
    const { timezone, count, from, dstGap, dstOverlap, signal } = options;
    const query = { cron, timezone, count, from: optional(from, instantText), dst_gap: dstGap, dst_overlap: dstOverlap };
    return this.#send("GET", "/v1/preview", { query, signal });
  }

  async queues(options: CallOptions = {}): Promise<QueueInfo[]> {
    return (await this.#send<{ queues: QueueInfo[] }>("GET", this.#path("/queues"), options)).queues;
  }

  /** The targets that have due tasks, deliveries in flight, or attempts that failed in the last 15 minutes. */
  lanes(options: CallOptions = {}): Promise<Lanes> {
    return this.#send("GET", this.#path("/lanes"), options);
  }

  async workers(options: CallOptions = {}): Promise<WorkerInfo[]> {
    return (await this.#send<{ workers: WorkerInfo[] }>("GET", this.#path("/workers"), options)).workers;
  }

  /** All namespaces with their counts. Needs an admin token. */
  namespaces(options: PageOptions = {}): Pages<CountedNamespace> {
    return this.#pagesAt("/v1/namespaces", "namespaces", options);
  }

  topology(options: CallOptions = {}): Promise<Topology> {
    return this.#send("GET", "/v1/topology", options);
  }

  /** What the token grants, and which broker answers. */
  whoami(options: CallOptions = {}): Promise<WhoAmI> {
    return this.#send("GET", "/v1/whoami", options);
  }

  /** The connections and sources of the broker that answers. Needs an admin token. */
  connections(options: CallOptions = {}): Promise<Connections> {
    return this.#send("GET", "/v1/connections", options);
  }

  /** Opens a session of a connection, and asks the other side for an answer. Needs an admin token. */
  testConnection(name: string, options: CallOptions = {}): Promise<ConnectionTest> {
    return this.#send("POST", `/v1/connections/${segment("name", name)}/test`, { repeatable: true, ...options });
  }

  /** Whether a broker runs. */
  async isAlive(options: CallOptions = {}): Promise<boolean> {
    await this.#text("/livez", options);
    return true;
  }

  /** Whether the broker is ready, and why not. */
  async ready(options: CallOptions = {}): Promise<Ready> {
    try {
      return await this.#send<Ready>("GET", "/readyz", options);
    } catch (error) {
      if (!(error instanceof PunctualError) || error.type !== "urn:punctual:not-ready") throw error;
      return { ready: false, reasons: error.problem.reasons ?? [], warnings: [] };
    }
  }

  /** The metrics of the broker, as OpenMetrics text. */
  metrics(options: CallOptions = {}): Promise<string> {
    return this.#text("/metrics", options);
  }

  /** The OpenAPI document, as it is. */
  async openapi(options: CallOptions = {}): Promise<unknown> {
    return JSON.parse(await this.#text("/openapi.json", options));
  }

  // Queues: what a worker calls

  /** Takes up to `max` deliveries and waits up to `wait` for the first one. */
  async lease<Payload = unknown>(
    queue: string, options: LeaseOptions & CallOptions & { broker?: string } = {},
  ): Promise<Delivery<Payload>[]> {
    const { max, wait, lease, worker, signal, broker } = options;
    const body = JSON.stringify({ max, wait: optional(wait, durationText), lease: optional(lease, durationText), worker });
    const timeoutMs = durationMs(wait ?? 0) + WAIT_MARGIN_MS;
    const pinned = broker === undefined ? {} : { broker };
    const answer = await this.#send<{ deliveries: Delivery<Payload>[] }>("POST", this.#queue(queue, "lease"),
      { body, timeoutMs, signal, repeatable: false, ...pinned });
    return answer.deliveries;
  }

  /** Acknowledges deliveries, each with or without a result: one answer each, in order. */
  async ack(queue: string, acks: (string | AckEntry)[], options: CallOptions = {}): Promise<AckedOne[]> {
    // The API answers `tokens` before `acks`; entries keep the order of the caller.
    const isPlain = acks.every((ack) => typeof ack === "string");
    const entries = isPlain ? { tokens: acks } : { acks: acks.map((ack) => (typeof ack === "string" ? { token: ack } : ack)) };
    const answer = await this.#send<{ results: AckedOne[] }>("POST", this.#queue(queue, "ack"),
      { body: JSON.stringify(entries), repeatable: true, ...options });
    return answer.results;
  }

  /** Reports a failed attempt. */
  fail(queue: string, token: string, options: CallOptions & { reason?: string; retryIn?: Duration } = {}): Promise<Settled> {
    const { reason, retryIn, signal } = options;
    const body = JSON.stringify({ token, reason, retry_in: optional(retryIn, durationText) });
    return this.#send("POST", this.#queue(queue, "fail"), { body, repeatable: true, signal });
  }

  /** Reports that no further attempt makes sense. */
  refuse(queue: string, token: string, options: CallOptions & { reason?: string } = {}): Promise<Settled> {
    const { reason, signal } = options;
    return this.#send("POST", this.#queue(queue, "refuse"), { body: JSON.stringify({ token, reason }), repeatable: true, signal });
  }

  /** Holds a delivery for `lease` from now on. */
  extend(queue: string, token: string, lease: Duration, options: CallOptions = {}): Promise<Settled> {
    const body = JSON.stringify({ token, lease: durationText(lease) });
    return this.#send("POST", this.#queue(queue, "extend"), { body, repeatable: true, ...options });
  }

  // The clock of `punctual dev`

  clock(options: CallOptions = {}): Promise<Clock> {
    return this.#send("GET", "/v1/clock", options);
  }

  /** Advances the virtual clock, and answers when what became due was delivered. */
  advance(by: Duration | { by?: Duration; to?: Instant; wait?: Duration }, options: CallOptions = {}): Promise<Advanced> {
    const step = typeof by === "object" ? by : { by };
    const body = JSON.stringify({
      by: optional(step.by, durationText), to: optional(step.to, instantText), wait: optional(step.wait, durationText),
    });
    return this.#send("POST", "/v1/clock/advance", { body, repeatable: false, timeoutMs: CLOCK_TIMEOUT_MS, ...options });
  }

  /** Lets the virtual clock run, `speed` times as fast as real time. */
  runClock(speed: number, options: CallOptions = {}): Promise<Clock> {
    return this.#send("POST", "/v1/clock/run", { body: JSON.stringify({ speed }), repeatable: true, ...options });
  }

  freezeClock(options: CallOptions = {}): Promise<Clock> {
    return this.#send("POST", "/v1/clock/freeze", { repeatable: true, ...options });
  }

  #path(rest: string): string {
    return `/v1/${encodeURIComponent(this.namespace)}${rest}`;
  }

  #task(task: string): string {
    return this.#path(`/tasks/${segment("key", task)}`);
  }

  #rule(prefix: string): string {
    return this.#path(`/rules/${segment("prefix", prefix)}`);
  }

  #alarm(name: string): string {
    return this.#path(`/alarms/${encodeURIComponent(name)}`);
  }

  #queue(queue: string, verb: string): string {
    return this.#path(`/queues/${encodeURIComponent(queue)}/${verb}`);
  }

  #send<T>(method: string, path: string, rest: Partial<Request> = {}): Promise<T> {
    return this.#transport.json<T>({ repeatable: method === "GET", ...rest, method, path, token: this.#token });
  }

  #text(path: string, options: CallOptions): Promise<string> {
    return this.#transport.text({ method: "GET", path, token: this.#token, repeatable: true, ...options });
  }

  #pages<T>(path: string, name: string, filter: TaskFilter & { end?: string } & PageOptions): Pages<T> {
    return this.#pagesAt(this.#path(path), name, filter);
  }

  #pagesAt<T>(path: string, name: string, filter: TaskFilter & PageOptions): Pages<T> {
    const { signal, ...conditions } = filter;
    const query = encodeFilter(conditions);
    return new Pages<T>(async (cursor) => {
      const answer = await this.#send<Record<string, unknown>>("GET", path, { query: { ...query, ...(cursor === undefined ? {} : { cursor }) }, signal });
      return { items: answer[name] as T[], next: (answer["next"] as string | null | undefined) ?? undefined };
    });
  }
}

/** One segment of a path. */
function segment(what: string, text: string): string {
  // URLs resolve these two as relative paths, however they are escaped, so the call would be about something else.
  if (text === "." || text === "..") throw new RangeError(`${what}: ${JSON.stringify(text)} cannot be part of a URL`);
  return encodeURIComponent(text);
}

function optional<T>(value: T | undefined, convert: (value: T) => string): string | undefined {
  return value === undefined ? undefined : convert(value);
}

function encodeTouch(options: TouchOptions): Record<string, string | undefined> {
  return { in: optional(options.in, durationText), within: optional(options.within, durationText), at: optional(options.at, instantText) };
}

/** Tasks as lines, in pieces that one request may have. */
function* chunksOf(tasks: Iterable<NewTaskWithKey>): Generator<string[], void, undefined> {
  let lines: string[] = [];
  let chars = 0;
  for (const task of tasks) {
    const line = JSON.stringify(encodeTask(task));
    if (lines.length >= TASKS_PER_REQUEST || (lines.length > 0 && chars + line.length > BYTES_PER_REQUEST)) {
      yield lines;
      lines = [];
      chars = 0;
    }
    lines.push(line);
    chars += line.length;
  }
  if (lines.length > 0) yield lines;
}
