// Punctual for JavaScript: the client, the worker, and receivers of webhooks.

export * from "./client.js";
export * from "./errors.js";
export { Pages, type Page } from "./pages.js";
export { amqp, grpc, http, kafka, mqtt, nats, queue, redisStream, sql } from "./targets.js";
export { durationMs, type Duration, type Instant } from "./time.js";
export { TouchBuffer, type TouchBufferOptions } from "./touch-buffer.js";
export type * from "./types.js";
export {
  nodeWebhook, sign, verify, webhook, webhookFire,
  type HeaderSource, type NodeRequest, type NodeResponse, type Secret, type VerifyOptions, type WebhookFire, type WebhookHandler,
} from "./webhooks.js";
export { payloadBytes, Worker, type Fire, type Handler, type HandlerContext, type WorkerOptions } from "./worker.js";
