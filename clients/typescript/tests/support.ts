// Brokers and receivers for tests: real processes on free ports of the loopback address.

import { spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { connect, createServer as createSocketServer, type AddressInfo } from "node:net";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

export const BINARY = process.env["PUNCTUAL_BIN"] ?? "punctual";
/** Real time that something may take on a busy machine before a test fails. */
export const WAIT_MAX_MS = 60_000;

/** A new directory below build/, which is ignored by git. */
export function temporary(name: string): string {
  mkdirSync("build/data", { recursive: true });
  return mkdtempSync(resolve("build/data", `${name}-`));
}

export async function freePort(): Promise<number> {
  const server = createSocketServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Waits until `probe` returns something other than undefined, false or an error. */
export async function eventually<T>(what: string, probe: () => Promise<T | undefined | false>): Promise<T> {
  const deadline = Date.now() + WAIT_MAX_MS;
  let last: unknown;
  while (Date.now() < deadline) {
    try {
      const found = await probe();
      if (found !== undefined && found !== false) return found;
    } catch (error) {
      last = error;
    }
    await sleep(50);
  }
  throw new Error(`${what}: not within ${WAIT_MAX_MS} ms${last === undefined ? "" : ` (${String(last)})`}`);
}

/** `punctual serve` on a temporary directory, or on Redis. */
export class Serve implements AsyncDisposable {
  readonly directory = temporary("serve");
  #process: ChildProcess | undefined;

  private constructor(readonly port: number, readonly args: string[]) {}

  static async start(args: string[] = [], port?: number): Promise<Serve> {
    const broker = new Serve(port ?? (await freePort()), args);
    await broker.run();
    return broker;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async run(): Promise<void> {
    const store = this.args.includes("--redis") ? [] : ["--data-dir", join(this.directory, "data")];
    const args = ["serve", "--listen", `127.0.0.1:${this.port}`, "--allow-private-targets", ...store, ...this.args];
    const child = spawn(BINARY, args, { stdio: ["ignore", "ignore", "pipe"] });
    let log = "";
    child.stderr.on("data", (data) => (log = (log + String(data)).slice(-4_000)));
    this.#process = child;
    await eventually("broker ready", async () => {
      if (child.exitCode !== null) throw new Error(`the broker ended: ${log}`);
      return (await fetch(`${this.url}/readyz`)).ok;
    });
  }

  /** Kills the process with SIGKILL. */
  async kill(): Promise<void> {
    await end(this.#process, "SIGKILL");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.directory, { recursive: true, force: true });
  }
}

interface SeenTopology {
  leader: string | null;
  brokers: { partitions: number[] }[];
}

/** Three brokers on a Redis of their own. */
export class Cluster implements AsyncDisposable {
  readonly brokers: Serve[] = [];
  readonly #directory = temporary("redis");
  #redis: ChildProcess | undefined;

  /** Resolves once there is a leader and each broker owns partitions. */
  static async start(): Promise<Cluster> {
    const cluster = new Cluster();
    try {
      await cluster.#start();
    } catch (error) {
      await cluster[Symbol.asyncDispose]();
      throw error;
    }
    return cluster;
  }

  async #start(): Promise<void> {
    const port = await freePort();
    const args = ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", this.#directory];
    this.#redis = spawn("redis-server", args, { stdio: "ignore" });
    await eventually("Redis", () => new Promise<boolean>((resolve) => {
      const socket = connect(port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
      socket.on("connect", () => socket.end());
    }));
    const serve = ["--redis", `redis://127.0.0.1:${port}`, "--cluster", "t", "--lease", "2s"];
    for (let count = 0; count < 3; count += 1) this.brokers.push(await Serve.start(serve));
    await eventually("three brokers with partitions", async () => {
      const { brokers, leader } = await this.#topology();
      return typeof leader === "string" && brokers.length === 3 && brokers.every(({ partitions }) => partitions.length > 0);
    });
  }

  async #topology(): Promise<SeenTopology> {
    for (const { url } of this.brokers) {
      const answer = await fetch(`${url}/v1/topology`).catch(() => undefined);
      if (answer?.ok === true) return (await answer.json()) as SeenTopology;
    }
    throw new Error("no broker answers");
  }

  async leader(): Promise<Serve> {
    const { leader } = await this.#topology();
    const found = this.brokers.find(({ url }) => url === `http://${leader}`);
    if (found === undefined) throw new Error(`no broker ${leader}`);
    return found;
  }

  /** The addresses of all brokers, that of the leader first. */
  async urls(): Promise<string[]> {
    const { url: first } = await this.leader();
    return [first, ...this.brokers.map(({ url }) => url).filter((url) => url !== first)];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const broker of this.brokers) await broker[Symbol.asyncDispose]();
    await end(this.#redis, "SIGKILL");
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

export async function end(child: ChildProcess | undefined, signal: NodeJS.Signals): Promise<void> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill(signal);
  await ended;
}

export interface Received {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string;
}

/** An HTTP receiver that answers by a list; the last answer is repeated. */
export class Receiver implements AsyncDisposable {
  readonly requests: Received[] = [];

  private constructor(readonly server: Server, readonly url: string) {}

  static async start(answers: { status: number; body?: unknown; headers?: Record<string, string> }[]): Promise<Receiver> {
    const server = createServer(async (request, response) => {
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const headers = Object.fromEntries(Object.entries(request.headers).map(([name, value]) => [name, String(value)]));
      const { method = "", url: path = "" } = request;
      receiver.requests.push({ method, path, headers, body: Buffer.concat(pieces).toString() });
      const answer = answers[Math.min(receiver.requests.length, answers.length) - 1] ?? { status: 200 };
      response.writeHead(answer.status, answer.headers);
      response.end(typeof answer.body === "string" || answer.body === undefined ? answer.body : JSON.stringify(answer.body));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const receiver = new Receiver(server, `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`);
    return receiver;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }
}
