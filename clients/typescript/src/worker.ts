// The worker: takes deliveries from queues and runs handlers. It polls every broker of the cluster, never has more
// deliveries than its concurrency, extends leases while handlers run, acknowledges in batches, and finishes what is in
// flight when it is stopped. A fire that it has handled is not handled again if it is delivered again.

import { fromBase64 } from "./codec.js";
import { LostError, Refuse, Retry } from "./errors.js";
import type { Punctual } from "./client.js";
import { durationMs, sleep, type Duration } from "./time.js";
import type { AckEntry, Delivery } from "./types.js";

/** How long a poll waits at the broker. */
const POLL_WAIT_MS = 20_000;
/** With fewer deliveries to ask for than brokers, polls take turns. */
const POLL_TURN_MS = 1_000;
/** The limit of the API for one lease. */
const LEASE_MAX = 1_000;
/** With little credit a poll waits this long for more, so that busy workers make few requests. */
const LINGER_MS = 2;
const PAUSE_FIRST_MS = 50;
const PAUSE_MAX_MS = 2_000;
const DISCOVER_EVERY_MS = 5_000;
/** Acks of one request: with results of 16 KiB it stays below the limit of a body. */
const ACKS_PER_REQUEST = 1_000;
/** With so many acks to send, the worker takes nothing new. */
const ACKS_PENDING_MAX = 20_000;
const EXTEND_CHECK_MS = 250;
const DEDUP_DEFAULT = 10_000;
/** The history keeps this much of a reason. */
const REASON_CHARS_MAX = 512;

/** A delivery as a handler gets it. */
export interface Fire<Payload = unknown> extends Delivery<Payload> {
  queue: string;
}

export interface HandlerContext {
  /** Aborted when the attempt is over (its lease ended), or when the worker does not wait any longer. */
  readonly signal: AbortSignal;
}

/** Returns the result of the fire, which its history keeps; `undefined` is none. Throws `Retry`, `Refuse` or an error. */
export type Handler<Payload = unknown> = (fire: Fire<Payload>, context: HandlerContext) => unknown;

export interface WorkerOptions {
  /** Handlers that run at the same time. Default: 10. */
  concurrency?: number;
  /** As `workers` shows it. Default: the process and a random part. */
  name?: string;
  /** How long each delivery is held at a time. Default: the `timeout` of its task. */
  lease?: Duration;
  /** How many fire ids are remembered, so that a redelivery has no second effect. Default: 10,000. 0: none. */
  dedup?: number;
  /** Called with errors that no caller sees: polls, acks, leases that ended, handlers that threw. */
  onError?: (error: unknown, fire?: Fire) => void;
}

interface Route {
  prefix: string;
  handler: Handler;
}

class Running implements HandlerContext {
  /** A redelivery of the same fire replaces the token: the handler continues for it. */
  token: string;
  extendAt = 0;
  leaseMs = 0;
  isExtending = false;
  #abort: AbortController | undefined;

  constructor(readonly fire: Fire, now: number) {
    this.token = fire.token;
    this.held(fire.lease, now);
  }

  held(lease: string, now: number): void {
    this.leaseMs = durationMs(lease);
    this.extendAt = now + this.leaseMs / 2;
  }

  get signal(): AbortSignal {
    this.#abort ??= new AbortController();
    return this.#abort.signal;
  }

  abort(reason: Error): void {
    this.#abort ??= new AbortController();
    this.#abort.abort(reason);
  }
}

/** Takes deliveries of queues until it is stopped. */
export class Worker implements AsyncDisposable {
  readonly name: string;
  readonly #client: Punctual;
  readonly #concurrency: number;
  readonly #lease: Duration | undefined;
  readonly #dedupMax: number;
  readonly #onError: (error: unknown, fire?: Fire) => void;
  readonly #routes = new Map<string, Route[]>();
  readonly #running = new Map<string, Running>();
  /** Fires that were handled, with their results, oldest first. */
  readonly #handled = new Map<string, unknown>();
  readonly #acks = new Map<string, AckEntry[]>();
  readonly #flushing = new Map<string, Promise<void>>();
  readonly #settling = new Set<Promise<unknown>>();
  readonly #polls = new Map<string, Promise<void>>();
  #free: number;
  #waiters: (() => void)[] = [];
  #brokers = new Set<string>();
  #stop: AbortController | undefined;
  #discovering: Promise<void> | undefined;
  #extendTimer: ReturnType<typeof setInterval> | undefined;
  #stopped: Promise<void> | undefined;

  constructor(client: Punctual, options: WorkerOptions = {}) {
    this.#client = client;
    this.#concurrency = options.concurrency ?? 10;
    if (!Number.isInteger(this.#concurrency) || this.#concurrency < 1) {
      throw new RangeError(`concurrency: must be a whole number from 1 on, not ${this.#concurrency}`);
    }
    this.#free = this.#concurrency;
    this.#lease = options.lease;
    this.#dedupMax = options.dedup ?? DEDUP_DEFAULT;
    this.#onError = options.onError ?? (() => undefined);
    const pid = (globalThis as { process?: { pid?: number } }).process?.pid;
    this.name = options.name ?? `js-${pid ?? "edge"}-${crypto.randomUUID().slice(0, 8)}`;
  }

  /** Handles deliveries of a queue; with `prefix` only those whose key begins with it. The longest prefix decides. */
  on<Payload = unknown>(queue: string, handler: Handler<Payload>, options: { prefix?: string } = {}): this {
    if (this.#stop !== undefined) throw new Error("on: the worker was started already");
    const { prefix = "" } = options;
    const routes = this.#routes.get(queue) ?? [];
    if (routes.some((route) => route.prefix === prefix)) {
      throw new RangeError(`prefix: queue ${JSON.stringify(queue)} has a handler for ${JSON.stringify(prefix)} already`);
    }
    routes.push({ prefix, handler: handler as Handler });
    routes.sort((a, b) => b.prefix.length - a.prefix.length);
    this.#routes.set(queue, routes);
    return this;
  }

  /** Starts to take deliveries. Use it with `await using`, or call `stop`. */
  start(): this {
    if (this.#stop !== undefined) throw new Error("start: the worker was started already");
    if (this.#routes.size === 0) throw new Error("start: no queue has a handler");
    this.#stop = new AbortController();
    this.#discovering = this.#discover(this.#stop.signal);
    this.#extendTimer = setInterval(() => this.#extendAll(), EXTEND_CHECK_MS);
    return this;
  }

  /** Takes nothing new, waits up to `grace` for handlers, then aborts them, and sends all acks. */
  stop(options: { grace?: Duration } = {}): Promise<void> {
    this.#stopped ??= this.#finish(durationMs(options.grace ?? 30_000));
    return this.#stopped;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #finish(graceMs: number): Promise<void> {
    if (this.#stop === undefined) return;
    this.#stop.abort(new Error("the worker stops"));
    this.#wake();
    await this.#discovering;
    await Promise.all(this.#polls.values());
    const deadline = performance.now() + graceMs;
    while (this.#running.size > 0 && performance.now() < deadline) await this.#released(deadline - performance.now());
    for (const running of this.#running.values()) running.abort(new Error("the worker stops"));
    clearInterval(this.#extendTimer);
    while (this.#flushing.size > 0 || this.#settling.size > 0) {
      await Promise.all([...this.#flushing.values(), ...this.#settling]);
    }
  }

  // Polls

  async #discover(stop: AbortSignal): Promise<void> {
    while (!stop.aborted) {
      try {
        this.#brokers = new Set(await this.#client.discover());
      } catch (error) {
        if (this.#brokers.size === 0) this.#brokers = new Set(this.#client.addresses);
        this.#onError(error);
      }
      for (const broker of this.#brokers) {
        for (const queue of this.#routes.keys()) this.#startPoll(queue, broker, stop);
      }
      await sleep(DISCOVER_EVERY_MS, stop).catch(() => undefined);
    }
  }

  #startPoll(queue: string, broker: string, stop: AbortSignal): void {
    const name = `${broker} ${queue}`;
    if (stop.aborted || this.#polls.has(name)) return;
    this.#polls.set(name, this.#poll(queue, broker, stop).finally(() => this.#polls.delete(name)));
  }

  async #poll(queue: string, broker: string, stop: AbortSignal): Promise<void> {
    let pause = PAUSE_FIRST_MS;
    while (!stop.aborted && this.#brokers.has(broker)) {
      const max = await this.#takeCredit(stop);
      if (max === 0) return;
      let taken = 0;
      const turns = this.#concurrency < this.#polls.size;
      try {
        const deliveries = await this.#client.lease(queue, {
          max, wait: turns ? POLL_TURN_MS : POLL_WAIT_MS, worker: this.name, broker, signal: stop,
          ...(this.#lease === undefined ? {} : { lease: this.#lease }),
        });
        taken = deliveries.length;
        pause = PAUSE_FIRST_MS;
        for (const delivery of deliveries) this.#take(Object.assign(delivery, { queue }));
      } catch (error) {
        if (stop.aborted) return this.#release(max);
        // A poll that broke off took nothing that is not delivered again.
        if (!(error instanceof LostError)) this.#onError(error);
        this.#release(max);
        await sleep(pause, stop).catch(() => undefined);
        pause = Math.min(PAUSE_MAX_MS, pause * 2);
        continue;
      }
      this.#release(max - taken);
      // Another poll has its turn.
      if (turns) await sleep(0);
    }
  }

  /** Waits for credit and takes a share of it. 0: the worker stops. */
  async #takeCredit(stop: AbortSignal): Promise<number> {
    const share = Math.max(1, Math.floor(this.#concurrency / Math.max(1, this.#polls.size)));
    if (this.#free > 0 && this.#free < share / 2) await sleep(LINGER_MS);
    while (!stop.aborted && (this.#free === 0 || this.#pendingAcks() > ACKS_PENDING_MAX)) await this.#released();
    if (stop.aborted) return 0;
    const credit = Math.min(this.#free, share, LEASE_MAX);
    this.#free -= credit;
    return credit;
  }

  #release(credit: number): void {
    if (credit === 0) return;
    this.#free += credit;
    this.#wake();
  }

  #wake(): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const waiter of waiters) waiter();
  }

  /** Resolves at the next release of credit, or after `ms`. */
  #released(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, Math.max(1, ms));
      this.#waiters.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  // Handlers

  #take(fire: Fire): void {
    const now = performance.now();
    const running = this.#running.get(fire.fireId);
    if (running !== undefined) {
      // Its lease had ended while the handler runs: the handler continues for the new attempt.
      running.token = fire.token;
      running.held(fire.lease, now);
      this.#release(1);
    } else if (this.#handled.has(fire.fireId)) {
      this.#ack(fire.queue, fire.token, this.#handled.get(fire.fireId));
      this.#release(1);
    } else {
      const started = new Running(fire, now);
      this.#running.set(fire.fireId, started);
      void this.#run(started);
    }
  }

  async #run(running: Running): Promise<void> {
    const { fire } = running;
    try {
      const route = this.#routes.get(fire.queue)?.find(({ prefix }) => (fire.key ?? "").startsWith(prefix));
      if (route === undefined) throw new Error(`no handler for key ${JSON.stringify(fire.key ?? null)}`);
      const result = await route.handler(fire, running);
      this.#remember(fire.fireId, result);
      this.#ack(fire.queue, running.token, result);
    } catch (error) {
      this.#settle(this.#fail(running, error), fire);
    } finally {
      this.#running.delete(fire.fireId);
      this.#release(1);
    }
  }

  #remember(fireId: string, result: unknown): void {
    if (this.#dedupMax === 0) return;
    this.#handled.set(fireId, result);
    if (this.#handled.size <= this.#dedupMax) return;
    for (const oldest of this.#handled.keys()) {
      this.#handled.delete(oldest);
      break;
    }
  }

  async #fail(running: Running, error: unknown): Promise<void> {
    const { queue } = running.fire;
    const reason = (error instanceof Error ? error.message || error.name : String(error)).slice(0, REASON_CHARS_MAX);
    if (error instanceof Refuse) await this.#client.refuse(queue, running.token, { reason });
    else if (error instanceof Retry) {
      await this.#client.fail(queue, running.token, { reason, ...(error.after === undefined ? {} : { retryIn: error.after }) });
    } else {
      this.#onError(error, running.fire);
      await this.#client.fail(queue, running.token, { reason });
    }
  }

  /** Counts a settlement as in flight until it has ended. */
  #settle(settling: Promise<unknown>, fire: Fire): void {
    const ended: Promise<unknown> = settling.catch((error: unknown) => this.#onError(error, fire)).finally(() => this.#settling.delete(ended));
    this.#settling.add(ended);
  }

  // Acks

  #pendingAcks(): number {
    let count = 0;
    for (const acks of this.#acks.values()) count += acks.length;
    return count;
  }

  #ack(queue: string, token: string, result: unknown): void {
    const acks = this.#acks.get(queue) ?? [];
    acks.push(result === undefined ? { token } : { token, result });
    this.#acks.set(queue, acks);
    if (this.#flushing.has(queue)) return;
    this.#flushing.set(queue, this.#flush(queue).finally(() => this.#flushing.delete(queue)));
  }

  async #flush(queue: string): Promise<void> {
    // What ends in the same turn goes into one request; while it is sent, the next one fills.
    await sleep(0);
    for (let acks = this.#nextAcks(queue); acks.length > 0; acks = this.#nextAcks(queue)) {
      try {
        await this.#sendAcks(queue, acks);
      } catch (error) {
        this.#onError(error);
      }
      this.#wake();
    }
  }

  #nextAcks(queue: string): AckEntry[] {
    return this.#acks.get(queue)?.splice(0, ACKS_PER_REQUEST) ?? [];
  }

  async #sendAcks(queue: string, acks: AckEntry[]): Promise<void> {
    const plain = acks.every((ack) => ack.result === undefined);
    const answers = await this.#client.ack(queue, plain ? acks.map(({ token }) => token) : acks);
    const rejected = answers.filter(({ result }) => result === "rejected");
    if (rejected.length === 0) return;
    // The handler succeeded, but the history cannot keep its result: the fire is done without one.
    for (const { problem } of rejected) this.#onError(new Error(`result: ${problem?.detail ?? "rejected"}`));
    await this.#client.ack(queue, rejected.map(({ token }) => token));
  }

  // Leases

  #extendAll(): void {
    const now = performance.now();
    for (const running of this.#running.values()) {
      if (running.isExtending || now < running.extendAt) continue;
      running.isExtending = true;
      this.#settle(this.#extend(running).finally(() => (running.isExtending = false)), running.fire);
    }
  }

  async #extend(running: Running): Promise<void> {
    const { token, leaseMs, fire } = running;
    const { result } = await this.#client.extend(fire.queue, token, leaseMs);
    if (token !== running.token) return;
    running.extendAt = performance.now() + leaseMs / 2;
    if (result !== "stale") return;
    const error = new Error(`the lease of fire ${fire.fireId} has ended`);
    running.extendAt = Number.POSITIVE_INFINITY;
    running.abort(error);
    this.#onError(error, fire);
  }
}

/** The payload of a delivery as bytes, if it was sent as bytes. */
export function payloadBytes(delivery: { payloadBase64?: string | null }): Uint8Array<ArrayBuffer> | undefined {
  return typeof delivery.payloadBase64 === "string" ? fromBase64(delivery.payloadBase64) : undefined;
}
