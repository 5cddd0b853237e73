// The two kinds of targets.

import type { HttpTarget, ToHttp, ToQueue } from "./types.js";

/** A queue of the namespace, to which workers subscribe. */
export function queue(name: string): ToQueue {
  return { queue: name };
}

/** A webhook. */
export function http(url: string | URL, options: Omit<HttpTarget, "url"> = {}): ToHttp {
  return { http: { ...options, url: String(url) } };
}
