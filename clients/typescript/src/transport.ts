// Sends requests to the brokers of one cluster over `fetch`. Knows their addresses, learns further ones from the topology,
// and repeats a request only if that is safe: nothing was sent, the broker says that nothing was done, or repeating the
// call has the effect of making it once. Tries and total time are bounded.

import { decode } from "./codec.js";
import { LostError, UnavailableError, errorOf, type PunctualError } from "./errors.js";
import { sleep } from "./time.js";
import type { Problem, Topology, WhoAmI } from "./types.js";

/** Attempts of one call. With the pauses below they take longer than `retryFor` allows by default. */
const TRIES_MAX = 30;
const PAUSE_FIRST_MS = 50;
const PAUSE_MAX_MS = 1_000;
/** How often the topology is read while calls are made. */
const LEARN_EVERY_MS = 30_000;
const LEARN_TIMEOUT_MS = 3_000;
/** A cluster has fewer brokers; the bound is for a topology that is not one. */
const BROKERS_MAX = 256;

export interface Request {
  method: string;
  path: string;
  query?: Record<string, string | number | undefined>;
  body?: string;
  contentType?: string;
  headers?: Record<string, string>;
  /** Making the call twice has the effect of making it once. */
  repeatable: boolean;
  /** Longer than the default, for calls that wait. */
  timeoutMs?: number;
  signal?: AbortSignal | undefined;
  /** Ask only this broker, once. */
  broker?: string;
  token?: string | undefined;
}

export interface TransportOptions {
  urls: string[];
  fetch: typeof fetch;
  timeoutMs: number;
  retryForMs: number;
  learn: boolean;
}

type Attempted = { response: Response; text: string } | { error: unknown; sent: boolean };

export class Transport {
  readonly #options: TransportOptions;
  readonly #configured: string[];
  /** Addresses in the order in which they are tried; the first one is used until it fails. */
  #addresses: string[];
  /** The advertised address of each configured URL, as far as it is known. */
  readonly #identities = new Map<string, string>();
  #learnedAt = Number.NEGATIVE_INFINITY;

  constructor(options: TransportOptions) {
    this.#options = options;
    this.#configured = options.urls.map((url) => new URL(url).href.replace(/\/$/, ""));
    this.#addresses = [...this.#configured];
  }

  /** The URLs of the brokers that are known. */
  get addresses(): readonly string[] {
    return this.#addresses;
  }

  /** Sends a request and returns the body as it came. Throws the error class of the problem otherwise. */
  async text(request: Request): Promise<string> {
    const deadline = performance.now() + this.#options.retryForMs;
    let tried = new Set<string>();
    for (let tries = 1; ; tries += 1) {
      const address = request.broker ?? this.#addresses.find((known) => !tried.has(known)) ?? this.#addresses[0] ?? "";
      tried.add(address);
      const attempted = await this.#attempt(address, request);
      if ("response" in attempted && attempted.response.ok) {
        this.#prefer(address);
        if (request.broker === undefined) this.#learnInBackground(request.token);
        return attempted.text;
      }
      const failure = assess(attempted, request);
      const isLast = request.broker !== undefined || tries >= TRIES_MAX || !failure.retry;
      if (isLast) throw failure.error;
      // The next broker at once; a pause only after all of them have failed, or if the broker asked for one.
      const next = failure.pauseMs === undefined && this.#addresses.some((known) => !tried.has(known));
      const backoff = Math.min(PAUSE_MAX_MS, PAUSE_FIRST_MS * 2 ** Math.min(10, tries - 1)) * (0.5 + Math.random() / 2);
      const pause = next ? 0 : (failure.pauseMs ?? backoff);
      if (performance.now() + pause > deadline) throw failure.error;
      if (!next) tried = new Set();
      if (pause > 0) await sleep(pause, request.signal);
    }
  }

  /** Sends a request and decodes its answer. */
  async json<T>(request: Request): Promise<T> {
    return decode<T>(JSON.parse(await this.text(request)));
  }

  /** Opens a stream: the answer before its body was read. */
  async stream(request: Request): Promise<Response> {
    const address = this.#addresses[0] ?? "";
    let response: Response;
    try {
      response = await this.#options.fetch(urlOf(address, request), init(request, request.signal));
    } catch (error) {
      if (request.signal?.aborted) throw request.signal.reason;
      throw new UnavailableError(unreachable(error), { cause: error });
    }
    if (response.ok) return response;
    throw errorOf(problemOf(response, await response.text()));
  }

  /** The URLs of all brokers of the cluster, a configured URL where there is one. */
  async discover(token: string | undefined): Promise<string[]> {
    const base = { method: "GET", repeatable: true, timeoutMs: LEARN_TIMEOUT_MS, token };
    // Behind a path there is a proxy: the addresses of the topology cannot be reached through it.
    const isProxied = this.#configured.some((url) => new URL(url).pathname !== "/");
    if (isProxied || !this.#options.learn) return this.#configured;
    this.#learnedAt = performance.now();
    const topology = await this.json<Topology>({ ...base, path: "/v1/topology" });
    await Promise.all(this.#configured.map(async (url) => {
      if (this.#identities.has(url)) return;
      const whoami = this.json<WhoAmI>({ ...base, path: "/v1/whoami", broker: url });
      await whoami.then(({ broker }) => this.#identities.set(url, broker), () => undefined);
    }));
    const scheme = new URL(this.#configured[0] ?? "").protocol;
    const brokers = topology.brokers.slice(0, BROKERS_MAX).map(({ address }) =>
      this.#configured.find((url) => this.#identities.get(url) === address) ?? `${scheme}//${address}`);
    const known = new Set([...this.#configured, ...brokers]);
    this.#addresses = [...this.#addresses.filter((address) => known.delete(address)), ...known];
    return brokers.length > 0 ? brokers : this.#configured;
  }

  #learnInBackground(token: string | undefined): void {
    if (!this.#options.learn || performance.now() - this.#learnedAt < LEARN_EVERY_MS) return;
    this.#learnedAt = performance.now();
    // A failure changes nothing: the known addresses stay.
    this.discover(token).catch(() => undefined);
  }

  #prefer(address: string): void {
    const at = this.#addresses.indexOf(address);
    if (at > 0) this.#addresses = [address, ...this.#addresses.filter((known) => known !== address)];
  }

  async #attempt(address: string, request: Request): Promise<Attempted> {
    const { signal } = request;
    if (signal?.aborted) throw signal.reason;
    const abort = new AbortController();
    const onAbort = (): void => abort.abort(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    const timeoutMs = request.timeoutMs ?? this.#options.timeoutMs;
    const timer = setTimeout(() => abort.abort(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs);
    try {
      const response = await this.#options.fetch(urlOf(address, request), init(request, abort.signal));
      return { response, text: await response.text() };
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      return { error, sent: !isUnsent(error) };
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", onAbort);
    }
  }
}

function urlOf(address: string, request: Request): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(request.query ?? {})) if (value !== undefined) query.set(name, String(value));
  const text = query.toString();
  return `${address}${request.path}${text === "" ? "" : `?${text}`}`;
}

function init(request: Request, signal: AbortSignal | undefined): RequestInit {
  const headers: Record<string, string> = { ...request.headers };
  if (request.token !== undefined) headers["authorization"] = `Bearer ${request.token}`;
  if (request.body !== undefined) headers["content-type"] = request.contentType ?? "application/json";
  return { method: request.method, headers, body: request.body ?? null, redirect: "manual", signal: signal ?? null };
}

interface Failure {
  error: PunctualError;
  retry: boolean;
  pauseMs?: number | undefined;
}

/** Decides what a failed attempt means, and whether another one is safe. */
function assess(attempted: Attempted, request: Request): Failure {
  if ("error" in attempted) {
    const { error, sent } = attempted;
    const isUnknown = sent && request.method !== "GET";
    const problem = isUnknown ? broken(error) : unreachable(error);
    const options = { cause: error };
    const failed = isUnknown ? new LostError(problem, options) : new UnavailableError(problem, options);
    return { error: failed, retry: !sent || request.repeatable };
  }
  const { response, text } = attempted;
  const pauseMs = retryAfterMs(response);
  const error = errorOf(problemOf(response, text), pauseMs);
  if (error instanceof LostError) return { error, retry: request.repeatable };
  if (response.status === 503) return { error, retry: true, pauseMs };
  return { error, retry: response.status === 429 && pauseMs !== undefined, pauseMs };
}

function retryAfterMs(response: Response): number | undefined {
  const value = response.headers.get("retry-after");
  if (value === null) return undefined;
  const seconds = Number(value);
  if (Number.isFinite(seconds)) return Math.max(0, seconds * 1_000);
  const date = Date.parse(value);
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}

function problemOf(response: Response, text: string): Problem {
  try {
    const problem = decode<Problem>(JSON.parse(text));
    if (typeof problem === "object" && problem !== null && typeof problem.type === "string") return problem;
  } catch {
    // Not a problem document: something between this client and the broker has answered.
  }
  const detail = `status ${response.status} without a problem document: ${text.slice(0, 200)}`;
  return { type: "about:blank", title: response.statusText || "Failed", status: response.status, detail };
}

const UNSENT_CODES = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT", "ConnectionRefused"]);

/** Whether the connection could not be made, so that nothing was sent. */
function isUnsent(error: unknown): boolean {
  const codes = [error, (error as Error | undefined)?.cause].map((part) => (part as { code?: string } | undefined)?.code);
  return codes.some((code) => code !== undefined && UNSENT_CODES.has(code));
}

function messageOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error && cause.message !== "" ? `${message}: ${cause.message}` : String(message);
}

function unreachable(error: unknown): Problem {
  return { type: "about:blank", title: "No broker answers", status: 503, detail: `no broker answers: ${messageOf(error)}` };
}

function broken(error: unknown): Problem {
  const detail = `the connection broke, so it is not known whether the call was carried out: ${messageOf(error)}`;
  return { type: "urn:punctual:lost", title: "Lost", status: 503, detail };
}
