// Dead letters in groups of the same reason and target, the letters of one group, and redriving or
// deleting one, a group or all.

import { html } from '../vendor/preact-htm.js';
import { letters, lettersOf } from '../parts/actions.js';
import { get } from '../parts/api.js';
import { href, setQuery, taskHref } from '../parts/route.js';
import { may } from '../parts/session.js';
import { Ago, Time, ZoneHead } from '../parts/time.js';
import { Button, Empty, Loaded, Panel, useLoad } from '../parts/ui.js';
import { count, outcomeWords, plural, targetWords } from '../parts/words.js';

const PAGE = 50;

function Verbs({ ns, chosen }) {
  return may(ns, 'operate') && html`<div class="actions">
    <${Button} onClick=${() => letters(ns, 'redrive', chosen)}>Redrive</${Button}>
    <${Button} kind="danger" onClick=${() => letters(ns, 'delete', chosen)}>Delete</${Button}>
  </div>`;
}

function Groups({ ns, groups, more, query }) {
  return html`<div class="scroll"><table class="list"><caption class="unseen">Groups</caption>
    <thead><tr><th class="num">Letters</th><th>Reason</th><th>Target</th>
      <th><${ZoneHead}>First</${ZoneHead}></th><th><${ZoneHead}>Last</${ZoneHead}></th>
      <th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${groups.map(({ reason, target, count: number, first_at: first, last_at: last }) => {
      const isOpen = query.reason === reason && query.target === target;
      return html`<tr class=${isOpen ? 'selected' : ''}>
        <td class="num"><b>${count(number)}</b></td>
        <th scope="row"><a data-row href=${href([ns, 'dead'], { reason, target })}
          aria-current=${isOpen ? 'true' : undefined}>${reason}</a></th>
        <td class="break">${target}</td>
        <td><${Time} at=${first} plain /></td><td><${Time} at=${last} plain /></td>
        <td><${Verbs} ns=${ns} chosen=${{ where: { reason, target }, number }} /></td></tr>`;
    })}</tbody></table></div>
    ${more > 0 && html`<p class="dim">${plural(more, 'dead letter')} in other groups.</p>`}`;
}

function Letters({ ns, dead }) {
  return html`<div class="scroll"><table class="list"><caption class="unseen">Dead letters</caption>
    <thead><tr><th>Task</th><th><${ZoneHead}>Died</${ZoneHead}></th><th>When</th>
      <th class="num">Attempts</th><th>Last attempt</th><th>Target</th>
      <th><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${dead.map(({ fire_id: fire, task, died_at: at, reason, attempts }) => html`
      <tr key=${fire}><th scope="row"><a data-row class="cut" href=${taskHref(ns, task)}>
          ${task.key ?? html`<code>${task.id}</code>`}</a></th>
        <td><${Time} at=${at} plain /></td><td><${Ago} at=${at} /></td>
        <td class="num">${count(attempts.length)}</td>
        <td class="cut" title=${attempts.length ? outcomeWords(attempts.at(-1)) : reason}>
          ${attempts.length ? outcomeWords(attempts.at(-1)) : reason}</td>
        <td class="cut">${targetWords(task.target)}</td>
        <td><${Verbs} ns=${ns} chosen=${{ ids: [fire], number: 1 }} /></td></tr>`)}
    </tbody></table></div>`;
}

export default function DeadLetters({ ns, query }) {
  const { reason, target, cursor } = query;
  const groups = useLoad((stop) => get([ns, 'dead', 'groups'], {}, stop), [ns]);
  const total = useLoad((stop) => lettersOf(ns, stop), [ns]);
  const page = useLoad((stop) => get([ns, 'dead'], { reason, target, cursor, limit: PAGE }, stop),
    [ns, reason, target, cursor]);
  return html`<div class="title"><h1>Dead letters</h1>
      <span class="dim num">${total.data != null && count(total.data)}</span>
      <span class="grow"></span>
      ${total.data > 0 && html`<span class="dim">All:</span>
        <${Verbs} ns=${ns} chosen=${{ number: total.data }} />`}</div>
    <${Panel} id="groups" title="By reason and target"><${Loaded} from=${groups}>${(data) =>
      data.groups.length ? html`<${Groups} ns=${ns} query=${query} ...${data} />`
        : html`<${Empty}>No dead letters.</${Empty}>`}</${Loaded}></${Panel}>
    <${Panel} id="letters" title=${reason ? `${reason} · ${target}` : 'All letters'}
      side=${reason && html`<a href=${href([ns, 'dead'])}>All groups</a>`}>
      <${Loaded} from=${page}>${({ dead, next }) => html`
        ${dead.length ? html`<${Letters} ns=${ns} dead=${dead} />`
          : html`<${Empty}>${next ? 'None so far.' : 'No dead letters.'}</${Empty}>`}
        <div class="pager">${cursor && html`<${Button} onClick=${() => setQuery({ cursor: '' })}>
          First page</${Button}>`}${next && html`<${Button}
          onClick=${() => setQuery({ cursor: next })}>Next page</${Button}>`}</div>`}
      </${Loaded}></${Panel}>`;
}
