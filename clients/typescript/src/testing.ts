// A broker for tests: starts `punctual dev`, whose clock moves only when the test says so. For Node and Bun.

import { spawn, type ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";
import { Punctual } from "./client.js";
import { instantText, type Duration, type Instant } from "./time.js";
import type { Advanced, Delivery } from "./types.js";

const START_TIMEOUT_MS = 30_000;
const STOP_TIMEOUT_MS = 5_000;
/** Deliveries that `fired` takes at once. */
const FIRED_MAX = 1_000;

export interface TestBrokerOptions {
  /** Where the clock starts. Default: now. */
  clock?: Instant;
  /** Default: `test`. */
  namespace?: string;
  token?: string;
  /** The binary. Default: `PUNCTUAL_BIN`, or `punctual` of the `PATH`. */
  binary?: string;
  /** Further arguments of `punctual dev`. */
  args?: string[];
}

/** A broker of its own with a virtual clock. */
export class TestBroker implements AsyncDisposable {
  readonly url: string;
  readonly client: Punctual;
  readonly #process: ChildProcess;

  constructor(url: string, client: Punctual, process: ChildProcess) {
    this.url = url;
    this.client = client;
    this.#process = process;
  }

  /** Moves the clock, and returns when everything that became due was delivered. */
  advance(by: Duration | { by?: Duration; to?: Instant; wait?: Duration }): Promise<Advanced> {
    return this.client.advance(by);
  }

  /** Takes everything that waits in a queue, acknowledges it and returns it. */
  async fired<Payload = unknown>(queue: string): Promise<Delivery<Payload>[]> {
    const all: Delivery<Payload>[] = [];
    for (;;) {
      const deliveries = await this.client.lease<Payload>(queue, { max: FIRED_MAX, wait: 0 });
      if (deliveries.length === 0) return all;
      await this.client.ack(queue, deliveries.map(({ token }) => token));
      all.push(...deliveries);
    }
  }

  /** Ends the process. */
  async stop(): Promise<void> {
    await stopProcess(this.#process);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** Starts a broker: `await using broker = await testBroker()`. */
export async function testBroker(options: TestBrokerOptions = {}): Promise<TestBroker> {
  const binary = options.binary ?? process.env["PUNCTUAL_BIN"] ?? "punctual";
  const clock = options.clock === undefined ? [] : ["--clock", instantText(options.clock)];
  // The standard input is closed when this process ends, however it ends, and then the broker ends as well.
  const args = ["dev", "--exit-with-stdin", "--listen", "127.0.0.1:0", ...clock, ...(options.args ?? [])];
  const child = spawn(binary, args, { stdio: "pipe" });
  try {
    const url = await startedUrl(child, binary);
    const token = options.token === undefined ? {} : { token: options.token };
    return new TestBroker(url, new Punctual({ url, namespace: options.namespace ?? "test", ...token }), child);
  } catch (error) {
    await stopProcess(child);
    throw error;
  }
}

function startedUrl(child: ChildProcess, binary: string): Promise<string> {
  return new Promise((resolve, reject) => {
    let errors = "";
    const failed = (why: string): void => {
      clearTimeout(timer);
      reject(new Error(`${binary} dev ${why}${errors === "" ? "" : `: ${errors.trim()}`}`));
    };
    const timer = setTimeout(() => failed(`printed no URL within ${START_TIMEOUT_MS} ms`), START_TIMEOUT_MS);
    child.once("error", (error) => failed(`cannot be started (set PUNCTUAL_BIN to the binary): ${error.message}`));
    // After the last output, so that the message has all of it.
    child.once("close", (code) => failed(`ended with ${code}`));
    // The log is read to the end, so that the broker does not wait for the pipe; its beginning explains a failed start.
    child.stderr?.on("data", (data: Buffer) => (errors += errors.length < 4_096 ? String(data) : ""));
    const lines = createInterface({ input: child.stdout! });
    lines.on("line", (line) => {
      try {
        const { url } = JSON.parse(line) as { url?: string };
        if (typeof url !== "string") return;
        clearTimeout(timer);
        resolve(url);
      } catch {
        // A line of the log.
      }
    });
  });
}

async function stopProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
  const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
  await ended;
  clearTimeout(timer);
}
