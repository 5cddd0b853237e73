// Watches: those that are silent now, those that fire next unless they are touched, and those that
// came back.

import { html } from '../vendor/preact-htm.js';
import { touch } from '../parts/actions.js';
import { get } from '../parts/api.js';
import { href, nameOf, setQuery, taskHref } from '../parts/route.js';
import { may } from '../parts/session.js';
import { Ago, Time, ZoneHead, millis, now, parseSpan } from '../parts/time.js';
import { Button, Empty, Loaded, Panel, Share, State, useLoad } from '../parts/ui.js';

const SHOWN = 50;
const REFRESH_MS = 10_000;
// Dead letters of watches that are looked up one by one.
const DEAD_MAX = 20;

// How much of the time that a watch may be silent is left.
function Left({ task }) {
  const share = Math.min(1, Math.max(0, (millis(task.fire_at) - now()) / parseSpan(task.within)));
  return html`<${Share} of=${share} />`;
}

function WatchTable({ ns, tasks, silent }) {
  return html`<div class="scroll"><table class="list"><caption class="unseen">Watches</caption>
    <thead><tr><th>Watch</th><th>State</th><th class="num">Within</th>
      <th><${ZoneHead}>${silent ? 'Fired' : 'Fires'}</${ZoneHead}></th><th>When</th>
      ${!silent && html`<th>Time left</th>`}<th><span class="unseen">Actions</span></th></tr>
    </thead>
    <tbody>${tasks.map((task) => html`<tr key=${task.id}>
      <th scope="row"><a data-row class="cut" href=${taskHref(ns, task)}>${nameOf(task)}</a></th>
      <td><${State} of=${silent ? 'silent' : 'alive'} /></td>
      <td class="num">${task.within}</td><td><${Time} at=${task.fire_at} plain /></td>
      <td><${Ago} at=${task.fire_at} /></td>
      ${!silent && html`<td><${Left} task=${task} /></td>`}
      <td>${may(ns, 'produce', 'operate') && html`<${Button} aria-label=${`Touch ${nameOf(task)}`}
        onClick=${() => touch(ns, task, nameOf(task))}>Touch</${Button}>`}</td></tr>`)}
    </tbody></table></div>`;
}

// Watches that have fired. A dead letter may be of a watch that was touched since, so the present
// state of these is read.
async function silentWatches(ns, prefix, stop) {
  const list = (state, limit) => get([ns, 'tasks'],
    { kind: 'watch', state, key_prefix: prefix, limit }, stop);
  const [done, dead] = await Promise.all([list('done', SHOWN), list('dead', DEAD_MAX)]);
  const ids = [...new Set(dead.tasks.map(({ id }) => id))];
  const present = await Promise.all(ids.map((id) => get([ns, 'tasks', id], {}, stop)));
  return [...done.tasks, ...present.filter(({ state }) => state === 'dead')];
}

export default function Watches({ ns, query }) {
  const { key_prefix: prefix } = query;
  const every = { every: REFRESH_MS };
  const alive = useLoad((stop) => get([ns, 'tasks'],
    { kind: 'watch', state: 'scheduled', key_prefix: prefix, limit: SHOWN }, stop),
  [ns, prefix], every);
  const silent = useLoad((stop) => silentWatches(ns, prefix, stop), [ns, prefix], every);
  const fires = useLoad((stop) => get([ns, 'fires'], { key_prefix: prefix, limit: 200 }, stop),
    [ns, prefix], every);
  const back = fires.data?.fires.filter(({ occasion }) => occasion === 'return') ?? [];
  const table = (tasks, isSilent, none) => (tasks.length
    ? html`<${WatchTable} ns=${ns} tasks=${tasks} silent=${isSilent} />`
    : html`<${Empty}>${none}</${Empty}>`);
  return html`<h1>Watches</h1>
    <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label><span>Key begins with</span><input data-filter value=${prefix ?? ''}
        spellcheck="false" onChange=${(event) => setQuery({ key_prefix: event.target.value })} />
      </label></form>
    <${Panel} id="silent" title="Silent now" side=${html`
      <a href=${href([ns, 'tasks'], { kind: 'watch', state: 'done' })}>All</a>`}>
      <${Loaded} from=${silent}>${(tasks) => table(tasks, true, 'No watch is silent.')}</${Loaded}>
    </${Panel}>
    <${Panel} id="alive" title=${`Alive: the ${SHOWN} that fire first, unless they are touched`}
      side=${html`<a href=${href([ns, 'tasks'], { kind: 'watch', state: 'scheduled' })}>All</a>`}>
      <${Loaded} from=${alive}>${({ tasks }) => table(tasks, false, 'No watch is armed.')}
      </${Loaded}>
    </${Panel}>
    ${back.length > 0 && html`<${Panel} id="back" title="Came back, among the last 200 fires">
      <ul class="plain">${back.map((fire) => html`<li><a href=${href([ns, 'tasks', fire.key
        ?? fire.task])}>${fire.key ?? fire.task}</a> <${Time} at=${fire.fire_at} /></li>`)}</ul>
      </${Panel}>`}`;
}
