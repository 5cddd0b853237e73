// Schedules in words.

import { inZone } from './time.js';
import { plural } from './words.js';

export const kindOf = (task) =>
  ['cron', 'every'].find((kind) => task[kind]) ?? (task.within ? 'watch' : 'once');

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August',
  'September', 'October', 'November', 'December'];
const MACROS = {
  '@yearly': '0 0 1 1 *', '@annually': '0 0 1 1 *', '@monthly': '0 0 1 * *',
  '@weekly': '0 0 * * 0', '@daily': '0 0 * * *', '@midnight': '0 0 * * *', '@hourly': '0 * * * *',
};

const named = (names, first) => (text) => {
  const short = text.slice(0, 3).toUpperCase();
  const at = /^\d+$/.test(text) ? text - first : names.findIndex(
    (name) => name.slice(0, 3).toUpperCase() === short && text.length === 3,
  );
  return names[names === DAYS ? at % 7 : at];
};
const plain = (text) => (/^\d+$/.test(text) ? text : undefined);

// `MON-FRI`, `1,15`; `undefined` for what has no short words.
function set(field, name) {
  const words = field.split(',').map((part) => {
    const [from, to, ...rest] = part.split('-');
    if (rest.length || !name(from) || (to && !name(to))) return undefined;
    return to ? `${name(from)} to ${name(to)}` : name(from);
  });
  if (words.includes(undefined)) return undefined;
  const last = words.pop();
  return words.length ? `${words.join(', ')} and ${last}` : last;
}

const isAny = (field) => field === '*' || field === '?';
// A step that does not divide the range begins anew with it, which no short words say.
const step = (field, range = 60) => {
  const length = /^(?:\*|0)\/(\d+)$/.exec(field)?.[1];
  return range % length === 0 ? length : undefined;
};
const two = (text) => text.padStart(2, '0');

function timeOfDay(second, minute, hour) {
  const seconds = second === '0' ? '' : plain(second) && `:${two(second)}`;
  if (plain(minute) && seconds !== undefined) {
    const hours = hour.split(',');
    if (hours.every(plain)) {
      return `at ${hours.map((h) => `${two(h)}:${two(minute)}${seconds}`).join(', ')}`;
    }
    if (seconds) return undefined;
    const past = minute === '0' ? 'on the hour' : `at ${plural(Number(minute), 'minute')} past`;
    if (isAny(hour)) return minute === '0' ? 'every hour' : `every hour ${past}`;
    if (step(hour, 24)) return `every ${step(hour, 24)} hours ${past}`;
    const range = set(hour, (text) => plain(text) && `${two(text)}:${two(minute)}`);
    return range && `every hour from ${range}`;
  }
  if (second === '0' && isAny(hour)) {
    if (isAny(minute)) return 'every minute';
    if (step(minute)) return `every ${step(minute)} minutes`;
  }
  if (isAny(minute) && isAny(hour) && (isAny(second) || step(second))) {
    return isAny(second) ? 'every second' : `every ${step(second)} seconds`;
  }
  if (second === '0' && step(minute)) {
    const range = set(hour, (text) => plain(text) && `${two(text)} h`);
    return range && `every ${step(minute)} minutes, ${range}`;
  }
  return undefined;
}

// A cron expression in words, or the expression where words would be longer than it.
export function cronWords(text) {
  const fields = (MACROS[text.trim().toLowerCase()] ?? text).trim().split(/\s+/);
  const literal = `cron ${text}`;
  if (fields.length === 5) fields.unshift('0');
  if (fields.length !== 6) return literal;
  const [second, minute, hour, day, month, weekday] = fields;
  const time = timeOfDay(second, minute, hour);
  if (!time) return literal;
  const words = [time];
  if (!isAny(weekday)) {
    if (!isAny(day)) return literal;
    const days = set(weekday, named(DAYS, 0));
    if (!days) return literal;
    words.push(`on ${days}`);
  } else if (!isAny(day)) {
    const last = day === 'L' && 'on the last day of the month';
    const days = last || (set(day, plain) && `on day ${set(day, plain)} of the month`);
    if (!days) return literal;
    words.push(days);
  } else if (time.startsWith('at ')) words.push('every day');
  if (!isAny(month)) {
    const months = set(month, named(MONTHS, 1));
    if (!months) return literal;
    words.push(`in ${months}`);
  }
  return words.join(' ');
}

export function scheduleWords(task) {
  if (task.cron) return `${cronWords(task.cron)}, ${task.timezone ?? 'UTC'}`;
  if (task.every) return `every ${task.every}`;
  if (task.within) return `when silent for ${task.within}`;
  return task.fire_at ? `once at ${inZone(task.fire_at)}` : 'once';
}
