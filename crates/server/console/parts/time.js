// Times and durations as text. All instants are shown in one zone, which the user chooses, and its
// name is always printed. "Now" is the broker's clock, not the one of the browser.

import { html } from '../vendor/preact-htm.js';
import { signal, useSignal } from './signal.js';

const LOCAL = Intl.DateTimeFormat().resolvedOptions().timeZone;
const STORED = 'punctual.zone';

let offset = 0;
export const setClock = (time) => (offset = Date.parse(time) - Date.now());
export const now = () => Date.now() + offset;

export const ZONES = [...new Set([LOCAL, 'UTC'])];
const kept = localStorage.getItem(STORED);
export const zone = signal(ZONES.includes(kept) ? kept : LOCAL);
zone.subscribe((name) => localStorage.setItem(STORED, name));

const formats = new Map();
function partsOf(ms, name) {
  if (!formats.has(name)) {
    formats.set(name, new Intl.DateTimeFormat('en-GB', {
      timeZone: name, hourCycle: 'h23', year: 'numeric', month: '2-digit', day: '2-digit',
      hour: '2-digit', minute: '2-digit', second: '2-digit', weekday: 'short',
      timeZoneName: 'short',
    }));
  }
  const found = formats.get(name).formatToParts(ms);
  return Object.fromEntries(found.map(({ type, value }) => [type, value]));
}

// Times of the API are RFC 3339 or milliseconds; users type them into filters.
export const millis = (at) => (/^\d+$/.test(at) ? Number(at) : Date.parse(at));

// `2026-11-18 09:00:05`, in the zone of the page.
export function clock(at, { millisecond, minute } = {}) {
  const ms = millis(at);
  const p = partsOf(ms, zone.value);
  const day = `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}`;
  if (minute) return day;
  return `${day}:${p.second}${millisecond ? `.${String(ms % 1000).padStart(3, '0')}` : ''}`;
}
export const zoneName = (at = now()) => partsOf(millis(at), zone.value).timeZoneName;
export const inZone = (at) =>
  (Number.isNaN(millis(at)) ? String(at) : `${clock(at)} ${zoneName(at)}`);
export const iso = (ms) => new Date(ms).toISOString();

// The day and hour of an instant in the zone of the page.
export function civil(ms) {
  const p = partsOf(ms, zone.value);
  const day = `${p.year}-${p.month}-${p.day}`;
  return { day, weekday: p.weekday, hour: Number(p.hour), minute: p.minute };
}

// The beginning of the hour of the zone.
export const hourStart = (ms) => ms - (ms % 60_000) - Number(civil(ms).minute) * 60_000;

// The latest midnight of the zone at or before an instant.
export function midnight(ms) {
  const { hour, minute } = civil(ms);
  let start = ms - (ms % 60_000) - (hour * 60 + Number(minute)) * 60_000;
  // A clock change since midnight moves the result by its length.
  if (civil(start).day !== civil(ms).day) start += 3_600_000;
  return start - civil(start).hour * 3_600_000;
}

const UNITS = [['d', 86_400_000], ['h', 3_600_000], ['m', 60_000], ['s', 1000]];

// Two units at most: `2d 3h`, `15m`, `3.2s`, `12ms`.
export function span(ms) {
  if (ms < 1000) return `${ms < 10 ? Math.round(ms * 10) / 10 : Math.round(ms)}ms`;
  if (ms < 10_000) return `${Math.round(ms / 100) / 10}s`;
  const first = UNITS.findIndex(([, length]) => ms >= length);
  const [name, length] = UNITS[first];
  const text = `${Math.floor(ms / length)}${name}`;
  const next = UNITS[first + 1];
  const rest = next ? Math.floor((ms % length) / next[1]) : 0;
  return rest ? `${text} ${rest}${next[0]}` : text;
}

// A duration of the API as milliseconds: `1h30m`.
export function parseSpan(text) {
  const lengths = { ms: 1, ...Object.fromEntries(UNITS) };
  const found = [...String(text).matchAll(/([\d.]+)(ms|[dhms])/g)];
  return found.reduce((sum, [, n, unit]) => sum + n * lengths[unit], 0);
}

function relative(at) {
  const ms = millis(at) - now();
  if (Math.abs(ms) < 1000) return 'now';
  return ms > 0 ? `in ${span(ms)}` : `${span(-ms)} ago`;
}

const ticks = signal(0);
setInterval(() => document.hidden || (ticks.value += 1), 1000);

const useTick = () => useSignal(ticks);

export function Ago({ at }) {
  useTick();
  return at ? html`<span class="num">${relative(at)}</span>` : '–';
}

// An instant in the zone of the page. `with-zone` prints the zone; otherwise the column does.
export function Time({ at, full, plain }) {
  useSignal(zone);
  if (!at) return '–';
  const text = clock(at, { millisecond: full });
  const title = `${iso(millis(at))} (UTC)`;
  return html`<time class="num" datetime=${iso(millis(at))} title=${title}>${text}${
    plain ? '' : ` ${zoneName(at)}`}</time>`;
}
// The head of a column of times, which names the zone once.
export function ZoneHead({ children }) {
  useSignal(zone);
  return html`${children} <small>${zoneName()}</small>`;
}
