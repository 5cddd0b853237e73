// The tasks of a namespace: filters, pages in the order of `fire_at`, and actions on the selected
// ones or on all that match. Filters, page and range are in the address.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { bulkMatching, bulkSelected } from '../parts/actions.js';
import { broker, get, token } from '../parts/api.js';
import { live } from '../parts/live.js';
import { go, href, nameOf, setQuery, taskHref } from '../parts/route.js';
import { kindOf, scheduleWords } from '../parts/schedule_words.js';
import { may, refresh } from '../parts/session.js';
import { useSignal } from '../parts/signal.js';
import { Ago, Time, ZoneHead, inZone } from '../parts/time.js';
import { Button, Empty, Loaded, Select, State, copy, useLoad } from '../parts/ui.js';
import { download } from '../parts/value.js';
import { count, plural, targetWords } from '../parts/words.js';

const PAGE = 100;
const EXPORT_MAX = 100_000;
const STATES = [['', 'any state'], ...['scheduled', 'firing', 'paused', 'done', 'dead']
  .map((name) => [name, name])];
const LISTED = ['scheduled', 'firing', 'paused'];
const KINDS = [['', 'any kind'], ['once', 'once'], ['cron', 'cron'], ['every', 'every'],
  ['watch', 'watch'], ['recurring', 'cron or every']];
const FILTERS = ['state', 'kind', 'key_prefix', 'label', 'from', 'to'];
// A filter that matches little walks; each page looks at a bounded number of tasks.
const PAGES_AT_ONCE = 5;

const filterOf = (query) => Object.fromEntries(
  FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]),
);

// A page; one that is empty but not the last is followed by the next, a few times.
async function load(ns, query, stop) {
  let cursor = query.cursor;
  for (let pages = 1; ; pages += 1) {
    const page = await get([ns, 'tasks'], { ...filterOf(query), cursor, limit: PAGE }, stop);
    if (page.tasks.length || !page.next || pages === PAGES_AT_ONCE) return page;
    cursor = page.next;
  }
}

function Filters({ query }) {
  const set = (name) => (value) => setQuery({ [name]: value.trim(), cursor: '' });
  const typed = (name, label, more = {}) => html`<label><span>${label}</span>
    <input value=${query[name] ?? ''} spellcheck="false" ...${more}
      onChange=${(event) => set(name)(event.target.value)} /></label>`;
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    ${typed('key_prefix', 'Key begins with', { 'data-filter': true })}
    <label><span>State</span><${Select} options=${STATES} value=${query.state ?? ''}
      onPick=${set('state')} /></label>
    <label><span>Kind</span><${Select} options=${KINDS} value=${query.kind ?? ''}
      onPick=${set('kind')} /></label>
    ${typed('label', 'Label', { placeholder: 'name=value' })}
    ${typed('from', 'Due from', { placeholder: '2026-11-18T09:00:00Z' })}
    ${typed('to', 'Due before', { placeholder: '2026-11-18T10:00:00Z' })}
    ${Object.keys(filterOf(query)).length > 0 && html`<a class="button"
      href=${href([location.hash.split(/[/?]/)[1], 'tasks'])}>Clear</a>`}
  </form>`;
}

// The states that can be listed, with their counts, which are O(1): of the live stream, or of the
// first load.
function StateChips({ ns, query }) {
  const stats = useLoad((stop) => get([ns, 'stats'], {}, stop), [ns]);
  const message = useSignal(live);
  const counts = message?.ns === ns ? message.counts : stats.data;
  return html`<div class="chips" role="group" aria-label="Tasks by state">
    ${LISTED.map((state) => html`<${Button} kind="quiet" aria-pressed=${query.state === state}
      onClick=${() => setQuery({ state: query.state === state ? '' : state, cursor: '' })}>
      <${State} of=${state} /> <b class="num">${count(counts?.[state])}</b></${Button}>`)}
    <a class="button quiet" href=${href([ns, 'dead'])}><${State} of="dead" text="dead letters" />
      ${' '}<b class="num">${count(stats.data?.dead_letters)}</b></a></div>`;
}

// How many tasks changed since the list was loaded, by the live counts.
function Changes({ ns, since }) {
  const message = useSignal(live);
  const first = useRef(null);
  if (message?.ns !== ns) return null;
  if (!first.current || first.current.since !== since) {
    first.current = { since, counts: message.counts };
  }
  const { counts } = first.current;
  const moved = ['accepted', 'done', 'dead', 'cancelled', 'paused']
    .reduce((sum, name) => sum + Math.abs(message.counts[name] - counts[name]), 0);
  return moved > 0 && html`<${Button} kind="quiet" icon="refresh" onClick=${refresh}>
    ${plural(moved, 'change')} – refresh (r)</${Button}>`;
}

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function Share({ ns, query }) {
  const filter = filterOf(query);
  const search = new URLSearchParams(filter);
  const auth = token.get() ? ' -H "Authorization: Bearer $TOKEN"' : '';
  const flags = Object.entries(filter).map(([name, value]) =>
    ` --${name.replace('_', '-')} ${shell(value)}`).join('');
  const ways = {
    link: () => copy(location.href),
    curl: () => copy(`curl${auth} ${shell(`${broker}/v1/${ns}/tasks?${search}`)}`),
    cli: () => copy(`punctual list ${ns}${flags}`),
    ndjson: () => exportAll(ns, filter),
  };
  return html`<${Select} aria-label="Copy or export" value="" options=${[['', 'Copy or export…'],
    ['link', 'Copy link'], ['curl', 'Copy as curl'], ['cli', 'Copy as command'],
    ['ndjson', `Export NDJSON (up to ${count(EXPORT_MAX)})`]]}
    onPick=${(way) => ways[way]?.()} />`;
}

async function exportAll(ns, filter) {
  const lines = [];
  let cursor;
  do {
    const page = await get([ns, 'tasks'], { ...filter, cursor, limit: 1000 });
    lines.push(...page.tasks.map((task) => JSON.stringify(task)));
    cursor = page.next;
  } while (cursor && lines.length < EXPORT_MAX);
  download(`${ns}-tasks.ndjson`, lines.join('\n'), 'application/x-ndjson');
}

function TaskRows({ ns, tasks, selected, toggle }) {
  return html`<tbody>${tasks.map((task) => html`<tr key=${task.id}
    class=${selected?.has(task.id) ? 'selected' : ''}>
    ${toggle && html`<td class="pick"><input type="checkbox" checked=${selected.has(task.id)}
      aria-label=${`Select ${nameOf(task)}`} onChange=${() => toggle(task.id)} /></td>`}
    <th scope="row"><a data-row href=${taskHref(ns, task)} class="cut" title=${nameOf(task)}>
      ${task.key ?? html`<code>${task.id}</code>`}</a></th>
    <td><${State} of=${task.state} /></td>
    <td><${Time} at=${task.fire_at} plain /></td><td><${Ago} at=${task.fire_at} /></td>
    <td class="cut" title=${scheduleWords(task)}>${kindOf(task) === 'once' ? 'once'
      : scheduleWords(task)}</td>
    <td class="cut" title=${targetWords(task.target)}>${targetWords(task.target)}</td>
    <td class="num">${task.attempt || ''}</td>
    <td class="labels">${Object.entries(task.labels ?? {}).map(([name, value]) => html`
      <a class="chip" href=${href([ns, 'tasks'], { label: `${name}=${value}` })}>${name}=${value}
      </a>`)}</td></tr>`)}</tbody>`;
}

const TaskHeads = () => html`<th>Task</th><th>State</th>
  <th><${ZoneHead}>Due</${ZoneHead}></th><th>When</th><th>Schedule</th><th>Target</th>
  <th class="num">Attempt</th><th>Labels</th>`;

function Bulk({ ns, query, selected }) {
  const verbs = [
    may(ns, 'produce', 'operate') && 'cancel',
    ...(may(ns, 'operate') ? ['pause', 'resume', 'fire'] : []),
  ].filter(Boolean);
  const moves = may(ns, 'operate') ? ['shift', 'spread'] : [];
  const hasFilter = Object.keys(filterOf(query)).length > 0;
  const matching = async (verb) => {
    const started = await bulkMatching(ns, verb, filterOf(query));
    if (started?.id) go([ns, 'operations'], { id: started.id });
  };
  if (selected.size) {
    return html`<div class="bulk"><span>${count(selected.size)} selected:</span>
      ${verbs.map((verb) => html`<${Button} onClick=${() => bulkSelected(ns, verb, [...selected])}>
        ${verb}</${Button}>`)}</div>`;
  }
  return may(ns, 'operate') && html`<div class="bulk">
    <span>${hasFilter ? 'All that match:' : 'All tasks:'}</span>
    ${[...verbs, ...moves].map((verb) => html`<${Button} onClick=${() => matching(verb)}>
      ${verb}</${Button}>`)}</div>`;
}

export default function Tasks({ ns, query }) {
  const [selected, select] = useState(new Set());
  const address = JSON.stringify({ ...filterOf(query), cursor: query.cursor });
  const page = useLoad((stop) => load(ns, query, stop), [ns, address]);
  useEffect(() => select(new Set()), [address, page.data]);
  const toggle = (id) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    select(next);
  };
  const canPick = may(ns, 'produce', 'operate');
  return html`<div class="title"><h1>Tasks</h1><${Changes} ns=${ns} since=${page.data} />
      <span class="grow"></span><${Share} ns=${ns} query=${query} />
      ${may(ns, 'produce') && html`<a class="button primary" href=${href([ns, 'new'])}>
        New task</a>`}</div>
    <${StateChips} ns=${ns} query=${query} />
    <${Filters} key=${address} query=${query} />
    ${query.from && html`<p class="dim">Due from ${inZone(query.from)}
      ${query.to && ` until before ${inZone(query.to)}`}.</p>`}
    <${Loaded} from=${page}>${({ tasks, next }) => html`
      <${Bulk} ns=${ns} query=${query} selected=${selected} />
      ${tasks.length ? html`<div class="scroll"><table class="list">
        <caption class="unseen">Tasks</caption><thead><tr>
          ${canPick && html`<th class="pick"><input type="checkbox" aria-label="Select all rows"
            checked=${selected.size === tasks.length} onChange=${(event) =>
              select(new Set(event.target.checked ? tasks.map(({ id }) => id) : []))} /></th>`}
          <${TaskHeads} /></tr></thead>
        <${TaskRows} ns=${ns} tasks=${tasks} selected=${selected} toggle=${canPick && toggle} />
      </table></div>` : html`<${Empty}>${next
        ? 'No task so far among those that were looked at.' : 'No task matches.'}</${Empty}>`}
      <div class="pager">
        ${query.cursor && html`<${Button} onClick=${() => setQuery({ cursor: '' })}>First page
          </${Button}>`}
        ${next && html`<${Button} onClick=${() => setQuery({ cursor: next })}>
          ${tasks.length ? 'Next page' : 'Search further'}</${Button}>`}
      </div>`}</${Loaded}>`;
}
