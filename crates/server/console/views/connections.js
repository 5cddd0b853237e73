// The connections and sources of the broker that answers: what waits, what is confirmed, what is
// away and why. A connection can be tested.

import { html, useState } from '../vendor/preact-htm.js';
import { get, post } from '../parts/api.js';
import { href } from '../parts/route.js';
import { isAdmin, session } from '../parts/session.js';
import { Ago, Time, now, span } from '../parts/time.js';
import { Button, Empty, Loaded, Panel, State, say, useLoad } from '../parts/ui.js';
import { count } from '../parts/words.js';

const POLL_MS = 2000;

function Test({ name }) {
  const [busy, setBusy] = useState(false);
  const test = async () => {
    setBusy(true);
    try {
      const { works, problem } = await post(['connections', name, 'test']);
      if (works) say(`${name} works: a session was opened, checked and closed.`);
      else say(`${name}: ${problem}`, 'bad');
    } catch (problem) {
      say(problem.message, 'bad');
    }
    setBusy(false);
  };
  return html`<${Button} disabled=${busy} aria-label=${`Test ${name}`} onClick=${test}>
    ${busy ? 'Testing…' : 'Test'}</${Button}>`;
}

// Patterns or names, as chips.
const Chips = ({ of, none }) => (of.length
  ? of.map((text) => html`<span class="chip">${text}</span>${' '}`)
  : html`<span class="dim">${none}</span>`);

function Connections({ connections }) {
  if (!connections.length) {
    return html`<${Empty}>None. Connections to databases and message brokers are in the
      configuration of the broker, as <code>[connections.NAME]</code>.</${Empty}>`;
  }
  return html`<div class="scroll"><table><caption class="unseen">Connections</caption><thead><tr>
      <th>Connection</th><th>State</th><th class="num">Sessions</th><th class="num">Waiting</th>
      <th class="num">In flight</th><th class="num">Confirmed</th><th class="num">Failed</th>
      <th>Namespaces</th><th>May name</th><th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${connections.map((one) => html`<tr key=${one.name}>
      <th scope="row"><b>${one.name}</b> <span class="dim">${one.kind}</span>
        <div class="dim break">${one.address}</div></th>
      <td><${State} of=${one.state === 'ready' ? 'ok' : 'gone'} text=${one.state} />${' '}
        <span class="dim">for ${span(Math.max(0, now() - Date.parse(one.since)))}</span>
        ${one.problem && html`<div class="bad break">${one.problem}</div>`}</td>
      <td class="num">${count(one.sessions)}</td><td class="num">${count(one.waiting)}</td>
      <td class="num">${count(one.in_flight)}</td><td class="num">${count(one.confirmed)}</td>
      <td class=${`num ${one.failed ? 'bad' : ''}`}>${count(one.failed)}</td>
      <td><${Chips} of=${one.namespaces} none="none" /></td>
      <td><${Chips} of=${one.statements.length ? one.statements : one.allow}
        none="everything" /></td>
      <td><${Test} name=${one.name} /></td></tr>`)}</tbody></table></div>`;
}

function Sources({ sources }) {
  if (!sources.length) {
    return html`<${Empty}>None. Outboxes and message sources are in the configuration of the
      broker, as <code>[[sources]]</code>.</${Empty}>`;
  }
  return html`<div class="scroll"><table><caption class="unseen">Sources</caption><thead><tr>
      <th>Source</th><th>Namespace</th><th>State</th><th class="num">Applied</th>
      <th class="num">Rejected</th><th class="num">Lag</th><th>Last read here</th></tr></thead>
    <tbody>${sources.map((one) => html`<tr key=${one.name}>
      <th scope="row" class="break">${one.name}</th>
      <td><a href=${href([one.namespace])}>${one.namespace}</a></td>
      <td>${one.problem ? html`<${State} of="failed" text="stopped" />
        <div class="bad break">${one.problem}</div>`
        : one.read_at ? html`<${State} of="ok" text="reads" />`
        : html`<${State} of="waiting" text="not read here" />`}</td>
      <td class="num">${count(one.applied)}</td>
      <td class=${`num ${one.rejected ? 'bad' : ''}`}>${count(one.rejected)}</td>
      <td class="num">${one.read_at ? span(one.lag_ms) : '–'}</td>
      <td>${one.read_at ? html`<${Time} at=${one.read_at} />${' '}
        <span class="dim"><${Ago} at=${one.read_at} /></span>` : '–'}</td></tr>`)}
    </tbody></table></div>`;
}

export default function View() {
  const admin = isAdmin();
  const found = useLoad((stop) => (admin ? get(['connections'], {}, stop) : Promise.resolve(null)),
    [admin], { every: POLL_MS });
  return html`<h1>Connections</h1>
    <p class="dim">Of the broker ${session.value.broker}; each broker has sessions of its own, and
      one of them reads a source. Counts are since it started.</p>
    <${Loaded} from=${found}>${(data) => (data ? html`
      <${Panel} id="connections" title="Connections">
        <${Connections} connections=${data.connections} /></${Panel}>
      <${Panel} id="sources" title="Sources"><${Sources} sources=${data.sources} /></${Panel}>`
    : html`<${Empty}>An admin token is needed to see connections.</${Empty}>`)}</${Loaded}>`;
}
