// Durations and instants. A caller gives durations as text (`"15m"`, `"PT15M"`) or as milliseconds, and instants as
// `Date` or RFC 3339 text. Answers have instants as `Date` and durations as text.

/** A duration: text like `"500ms"`, `"1h30m"` or `"PT15M"`, or a whole number of milliseconds. */
export type Duration = string | number;

/** An instant: a `Date`, or RFC 3339 text. */
export type Instant = Date | string;

/** The duration as the API takes it. */
export function durationText(duration: Duration): string {
  if (typeof duration !== "number") return duration;
  if (!Number.isFinite(duration) || duration < 0) {
    throw new RangeError(`duration: must be text or milliseconds from 0 on, not ${duration}`);
  }
  return `${Math.round(duration)}ms`;
}

/** The instant as the API takes it. */
export function instantText(instant: Instant): string {
  return instant instanceof Date ? instant.toISOString() : instant;
}

const UNIT_MS: Record<string, number> = { w: 604_800_000, d: 86_400_000, h: 3_600_000, m: 60_000, s: 1_000, ms: 1 };
const PLAIN = /^(?:\d+(?:ms|[wdhms]))+$/;
const ISO = /^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$/;

/** The duration in milliseconds. Throws `RangeError` if the text is not a duration. */
export function durationMs(duration: Duration): number {
  if (typeof duration === "number") return duration;
  if (PLAIN.test(duration)) {
    let sum = 0;
    for (const [, count, unit] of duration.matchAll(/(\d+)(ms|[wdhms])/g)) sum += Number(count) * (UNIT_MS[unit ?? ""] ?? 0);
    return sum;
  }
  const parts = ISO.exec(duration);
  if (parts === null || duration.length < 3 || duration.endsWith("T")) {
    throw new RangeError(`duration: must be text like "15m" or "PT15M", not ${JSON.stringify(duration)}`);
  }
  const [weeks, days, hours, minutes, seconds] = parts.slice(1).map((part) => Number(part ?? 0));
  return (((((weeks ?? 0) * 7 + (days ?? 0)) * 24 + (hours ?? 0)) * 60 + (minutes ?? 0)) * 60 + (seconds ?? 0)) * 1_000;
}

/** Resolves after `ms`, or rejects with the reason of the signal. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
