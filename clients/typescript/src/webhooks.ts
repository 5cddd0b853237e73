// Receives webhooks: checks signatures as Standard Webhooks describes, with WebCrypto, and turns what a handler does into
// the answer that Punctual understands. The signature covers the bytes of the body, so the wrappers read it themselves.

import { base64, fromBase64 } from "./codec.js";
import { Refuse, Retry, SignatureError } from "./errors.js";
import { durationMs, type Duration } from "./time.js";
import type { Occasion } from "./types.js";

const TOLERANCE_MS = 300_000;
/** Payloads have at most 256 KiB; callbacks have records of the same size. */
const BODY_BYTES_MAX = 1024 * 1024;
/** A header with more signatures than a rotation needs is not checked further. */
const SIGNATURES_MAX = 16;

export type HeaderSource = Headers | Record<string, string | string[] | undefined>;
/** `whsec_…` as the broker has it. During a rotation: the old and the new one. */
export type Secret = string | string[];

/** A webhook that was received. */
export interface WebhookFire<Payload = unknown> {
  /** The same for every attempt of one fire: deduplicate on it. */
  fireId: string;
  sentAt: Date;
  namespace: string | undefined;
  key: string | undefined;
  version: number | undefined;
  occasion: Occasion | undefined;
  attempt: number | undefined;
  fireAt: Date | undefined;
  lagMs: number | undefined;
  callbackOf: string | undefined;
  /** The body, parsed if it is JSON. */
  payload: Payload;
  body: Uint8Array;
}

export interface VerifyOptions {
  /** How much older or newer than now a webhook may be. Default: 5 min. */
  tolerance?: Duration;
  now?: Date;
}

function header(headers: HeaderSource, name: string): string | undefined {
  if (typeof (headers as Headers).get === "function") return (headers as Headers).get(name) ?? undefined;
  for (const [given, value] of Object.entries(headers as Record<string, string | string[] | undefined>)) {
    if (given.toLowerCase() === name) return Array.isArray(value) ? value.join(",") : value;
  }
  return undefined;
}

/** Checks the signature of a webhook. `body` must be the bytes as they came. Throws `SignatureError`. */
export async function verify(
  secret: Secret, headers: HeaderSource, body: Uint8Array | string, options: VerifyOptions = {},
): Promise<void> {
  const id = header(headers, "webhook-id");
  const timestamp = header(headers, "webhook-timestamp");
  const signatures = header(headers, "webhook-signature");
  if (id === undefined || timestamp === undefined || signatures === undefined) {
    throw new SignatureError("webhook-id, webhook-timestamp and webhook-signature are required");
  }
  if (!/^\d{1,12}$/.test(timestamp)) throw new SignatureError("webhook-timestamp must be seconds since the Unix epoch");
  const age = (options.now ?? new Date()).getTime() - Number(timestamp) * 1_000;
  if (Math.abs(age) > durationMs(options.tolerance ?? TOLERANCE_MS)) {
    throw new SignatureError("webhook-timestamp is too far from now");
  }
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(head.length + bytes.length);
  signed.set(head);
  signed.set(bytes, head.length);
  const given = signatures.split(" ").slice(0, SIGNATURES_MAX).filter((part) => part.startsWith("v1,")).map((part) => part.slice(3));
  for (const one of Array.isArray(secret) ? secret : [secret]) {
    const key = await hmacKey(one);
    for (const signature of given) {
      const claimed = tryBase64(signature);
      // `verify` compares in constant time.
      if (claimed !== undefined && (await crypto.subtle.verify("HMAC", key, claimed, signed))) return;
    }
  }
  throw new SignatureError("no signature of the webhook is valid");
}

/** The `webhook-signature` of a body, for tests of receivers. */
export async function sign(secret: string, id: string, timestamp: number, body: string): Promise<string> {
  const signed = new TextEncoder().encode(`${id}.${timestamp}.${body}`);
  return `v1,${base64(new Uint8Array(await crypto.subtle.sign("HMAC", await hmacKey(secret), signed)))}`;
}

async function hmacKey(secret: string): Promise<CryptoKey> {
  const bytes = tryBase64(secret.replace(/^whsec_/, ""));
  if (bytes === undefined || bytes.length === 0) throw new TypeError("secret: must be whsec_ and base64");
  return crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign", "verify"]);
}

function tryBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return fromBase64(text);
  } catch {
    return undefined;
  }
}

/** Reads the fire out of a request whose signature was checked. */
export function webhookFire<Payload>(headers: HeaderSource, body: Uint8Array): WebhookFire<Payload> {
  const number = (name: string): number | undefined => {
    const value = header(headers, name);
    return value === undefined ? undefined : Number(value);
  };
  const fireAt = header(headers, "punctual-fire-at");
  return {
    fireId: header(headers, "webhook-id") ?? "",
    sentAt: new Date((number("webhook-timestamp") ?? 0) * 1_000),
    namespace: header(headers, "punctual-namespace"),
    key: header(headers, "punctual-key"),
    version: number("punctual-version"),
    occasion: header(headers, "punctual-occasion") as Occasion | undefined,
    attempt: number("punctual-attempt"),
    fireAt: fireAt === undefined ? undefined : new Date(fireAt),
    lagMs: number("punctual-lag-ms"),
    callbackOf: header(headers, "punctual-callback-of"),
    payload: parse(body) as Payload,
    body,
  };
}

function parse(body: Uint8Array): unknown {
  const text = new TextDecoder().decode(body);
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export type WebhookHandler<Payload = unknown> = (fire: WebhookFire<Payload>) => unknown;

interface Answered {
  status: number;
  headers: Record<string, string>;
  body: string;
}

async function answer<Payload>(
  secret: Secret | null, headers: HeaderSource, body: Uint8Array, handler: WebhookHandler<Payload>, options: VerifyOptions,
): Promise<Answered> {
  const text = (status: number, words: string, extra: Record<string, string> = {}): Answered =>
    ({ status, headers: { "content-type": "text/plain; charset=utf-8", ...extra }, body: words });
  try {
    if (secret !== null) await verify(secret, headers, body, options);
    const result = await handler(webhookFire<Payload>(headers, body));
    if (result === undefined) return { status: 204, headers: {}, body: "" };
    return { status: 200, headers: { "content-type": "application/json" }, body: JSON.stringify(result) };
  } catch (error) {
    if (error instanceof SignatureError) return text(401, error.message);
    if (error instanceof Refuse) return text(410, error.message);
    if (!(error instanceof Retry)) return text(500, error instanceof Error ? error.message : String(error));
    // `Retry-After` has whole seconds.
    const after: Record<string, string> = error.after === undefined ? {} : { "retry-after": String(Math.ceil(durationMs(error.after) / 1_000)) };
    return text(503, error.message, after);
  }
}

/** A receiver for everything that has `Request` and `Response`. `null` as the secret accepts unsigned webhooks. */
export function webhook<Payload = unknown>(
  secret: Secret | null, handler: WebhookHandler<Payload>, options: VerifyOptions = {},
): (request: Request) => Promise<Response> {
  return async (request) => {
    if (Number(request.headers.get("content-length") ?? 0) > BODY_BYTES_MAX) return new Response("the body is too large", { status: 413 });
    const body = new Uint8Array(await request.arrayBuffer());
    const { status, headers, body: text } = await answer(secret, request.headers, body, handler, options);
    return new Response(status === 204 ? null : text, { status, headers });
  };
}

/** The parts of a request of Node's `http` (or Express) that are used. */
export interface NodeRequest extends AsyncIterable<Uint8Array | string> {
  headers: Record<string, string | string[] | undefined>;
  readableEnded?: boolean;
  body?: unknown;
  rawBody?: unknown;
}

/** The parts of a response of Node's `http` (or Express) that are used. */
export interface NodeResponse {
  statusCode: number;
  setHeader(name: string, value: string): unknown;
  end(text?: string): unknown;
}

/** A receiver for Node's `http`, Express and Next's API routes. Use it before any middleware that parses bodies. */
export function nodeWebhook<Payload = unknown>(
  secret: Secret | null, handler: WebhookHandler<Payload>, options: VerifyOptions = {},
): (request: NodeRequest, response: NodeResponse) => Promise<void> {
  return async (request, response) => {
    const body = await rawBody(request);
    const answered = typeof body === "string"
      ? { status: body === TOO_LARGE ? 413 : 500, headers: {}, body }
      : await answer(secret, request.headers, body, handler, options);
    response.statusCode = answered.status;
    for (const [name, value] of Object.entries(answered.headers)) response.setHeader(name, value);
    response.end(answered.body);
  };
}

const TOO_LARGE = "the body is too large";
const PARSED = "the body was parsed before the webhook was checked: mount nodeWebhook before any body parser, or use express.raw";

/** The bytes of the body, or why they cannot be had. */
async function rawBody(request: NodeRequest): Promise<Uint8Array | string> {
  for (const read of [request.rawBody, request.body]) {
    if (read instanceof Uint8Array) return read;
    if (typeof read === "string") return new TextEncoder().encode(read);
  }
  if (request.readableEnded === true) return PARSED;
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of request) {
    const bytes = typeof piece === "string" ? new TextEncoder().encode(piece) : piece;
    length += bytes.length;
    if (length > BODY_BYTES_MAX) return TOO_LARGE;
    pieces.push(bytes);
  }
  const body = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    body.set(piece, at);
    at += piece.length;
  }
  return body;
}
