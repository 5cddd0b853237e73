// The life of a task as one line of moments: created, touched, due, each attempt, the end, what is
// to come. The pieces between them grow with the logarithm of the time, so that days and
// milliseconds fit on one line.

import { html } from '../vendor/preact-htm.js';
import { Time, millis, now, span } from './time.js';
import { lag, outcomeWords } from './words.js';

const WIDTHS = 6;
const ATTEMPTS_SHOWN = 8;

// The moments of a task, in order. `fire` is its present or last fire.
export function moments(task, fire, explained) {
  const found = [];
  const add = (at, name, more) => at && found.push({ at: millis(at), name, ...more });
  add(task.created_at, 'created');
  add(explained.touched_at, `touched, ${explained.touches} in total`);
  if (fire) {
    add(fire.fire_at, 'due', { note: fire.occasion === 'due' ? '' : fire.occasion });
    const attempts = fire.attempts ?? [];
    const left = attempts.length - ATTEMPTS_SHOWN;
    attempts.slice(-ATTEMPTS_SHOWN).forEach((attempt, index) => {
      add(attempt.at, `attempt ${attempt.attempt}`, {
        kind: attempt.outcome ?? 'firing',
        note: outcomeWords(attempt),
        length: attempt.duration_ms,
        before: index === 0 && left > 0 ? `${left} earlier attempts` : '',
        lag: attempt.attempt === 1 ? fire.lag_ms : null,
      });
    });
    if (fire.end) add(fire.ended_at, fire.end, { kind: fire.end });
  }
  found.sort((a, b) => a.at - b.at);
  found.push({ at: now(), name: 'now', kind: 'now' });
  const next = explained.next?.[0];
  const isDue = fire && !fire.end && next && millis(next.fire_at) <= now();
  if (next && !isDue) {
    const pending = { at: millis(next.fire_at), name: 'next fire', kind: 'next', note: next.why };
    found.push(pending);
    found.sort((a, b) => a.at - b.at);
  }
  return found;
}

const width = (ms) => Math.min(WIDTHS, Math.max(1, Math.round(Math.log10(Math.max(1, ms)) - 0.5)));

export function Life({ of }) {
  return html`<ol class="life" aria-label="The life of the task">${of.map((moment, at) => {
    const gap = at ? moment.at - of[at - 1].at : 0;
    return html`<li class=${`moment ${moment.kind ?? ''} ${at ? `w${width(gap)}` : ''}`}>
      <span class="gap num">${at ? span(Math.max(0, gap)) : ''}</span>
      <span class="dot" aria-hidden="true"></span>
      <b>${moment.name}</b>
      ${moment.kind !== 'now' && html`<${Time} at=${moment.at} full />`}
      ${moment.note && html`<span class="note">${moment.note}</span>`}
      ${moment.length != null && html`<span class="note num">took ${span(moment.length)}</span>`}
      ${moment.lag != null && html`<span class="note num">lag ${lag(moment.lag)}</span>`}
      ${moment.before && html`<span class="note">${moment.before}</span>`}
    </li>`;
  })}</ol>`;
}
