// Converts between the types of this package (camel case, `Date`, durations in milliseconds) and the JSON of the API
// (snake case, text). Requests are converted field by field; answers by the names of their fields, which a test compares
// with `/openapi.json`. Values that belong to the caller (payloads, labels, headers, results, parameters) are never
// changed.

import { durationText, instantText, type Duration, type Instant } from "./time.js";
import type { AlarmRule, NewTaskWithKey, Receiver, RetryPolicy, TaskFilter } from "./types.js";

type Wire = Record<string, unknown>;

/** Fields of answers that have an instant. */
export const INSTANT_FIELDS = new Set([
  "at", "complete_until", "created_at", "died_at", "ended_at", "ends_at", "fire_at", "fired_at", "first_at", "from",
  "last_at", "last_heartbeat", "nominal_at", "now", "oldest_overdue", "read_at", "retry_at", "since", "started_at", "starts_at",
  "time", "to", "touched_at", "until", "updated_at",
]);
/** Fields whose values belong to the caller. */
export const OPAQUE_FIELDS = new Set(["payload", "result", "labels", "headers", "json", "params"]);

const camelNames = new Map<string, string>();

/** `fire_at` as `fireAt`. */
export function camel(name: string): string {
  let known = camelNames.get(name);
  if (known === undefined) {
    known = name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
    // Names come from the API, so there are few; the bound is for answers of something else.
    if (camelNames.size < 1_000) camelNames.set(name, known);
  }
  return known;
}

/** `fireAt` as `fire_at`. */
export function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** An answer of the API in the types of this package. */
export function decode<T>(value: unknown): T {
  return decodeValue(value) as T;
}

function decodeValue(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(decodeValue);
  const decoded: Wire = {};
  for (const name in value) {
    const field = (value as Wire)[name];
    if (typeof field === "string") decoded[camel(name)] = INSTANT_FIELDS.has(name) ? new Date(field) : field;
    else if (typeof field !== "object" || field === null || OPAQUE_FIELDS.has(name)) decoded[camel(name)] = field;
    else decoded[camel(name)] = decodeValue(field);
  }
  return decoded;
}

/** The target as the API takes it. */
export function encodeReceiver(receiver: Receiver): unknown {
  if (typeof receiver === "string" || receiver instanceof URL) return { http: { url: String(receiver) } };
  if (typeof receiver !== "object" || "http" in receiver || "queue" in receiver || "sql" in receiver) return receiver;
  // The names of the others may have several words; their values belong to the caller.
  return snakeNames(receiver, (inner) => (typeof inner === "object" && inner !== null ? snakeNames(inner, same) : inner));
}

function snakeNames(value: object, convert: (value: unknown) => unknown): Wire {
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [snake(name), convert(inner)]));
}

function encodeRetry(retry: RetryPolicy): unknown {
  if (typeof retry !== "object") return retry;
  const { attemptsMax, backoff, ...others } = retry;
  const encoded: Wire = { ...others };
  if (attemptsMax !== undefined) encoded["attempts_max"] = attemptsMax;
  if (backoff === undefined) return encoded;
  if ("fixed" in backoff) encoded["backoff"] = { fixed: durationText(backoff.fixed) };
  else if ("list" in backoff && Array.isArray(backoff.list)) encoded["backoff"] = { list: backoff.list.map(durationText) };
  else if (!("exponential" in backoff)) encoded["backoff"] = backoff;
  else {
    const { first, max } = backoff.exponential;
    const exponential: Wire = { ...backoff.exponential, first: durationText(first) };
    if (max !== undefined) exponential["max"] = durationText(max);
    encoded["backoff"] = { exponential };
  }
  return encoded;
}

const same = (value: unknown): unknown => value;
const duration = (value: unknown): string => durationText(value as Duration);
const instant = (value: unknown): string => instantText(value as Instant);
const receiver = (value: unknown): unknown => encodeReceiver(value as Receiver);

/** Each field of a task: its name in the API, and how its value is written. */
const TASK_FIELDS: Record<string, [string, (value: unknown) => unknown]> = {
  key: ["key", same],
  in: ["in", duration],
  at: ["at", instant],
  cron: ["cron", same],
  timezone: ["timezone", same],
  dst: ["dst", same],
  every: ["every", duration],
  within: ["within", duration],
  postponeMax: ["postpone_max", duration],
  onReturn: ["on_return", same],
  startsAt: ["starts_at", instant],
  endsAt: ["ends_at", instant],
  count: ["count", same],
  misfire: ["misfire", same],
  overlap: ["overlap", same],
  jitter: ["jitter", duration],
  to: ["target", receiver],
  payload: ["payload", same],
  payloadBase64: ["payload_base64", same],
  contentType: ["content_type", same],
  guarantee: ["guarantee", same],
  retry: ["retry", (value) => encodeRetry(value as RetryPolicy)],
  timeout: ["timeout", duration],
  expiresAfter: ["expires_after", duration],
  labels: ["labels", same],
  paused: ["paused", same],
  onDone: ["on_done", receiver],
  onDead: ["on_dead", receiver],
};

/** A task as the API takes it. A field that is not known is sent as it is: the broker refuses it by its name. */
export function encodeTask(task: Partial<NewTaskWithKey>): Wire {
  const encoded: Wire = {};
  for (const name in task) {
    const value = (task as Wire)[name];
    if (value === undefined) continue;
    const field = TASK_FIELDS[name];
    if (field === undefined) encoded[snake(name)] = value;
    else if (name === "payload" && value instanceof Uint8Array) encoded["payload_base64"] = base64(value);
    else encoded[field[0]] = value === null ? null : field[1](value);
  }
  return encoded;
}

/** The conditions of tasks as query parameters, or as the `where` of an operation. */
export function encodeFilter(filter: TaskFilter & { end?: string }): Record<string, string> {
  const encoded: Record<string, string> = {};
  for (const [name, value] of Object.entries(filter)) {
    if (value === undefined) continue;
    if (name === "label") encoded["label"] = encodeLabel(value as Record<string, string>);
    else if (name === "from" || name === "to") encoded[name] = instantText(value as Instant);
    else encoded[snake(name)] = String(value);
  }
  return encoded;
}

function encodeLabel(label: Record<string, string>): string {
  const [first, ...others] = Object.entries(label);
  if (first === undefined || others.length > 0) throw new RangeError("label: must have exactly one name and its value");
  return `${first[0]}:${first[1]}`;
}

/** The rule of an alarm as the API takes it. */
export function encodeAlarm(rule: AlarmRule): Wire {
  const { when, to, repeatAfter } = rule;
  const encoded: Wire = { when: encodeCondition(when), to };
  if (repeatAfter !== undefined) encoded["repeat_after"] = repeatAfter === null ? null : durationText(repeatAfter);
  return encoded;
}

function encodeCondition(when: AlarmRule["when"]): Wire {
  const encoded: Wire = {};
  for (const [kind, condition] of Object.entries(when)) {
    const fields: Wire = {};
    for (const [name, value] of Object.entries(condition as Wire)) {
      const isDuration = name === "window" || name === "p99Over" || name === "for" || (name === "over" && kind === "overdue");
      fields[snake(name)] = isDuration ? durationText(value as Duration) : value;
    }
    encoded[snake(kind)] = fields;
  }
  return encoded;
}

/** Bytes in base64 with padding. */
export function base64(bytes: Uint8Array): string {
  let text = "";
  // In pieces, because arguments of a call are limited.
  for (let at = 0; at < bytes.length; at += 8_192) text += String.fromCharCode(...bytes.subarray(at, at + 8_192));
  return btoa(text);
}

/** The bytes of a base64 text. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
