// One class per thing that a caller can do about a failed call. All carry the problem document of the broker.

import type { Problem } from "./types.js";

/** A call that failed. `type`, `title`, `status`, `detail` and `field` are those of the problem document. */
export class PunctualError extends Error {
  readonly problem: Problem;

  constructor(problem: Problem, options?: ErrorOptions) {
    super(problem.detail || problem.title, options);
    this.problem = problem;
    this.name = new.target.name;
  }

  get type(): string {
    return this.problem.type;
  }
  get title(): string {
    return this.problem.title;
  }
  get status(): number {
    return this.problem.status;
  }
  get detail(): string {
    return this.problem.detail;
  }
  get field(): string | undefined {
    return this.problem.field ?? undefined;
  }
}

/** The request is wrong (400, 405, 408, 413, 415, 422): change it. `field` says where. */
export class InvalidRequestError extends PunctualError {}
/** The token is missing or lacks a right (401, 403). */
export class AccessError extends PunctualError {}
/** There is no such task, dead letter, alarm, operation or connection (404). */
export class NotFoundError extends PunctualError {}
/** The task is not as the call expects it (409, 412): read it again and decide. */
export class ConflictError extends PunctualError {}
/** The namespace has used up its share (429); nothing was done. Call again after `retryAfterMs`. */
export class LimitedError extends PunctualError {
  readonly retryAfterMs: number | undefined;

  constructor(problem: Problem, retryAfterMs: number | undefined) {
    super(problem);
    this.retryAfterMs = retryAfterMs;
  }
}
/** No broker could carry the call out (503, 507, or no connection); nothing was done. Call again later. */
export class UnavailableError extends PunctualError {}
/** It is not known whether the call was carried out (`urn:punctual:lost`, or the connection broke): read, then decide. */
export class LostError extends PunctualError {}
/** The broker failed (500): an operator has to look. */
export class BrokerError extends PunctualError {}

/** The error of an answer with this problem. */
export function errorOf(problem: Problem, retryAfterMs?: number): PunctualError {
  const { status, type } = problem;
  if (type === "urn:punctual:lost") return new LostError(problem);
  if (status === 401 || status === 403) return new AccessError(problem);
  if (status === 404) return new NotFoundError(problem);
  if (status === 409 || status === 412) return new ConflictError(problem);
  if (status === 429) return new LimitedError(problem, retryAfterMs);
  if (status === 502 || status === 503 || status === 504 || status === 507) return new UnavailableError(problem);
  if (status >= 500) return new BrokerError(problem);
  return new InvalidRequestError(problem);
}

/** A webhook whose signature or timestamp is not valid. */
export class SignatureError extends Error {
  override readonly name = "SignatureError";
}

/** A touch buffer that is full, because brokers take no touches. */
export class BufferFullError extends Error {
  override readonly name = "BufferFullError";
}

/** Thrown by a handler: the attempt failed; try again after `after`, or by the retry policy of the task. */
export class Retry extends Error {
  override readonly name = "Retry";
  readonly after: string | number | undefined;

  constructor(after?: string | number, reason = "the handler asked for a retry") {
    super(reason);
    this.after = after;
  }
}

/** Thrown by a handler: no further attempt, the fire is a dead letter. */
export class Refuse extends Error {
  override readonly name = "Refuse";
}
