// What waits for each target, queues, and the workers that take from them. A worker that disappears
// while the page is open stays in the list, with the time at which it was gone.

import { html, useRef } from '../vendor/preact-htm.js';
import { get } from '../parts/api.js';
import { LaneTable } from '../parts/lanes.js';
import { href } from '../parts/route.js';
import { Ago, Time, inZone, now, span } from '../parts/time.js';
import { Empty, Loaded, Panel, State, useLoad } from '../parts/ui.js';
import { count } from '../parts/words.js';

const POLL_MS = 2000;
// Workers that are gone and still shown.
const GONE_MAX = 50;

function QueueTable({ of }) {
  if (!of.length) return html`<${Empty}>No queue has due tasks or workers.</${Empty}>`;
  return html`<div class="scroll"><table><caption class="unseen">Queues</caption><thead><tr>
      <th>Queue</th><th class="num">Waiting</th><th class="num">In flight</th>
      <th class="num">Workers</th><th class="num">Oldest overdue</th></tr></thead>
    <tbody>${of.map((queue) => {
      const isAlone = queue.waiting > 0 && !queue.workers;
      return html`<tr><th scope="row">${queue.name}</th>
        <td class="num">${count(queue.waiting)}${queue.more && '+'}</td>
        <td class="num">${count(queue.in_flight)}</td>
        <td class="num">${isAlone ? html`<${State} of="silent" text="no worker" />`
          : count(queue.workers)}</td>
        <td class="num">${queue.oldest_overdue_ms ? span(queue.oldest_overdue_ms) : '–'}</td>
      </tr>`;
    })}</tbody></table></div>`;
}

const idOf = (worker) => [worker.name, worker.address, worker.broker, worker.since].join('\n');

// Keeps the workers that were seen before and are not there any more.
function useGone(workers) {
  const seen = useRef(new Map());
  const gone = useRef([]);
  if (!workers) return [];
  const here = new Set(workers.map(idOf));
  for (const [id, worker] of seen.current) {
    if (here.has(id)) continue;
    seen.current.delete(id);
    // A worker that polls is another one with each poll.
    gone.current = [{ ...worker, goneAt: now() }, ...gone.current].slice(0, GONE_MAX);
  }
  workers.forEach((worker) => seen.current.set(idOf(worker), worker));
  const isHere = ({ name }) => name && workers.some((one) => one.name === name);
  gone.current = gone.current.filter((worker) => !isHere(worker));
  return gone.current;
}

function Workers({ workers }) {
  const gone = useGone(workers);
  const all = [...workers, ...gone];
  if (!all.length) return html`<${Empty}>No worker is connected.</${Empty}>`;
  return html`<div class="scroll"><table><caption class="unseen">Workers</caption><thead><tr>
      <th>Worker</th><th>State</th><th>Address</th><th>Queues</th><th class="num">In flight</th>
      <th class="num">Credit</th><th>Broker</th><th>Connected</th></tr></thead>
    <tbody>${all.map((worker) => html`<tr>
      <th scope="row">${worker.name ?? html`<span class="dim">unnamed</span>`}</th>
      <td>${worker.goneAt ? html`<${State} of="gone" text=${`gone at ${inZone(worker.goneAt)}`} />`
        : html`<${State} of="alive" text="connected" />`}</td>
      <td>${worker.address ?? '–'}</td><td>${worker.queues.join(', ')}</td>
      <td class="num">${count(worker.in_flight)}</td><td class="num">${count(worker.credit)}</td>
      <td>${worker.broker}</td>
      <td><${Time} at=${worker.since} /> <span class="dim"><${Ago} at=${worker.since} /></span></td>
    </tr>`)}</tbody></table></div>`;
}

export default function Queues({ ns }) {
  const every = { every: POLL_MS };
  const queues = useLoad((stop) => get([ns, 'queues'], {}, stop), [ns], every);
  const workers = useLoad((stop) => get([ns, 'workers'], {}, stop), [ns], every);
  const lanes = useLoad((stop) => get([ns, 'lanes'], {}, stop), [ns], every);
  return html`<h1>Targets, queues and workers</h1>
    <${Panel} id="lanes" title="Targets"><${Loaded} from=${lanes}>${(data) =>
      html`<${LaneTable} ns=${ns} of=${data} all />`}</${Loaded}></${Panel}>
    <${Panel} id="queues" title="Queues"><${Loaded} from=${queues}>${(data) =>
      html`<${QueueTable} of=${data.queues} />`}</${Loaded}></${Panel}>
    <${Panel} id="workers" title="Workers"><${Loaded} from=${workers}>${(data) =>
      html`<${Workers} workers=${data.workers} />`}</${Loaded}></${Panel}>
    <p class="dim">Tasks that wait are in <a href=${href([ns, 'tasks'], { state: 'scheduled' })}>
      Tasks</a>.</p>`;
}
