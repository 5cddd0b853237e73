// Counts, targets and outcomes in words. Schedules are in `schedule_words.js`.

import { span } from './time.js';

const exact = new Intl.NumberFormat('en');
const short = [0, 1].map((digits) =>
  new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: digits }));
export const count = (n) => (n == null ? '–' : exact.format(n));
// `1.7k`, `39k`: four characters at most below a billion.
export const compact = (n) => {
  const digits = n / 1000 ** Math.floor(Math.log10(n || 1) / 3) < 10 ? 1 : 0;
  return short[digits].format(n).toLowerCase();
};
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const lag = (ms) => (ms == null ? '–' : span(ms));

export function targetWords(target) {
  if (!target) return '–';
  if (target.queue) return `queue ${target.queue}`;
  if (target.http) return target.http.url;
  return JSON.stringify(target);
}

// What an attempt ended with, in few words.
export const outcomeWords = ({ outcome, status, reason }) => [outcome ?? 'in flight',
  !reason?.includes(status) && status, reason].filter(Boolean).join(' · ');
