// Targets that are made by functions; the others are written as objects.

import type { HttpTarget, SqlTarget, ToHttp, ToQueue, ToSql } from "./types.js";

/** A queue of the namespace, to which workers subscribe. */
export function queue(name: string): ToQueue {
  return { queue: name };
}

/** A webhook. */
export function http(url: string | URL, options: Omit<HttpTarget, "url"> = {}): ToHttp {
  return { http: { ...options, url: String(url) } };
}

/** A statement of a connection. Parameters that are not in `params` are taken from the payload. */
export function sql(connection: string, statement: string, params?: SqlTarget["params"]): ToSql {
  return { sql: { connection, statement, ...(params === undefined ? {} : { params }) } };
}
