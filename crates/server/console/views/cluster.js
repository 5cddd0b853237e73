// The brokers of the cluster, which of them owns which partition, and hand-overs as they happen
// while the page is open.

import { html, useRef } from '../vendor/preact-htm.js';
import { get, getRoot } from '../parts/api.js';
import { session } from '../parts/session.js';
import { Ago, Time, now, span } from '../parts/time.js';
import { Empty, Facts, Icon, Loaded, Panel, State, useLoad } from '../parts/ui.js';
import { count, plural } from '../parts/words.js';

const POLL_MS = 2000;
const MOVES_MAX = 100;
const INKS = 8;

function owners(brokers) {
  const found = new Map();
  brokers.forEach(({ address, partitions }, at) =>
    partitions.forEach((partition) => found.set(partition, { address, at })));
  return found;
}

// What changed since the last answer, newest first.
function useMoves(topology) {
  const last = useRef(null);
  const moves = useRef([]);
  if (topology && topology !== last.current) {
    const note = (text) => (moves.current = [{ at: now(), text }, ...moves.current]
      .slice(0, MOVES_MAX));
    if (last.current) {
      const [before, after] = [last.current, topology].map(({ brokers }) => owners(brokers));
      for (const partition of new Set([...before.keys(), ...after.keys()])) {
        const [from, to] = [before, after].map((map) => map.get(partition)?.address ?? 'no owner');
        if (from !== to) note(`Partition ${partition}: ${from} → ${to}`);
      }
      const names = [last.current, topology].map(({ brokers }) =>
        new Set(brokers.map(({ address }) => address)));
      names[1].forEach((name) => names[0].has(name) || note(`Broker ${name} joined`));
      names[0].forEach((name) => names[1].has(name) || note(`Broker ${name} is gone`));
      if (last.current.leader !== topology.leader) {
        note(`Leader: ${last.current.leader ?? 'none'} → ${topology.leader ?? 'none'}`);
      }
    }
    last.current = topology;
  }
  return moves.current;
}

const clockWords = (ahead) => (ahead == null ? '–'
  : ahead === 0 ? 'the same' : `${span(Math.abs(ahead))} ${ahead > 0 ? 'ahead' : 'behind'}`);

function Brokers({ brokers, leader }) {
  return html`<div class="scroll"><table><caption class="unseen">Brokers</caption><thead><tr>
      <th>Broker</th><th>Role</th><th class="num">Partitions</th><th>Last heartbeat</th>
      <th class="num">Clock, by that of the store</th></tr>
    </thead>
    <tbody>${brokers.map(({ address, partitions, last_heartbeat: beat, clock_ahead_ms: ahead },
      at) => html`<tr>
      <th scope="row"><span class=${`owner o${at % INKS}`}>${at + 1}</span> ${address}</th>
      <td>${address === leader ? html`<${State} of="done" text="leader" />` : 'broker'}
        ${address === session.value.broker && ' · this page'}</td>
      <td class="num">${count(partitions.length)}</td>
      <td><${Time} at=${beat} /> <span class="dim"><${Ago} at=${beat} /></span></td>
      <td class="num">${clockWords(ahead)}</td></tr>`)}
    </tbody></table></div>`;
}

function Grid({ brokers }) {
  const found = [...owners(brokers)].sort(([a], [b]) => a - b);
  return html`<ul class="grid">${found.map(([partition, { address, at }]) => html`
    <li class=${`o${at % INKS}`} title=${`Partition ${partition}: ${address}`}>
      <span class="num">${partition}</span><small>${at + 1}</small></li>`)}</ul>`;
}

export default function Cluster() {
  const topology = useLoad((stop) => get(['topology'], {}, stop), [], { every: POLL_MS });
  const ready = useLoad((stop) => getRoot('readyz', stop), [], { every: 5 * POLL_MS });
  const moves = useMoves(topology.data);
  const who = session.value;
  return html`<h1>Cluster</h1>
    <${Facts} of=${[['Cluster', who.cluster ?? 'none: one broker'], ['Store', who.store],
      ['Version', who.version]]} />
    ${(ready.data?.warnings ?? []).map((text) => html`<p class="warning">
      <${Icon} name="warning" />${text}</p>`)}
    ${ready.error && html`<p class="warning"><${Icon} name="warning" />${ready.error.message}</p>`}
    <${Loaded} from=${topology}>${({ brokers, leader }) => html`
      <${Panel} id="brokers" title=${plural(brokers.length, 'broker')}>
        <${Brokers} brokers=${brokers} leader=${leader} /></${Panel}>
      <${Panel} id="partitions" title="Partitions, each with the number of its owner">
        <${Grid} brokers=${brokers} /></${Panel}>`}</${Loaded}>
    <${Panel} id="moves" title="Changes since the page was opened">${moves.length
      ? html`<ul class="plain">${moves.map(({ at, text }) => html`<li><${Time} at=${at} /> ${text}
        </li>`)}</ul>` : html`<${Empty}>None.</${Empty}>`}</${Panel}>`;
}
