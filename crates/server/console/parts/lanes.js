// The targets of a namespace: what waits for each, what is in flight, and what has failed lately.

import { html } from '../vendor/preact-htm.js';
import { CONNECTIONS, href } from './route.js';
import { isAdmin } from './session.js';
import { Ago, inZone, now, span } from './time.js';
import { Empty, State } from './ui.js';
import { count, plural } from './words.js';

// Failures of this long are counted.
const LATELY = 'the last 15 minutes';
// Warnings and rows where lanes are not the subject.
const FEW = 8;
// Characters of a reason in a warning.
const WHY_MAX = 60;

// The state of a lane as words and the icon of `State`.
const STATES = {
  ready: ['ok', 'ready'], full: ['waiting', 'full'], slow: ['silent', 'slow'],
  no_workers: ['silent', 'no worker'], away: ['gone', 'away'],
};
const MEANINGS = {
  full: 'As much is in flight as may be at once, and more waits.',
  slow: 'It did not answer in time, so less is sent to it at once.',
  no_workers: 'Nothing takes its deliveries.',
  away: 'The connection cannot be reached.',
};

// Lanes in trouble first; the others as they came.
const RANKS = ['away', 'no_workers', 'slow', 'full', 'ready'];
const worst = (lanes) => lanes.map((lane, at) => ({ lane, at }))
  .sort((a, b) => RANKS.indexOf(a.lane.state) - RANKS.indexOf(b.lane.state)
    || b.lane.failed - a.lane.failed || a.at - b.at)
  .map(({ lane }) => lane);

function Waits({ lane }) {
  const [icon, text] = STATES[lane.state] ?? ['waiting', lane.state];
  return html`<span title=${MEANINGS[lane.state]}><${State} of=${icon} text=${text} />
    ${lane.since && html`${' '}<span class="dim">for ${span(Math.max(0,
      now() - Date.parse(lane.since)))}</span>`}</span>`;
}

function LastFailure({ of }) {
  if (!of) return '–';
  const isAhead = of.retry_at && Date.parse(of.retry_at) > now();
  return html`<span class="cut" title=${of.reason}>${of.reason}</span>${' '}
    <span class="dim"><${Ago} at=${of.at} />${isAhead && html`, asked to wait until${' '}
      ${inZone(of.retry_at)}`}</span>`;
}

const Target = ({ lane }) => (lane.connection && isAdmin()
  ? html`<a class="cut" title=${lane.target} href=${href([CONNECTIONS])}>${lane.target}</a>`
  : html`<span class="cut" title=${lane.target}>${lane.target}</span>`);

// All columns, or those that fit beside other figures.
export function LaneTable({ ns, of: { lanes, complete }, all }) {
  if (!lanes.length) {
    return html`<${Empty}>Nothing waits, is in flight, or has failed in ${LATELY}.</${Empty}>`;
  }
  const rows = all ? lanes : worst(lanes).slice(0, FEW);
  return html`<div class="scroll"><table><caption class="unseen">Targets</caption><thead><tr>
      <th>Target</th><th>State</th><th class="num">Waiting</th><th class="num">In flight</th>
      ${all && html`<th class="num">At once</th>`}
      <th class="num">${all ? 'Oldest overdue' : 'Overdue'}</th>
      <th class="num" title=${`In ${LATELY}`}>${all ? 'Failed, 15 min' : 'Failed'}</th>${all && html`<th>Last failure</th>`}</tr></thead>
    <tbody>${rows.map((lane) => html`<tr key=${lane.target}>
      <th scope="row"><${Target} lane=${lane} /></th><td><${Waits} lane=${lane} /></td>
      <td class="num">${count(lane.waiting)}${lane.more && '+'}</td>
      <td class="num">${count(lane.in_flight)}</td>
      ${all && html`<td class="num">${count(lane.capacity)}</td>`}
      <td class="num">${lane.oldest_overdue_ms ? span(lane.oldest_overdue_ms) : '–'}</td>
      <td class=${`num ${lane.failed ? 'bad' : ''}`} title=${lane.last_failure?.reason}>
        ${count(lane.failed)}</td>
      ${all && html`<td><${LastFailure} of=${lane.last_failure} /></td>`}</tr>`)}
    </tbody></table></div>
    ${lanes.length > rows.length && html`<p class="dim"><a href=${href([ns, 'queues'])}>
      ${plural(lanes.length - rows.length, 'other target')}</a></p>`}
    ${all && !complete && html`<p class="dim">There are more targets, with fewer waiting tasks.
      </p>`}`;
}

// What an operator should know of lanes, in words.
export function laneWarnings(ns, lanes) {
  const link = href([ns, 'queues']);
  return worst(lanes).flatMap((lane) => {
    const { state, target, waiting, failed, last_failure: last } = lane;
    const due = `${plural(waiting, 'due task')}`;
    const name = lane.kind === 'queue' ? target.replace('queue', 'Queue') : target;
    if (state === 'away') {
      return [[`${name} is away: ${due} ${waiting === 1 ? 'waits' : 'wait'}.`, link]];
    }
    if (state === 'no_workers' && waiting) return [[`${name} has ${due} and no worker.`, link]];
    if (state === 'slow') return [[`${name} does not answer in time.`, link]];
    if (failed) {
      const why = last.reason.length > WHY_MAX ? `${last.reason.slice(0, WHY_MAX)}…`
        : `${last.reason}.`;
      const text = `${plural(failed, 'attempt')} to ${target} failed in ${LATELY}: ${why}`;
      return [[text, link]];
    }
    return [];
  }).slice(0, FEW);
}
