// Cron and interval tasks: their schedules in words, the next fire, and how the last fires ended.

import { html } from '../vendor/preact-htm.js';
import { get } from '../parts/api.js';
import { href, nameOf, setQuery, taskHref } from '../parts/route.js';
import { cronWords } from '../parts/schedule_words.js';
import { may } from '../parts/session.js';
import { Ago, Time, ZoneHead, clock } from '../parts/time.js';
import { Button, Empty, Loaded, State, useLoad } from '../parts/ui.js';
import { targetWords } from '../parts/words.js';

const PAGE = 50;
const DOTS = 20;
// Histories that are read at the same time: less than the share of a namespace.
const READS = 4;

// The last fires of each task, by id.
async function lastFires(ns, tasks, stop) {
  const found = {};
  const left = [...tasks];
  const read = async () => {
    for (let task = left.shift(); task && !stop.aborted; task = left.shift()) {
      const page = await get([ns, 'tasks', task.id, 'fires'], { limit: DOTS }, stop);
      found[task.id] = page.fires.filter(({ end }) => end).reverse();
    }
  };
  await Promise.all(Array.from({ length: READS }, read));
  return found;
}

const Dots = ({ fires }) => html`<ol class="dots">${fires.map((fire) => html`
  <li class=${fire.end} title=${`${clock(fire.fire_at)}: ${fire.end}`}>
    <span class="unseen">${clock(fire.fire_at)} ${fire.end}</span></li>`)}</ol>`;

export default function Schedules({ ns, query }) {
  const { cursor, key_prefix: prefix } = query;
  const page = useLoad((stop) => get([ns, 'tasks'],
    { kind: 'recurring', key_prefix: prefix, cursor, limit: PAGE }, stop), [ns, cursor, prefix]);
  const tasks = page.data?.tasks ?? [];
  const fires = useLoad((stop) => lastFires(ns, tasks, stop), [ns, page.data]);
  return html`<div class="title"><h1>Schedules</h1><span class="grow"></span>
      ${may(ns, 'produce') && html`<a class="button primary" href=${href([ns, 'new'])}>
        New task</a>`}</div>
    <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label><span>Key begins with</span><input data-filter value=${prefix ?? ''}
        spellcheck="false" onChange=${(event) =>
          setQuery({ key_prefix: event.target.value, cursor: '' })} /></label></form>
    <${Loaded} from=${page}>${({ next }) => html`
      ${tasks.length ? html`<div class="scroll"><table class="list">
        <caption class="unseen">Schedules</caption><thead><tr><th>Task</th><th>State</th>
          <th>Schedule</th><th>Zone</th><th><${ZoneHead}>Next</${ZoneHead}></th><th>When</th>
          <th>Last ${DOTS} fires</th><th>Target</th>
          <th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${tasks.map((task) => html`<tr key=${task.id}>
          <th scope="row"><a data-row class="cut" href=${taskHref(ns, task)}>
            ${task.key ?? html`<code>${task.id}</code>`}</a></th>
          <td><${State} of=${task.state} /></td>
          <td>${task.cron ? html`${cronWords(task.cron)} <code class="dim">${task.cron}</code>`
            : `every ${task.every}`}</td><td>${task.cron ? task.timezone : '–'}</td>
          <td><${Time} at=${task.fire_at} plain /></td><td><${Ago} at=${task.fire_at} /></td>
          <td><${Dots} fires=${fires.data?.[task.id] ?? []} /></td>
          <td class="cut">${targetWords(task.target)}</td>
          <td>${may(ns, 'produce') && task.key && html`<a class="button"
            aria-label=${`Edit ${task.key}`} href=${href([ns, 'tasks', nameOf(task), 'edit'])}>
            Edit</a>`}</td></tr>`)}</tbody></table></div>`
        : html`<${Empty}>No cron or interval task.</${Empty}>`}
      <div class="pager">${cursor && html`<${Button} onClick=${() => setQuery({ cursor: '' })}>
        First page</${Button}>`}${next && html`<${Button}
        onClick=${() => setQuery({ cursor: next })}>Next page</${Button}>`}</div>`}</${Loaded}>`;
}
