// Coalesces heartbeats: many touches of the same key become one, and many keys one request. The buffer is bounded; it is
// sent by time and by size, and when it is closed.

import type { Punctual } from "./client.js";
import { BufferFullError, InvalidRequestError } from "./errors.js";
import { durationMs, type Duration } from "./time.js";
import type { KeyProblem, NewTask } from "./types.js";

/** The limit of the API for one request. */
const KEYS_PER_REQUEST_MAX = 10_000;

export interface TouchBufferOptions {
  /** What a key without a task becomes. */
  create?: NewTask;
  /** The longest that a touch waits before it is sent. Default: 1 s. Choose it well below `within`. */
  every?: Duration;
  /** Keys that are sent at once, without waiting. Default: 1,000. */
  size?: number;
  /** Keys that may wait, for example while no broker answers. Default: 100,000. */
  max?: number;
  /** Keys that no task has, without `create`. */
  onMissing?: (keys: string[]) => void;
  /** Keys that could be neither touched nor created, and calls that failed. Keys are sent again unless they are wrong. */
  onError?: (error: unknown) => void;
}

export class TouchBuffer implements AsyncDisposable {
  readonly #client: Punctual;
  readonly #options: TouchBufferOptions;
  readonly #everyMs: number;
  readonly #size: number;
  readonly #max: number;
  readonly #keys = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #sending: Promise<boolean> | undefined;
  #isClosed = false;

  constructor(client: Punctual, options: TouchBufferOptions = {}) {
    this.#client = client;
    this.#options = options;
    this.#everyMs = durationMs(options.every ?? 1_000);
    this.#size = Math.min(options.size ?? 1_000, KEYS_PER_REQUEST_MAX);
    this.#max = options.max ?? 100_000;
  }

  /** How many keys wait. */
  get waiting(): number {
    return this.#keys.size;
  }

  /** Touches a key soon. Throws `BufferFullError` if too many keys wait. */
  touch(key: string): void {
    if (this.#isClosed) throw new Error("touch: the buffer is closed");
    if (this.#keys.size >= this.#max && !this.#keys.has(key)) {
      throw new BufferFullError(`${this.#max} keys wait to be touched; no broker takes them`);
    }
    this.#keys.add(key);
    if (this.#keys.size >= this.#size && this.#sending === undefined) void this.#send();
    else this.#timer ??= setTimeout(() => void this.#send(), this.#everyMs);
  }

  /** Sends what waits. Returns whether everything was sent. */
  async flush(): Promise<boolean> {
    await this.#sending;
    while (this.#keys.size > 0) if (!(await this.#send())) return false;
    return true;
  }

  /** Sends what waits and takes nothing more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const isSent = await this.flush();
    clearTimeout(this.#timer);
    if (!isSent) throw new Error(`close: ${this.#keys.size} keys could not be touched`);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #send(): Promise<boolean> {
    this.#sending ??= this.#sendBatch().finally(() => {
      this.#sending = undefined;
      if (this.#keys.size > 0 && !this.#isClosed) this.#timer ??= setTimeout(() => void this.#send(), this.#everyMs);
    });
    return this.#sending;
  }

  async #sendBatch(): Promise<boolean> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const keys: string[] = [];
    for (const key of this.#keys) {
      if (keys.length >= KEYS_PER_REQUEST_MAX) break;
      keys.push(key);
      this.#keys.delete(key);
    }
    const { create, onMissing, onError } = this.#options;
    while (keys.length > 0) {
      try {
        const answer = await this.#client.touchMany(keys, create === undefined ? {} : { create });
        if (answer.missing.length > 0) onMissing?.(answer.missing);
        for (const problem of answer.problems ?? []) onError?.(problem satisfies KeyProblem);
        return true;
      } catch (error) {
        onError?.(error);
        const wrong = wrongKey(error);
        if (wrong === undefined || wrong >= keys.length) {
          for (const key of keys) if (this.#keys.size < this.#max) this.#keys.add(key);
          return false;
        }
        // One key that no task can have must not hold up the others.
        keys.splice(wrong, 1);
      }
    }
    return true;
  }
}

/** The position of the key that a broker refuses: such a call has touched nothing. */
function wrongKey(error: unknown): number | undefined {
  const position = error instanceof InvalidRequestError ? /^keys\[(\d+)\]$/.exec(error.field ?? "")?.[1] : undefined;
  return position === undefined ? undefined : Number(position);
}
