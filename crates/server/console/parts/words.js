// Counts, targets and outcomes in words. Schedules are in `schedule_words.js`.

import { span } from './time.js';

const exact = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
export const count = (n) => (n == null ? '–' : exact.format(n));
export const compact = (n) => short.format(n).toLowerCase();
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const lag = (ms) => (ms == null ? '–' : span(ms));

export function targetWords(target) {
  if (!target) return '–';
  if (target.queue) return `queue ${target.queue}`;
  if (target.http) return target.http.url;
  return JSON.stringify(target);
}

// What an attempt ended with, in few words.
export const outcomeWords = (attempt) =>
  [attempt.outcome ?? 'in flight', attempt.status, attempt.reason].filter(Boolean).join(' · ');
