// Work on all tasks that match a filter: what runs, what has ended, and how far it is; and what
// operators did.

import { html } from '../vendor/preact-htm.js';
import { bulkMatching } from '../parts/actions.js';
import { get, remove } from '../parts/api.js';
import { ask } from '../parts/dialog.js';
import { go, href } from '../parts/route.js';
import { may } from '../parts/session.js';
import { Ago, Time, ZoneHead, inZone, millis, now, span } from '../parts/time.js';
import { Button, Empty, Loaded, Panel, Share, State, say, useLoad } from '../parts/ui.js';
import { count } from '../parts/words.js';

const POLL_MS = 1000;
const ACTIONS_POLL_MS = 5000;

const stop = (ns, id) => ask({
  title: 'Stop this operation?', verb: 'Stop',
  text: 'What it has changed stays changed.', danger: true,
  act: async () => {
    await remove([ns, 'operations', id]);
    say('Stopped.');
  },
});

function Progress({ of }) {
  const share = of.matched ? Math.min(1, (of.changed + of.failed) / of.matched) : 1;
  return html`<${Share} of=${share} />`;
}

const whereWords = (where) => Object.entries(where ?? {}).filter(([, value]) => value)
  .map(([name, value]) => `${name}=${value}`).join(' ') || 'all tasks';

function Row({ ns, of, isChosen }) {
  const took = (of.ended_at ? millis(of.ended_at) : now()) - millis(of.started_at);
  const again = async () => {
    const started = await bulkMatching(ns, of.do, of.where, of.later);
    if (started?.id) go([ns, 'operations'], { id: started.id });
  };
  return html`<tr class=${isChosen ? 'selected' : ''}>
    <th scope="row">${of.do} ${of.later}</th><td><${State} of=${of.state} /></td>
    <td class="break"><a data-row href=${href([ns, 'tasks'], of.where)}>${whereWords(of.where)}</a>
    </td>
    <td><${Progress} of=${of} /></td><td class="num">${count(of.matched)}</td>
    <td class="num">${count(of.changed)}</td>
    <td class=${`num ${of.failed ? 'bad' : ''}`}>${count(of.failed)}</td>
    <td><${Time} at=${of.started_at} /></td><td class="num">${span(Math.max(0, took))}</td>
    <td>${of.by}</td>
    <td>${may(ns, 'operate') && (of.state === 'running'
      ? html`<${Button} kind="danger" onClick=${() => stop(ns, of.id)}>Stop</${Button}>`
      : html`<${Button} onClick=${again}>Repeat</${Button}>`)}</td></tr>`;
}

// `redrive_dead_letters` as words.
const callWords = (call) => call.replaceAll('_', ' ');

function ActionRow({ ns, of }) {
  const isTask = /_task$/.test(of.call);
  return html`<tr><td><${Time} at=${of.at} plain /></td><td><${Ago} at=${of.at} /></td>
    <th scope="row">${callWords(of.call)}</th>
    <td class="break">${isTask ? html`<a data-row href=${href([ns, 'tasks', of.name])}>${of.name}</a>`
      : of.name}</td>
    <td class="break">${of.detail}</td><td class="num">${of.changed != null && count(of.changed)}</td>
    <td>${of.by}</td></tr>`;
}

function Actions({ ns }) {
  const found = useLoad((signal) => get([ns, 'actions'], {}, signal), [ns],
    { every: ACTIONS_POLL_MS });
  return html`<${Panel} id="actions" title="What operators did">
    <${Loaded} from=${found}>${({ actions, since, complete }) => html`
      <p class="dim">Since ${inZone(since)}; the log of each broker has all.
        ${!complete && ' Some brokers do not answer: what they did is missing.'}</p>
      ${actions.length ? html`<div class="scroll"><table class="list">
        <caption class="unseen">Actions</caption><thead><tr>
        <th><${ZoneHead}>At</${ZoneHead}></th><th>When</th><th>Call</th><th>On</th><th>Asked for</th>
        <th class="num">Changed</th><th>By</th></tr></thead>
        <tbody>${actions.map((one) => html`<${ActionRow} ns=${ns} of=${one} />`)}</tbody>
      </table></div>` : html`<${Empty}>Nothing yet.</${Empty}>`}`}</${Loaded}></${Panel}>`;
}

export default function Operations({ ns, query }) {
  const found = useLoad((signal) => get([ns, 'operations'], {}, signal), [ns], { every: POLL_MS });
  return html`<h1>Operations</h1>
    <p class="dim">Started from <a href=${href([ns, 'tasks'])}>Tasks</a> for all that match. A
      broker keeps its operations until it stops.</p>
    <${Loaded} from=${found}>${({ operations }) => operations.length ? html`<div class="scroll">
      <table class="list"><caption class="unseen">Operations</caption><thead><tr><th>Verb</th>
        <th>State</th><th>Tasks</th><th>Progress</th><th class="num">Matched</th>
        <th class="num">Changed</th><th class="num">Failed</th><th>Started</th>
        <th class="num">Took</th><th>By</th><th><span class="unseen">Actions</span></th></tr>
      </thead>
      <tbody>${operations.map((one) => html`<${Row} key=${one.id} ns=${ns} of=${one}
        isChosen=${one.id === query.id} />`)}</tbody></table></div>`
      : html`<${Empty}>No operation was started.</${Empty}>`}</${Loaded}>
    <${Actions} ns=${ns} />`;
}
