// One task, explained: why it has not fired yet, its life on one line, its fires with what the
// receivers answered, what comes next, and its definition as it was sent.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { cancel, command, letters, touch } from '../parts/actions.js';
import { get, getText } from '../parts/api.js';
import { rawAt } from '../parts/json.js';
import { Life, moments } from '../parts/life.js';
import { href } from '../parts/route.js';
import { kindOf, scheduleWords } from '../parts/schedule_words.js';
import { may } from '../parts/session.js';
import { Ago, Time, inZone, millis, now, span } from '../parts/time.js';
import { Button, Copy, Empty, Facts, Loaded, Panel, State, useLoad } from '../parts/ui.js';
import { Value } from '../parts/value.js';
import { count, lag, outcomeWords, targetWords } from '../parts/words.js';

// A task that fires within this time, or is firing, is loaded again more often.
const SOON_MS = 60_000;
const SOON_POLL_MS = 2000;
const POLL_MS = 30_000;
// How long the broker waits for another version of the task.
const WAIT = '25s';
const ENDED = ['done', 'dead', 'cancelled', 'replaced'];

const WAITING = {
  time: ['scheduled', 'Waits for its time'], retry: ['paused', 'Waits for the next attempt'],
  worker: ['paused', 'Waits for a worker'], capacity: ['paused', 'Waits for capacity'],
  limit: ['paused', 'Waits for its share'], pause: ['paused', 'Paused'],
  owner: ['dead', 'Waits for an owner'],
};

function pollTime(task) {
  if (!task || ENDED.includes(task.state) || task.state === 'paused') return POLL_MS;
  return millis(task.fire_at) - now() < SOON_MS ? SOON_POLL_MS : POLL_MS;
}

function Actions({ ns, name, task, fire }) {
  const { state } = task;
  const kind = kindOf(task);
  const isEnded = ENDED.includes(state) && kind !== 'watch';
  const produces = may(ns, 'produce');
  const changes = may(ns, 'produce', 'operate');
  const operates = may(ns, 'operate');
  const button = (text, onClick, style) => html`<${Button} kind=${style} onClick=${onClick}>
    ${text}</${Button}>`;
  const isTouchable = kind === 'watch' || (kind === 'once' && state === 'scheduled');
  return html`<div class="actions">
    ${changes && isTouchable && !isEnded && button('Touch', () => touch(ns, task, name))}
    ${operates && state === 'scheduled' && button('Pause', () => command(ns, name, 'pause'))}
    ${operates && state === 'paused' && button('Resume', () => command(ns, name, 'resume'))}
    ${operates && !isEnded && state !== 'firing'
      && button('Fire now', () => command(ns, name, 'fire'))}
    ${operates && state === 'dead' && fire
      && button('Redrive', () => letters(ns, 'redrive', { ids: [fire.fire_id], number: 1 }))}
    ${produces && !isEnded && task.key && html`<a class="button"
      href=${href([ns, 'tasks', name, 'edit'])}>Edit</a>`}
    ${produces && task.target && html`<a class="button" href=${href([ns, 'tasks', name, 'copy'])}>
      Duplicate</a>`}
    ${changes && !isEnded && button('Cancel', () => cancel(ns, name), 'danger')}
  </div>`;
}

function Answer({ of }) {
  if (!of) return null;
  const text = of.text ?? of.base64;
  return html`<details open><summary>Answer ${of.content_type && html`<code>${of.content_type}
    </code>`}${of.truncated && ' (the beginning)'}${of.base64 && ' in base64'}</summary>
    ${text ? html`<${Value} name="answer" text=${text} />` : html`<p class="dim">empty</p>`}
    </details>`;
}

function FireRow({ fire, result, state }) {
  const waits = !fire.end && state !== 'firing';
  return html`<details class="fire"><summary>
      <${State} of=${fire.end ?? (waits ? 'waiting' : 'firing')}
        text=${waits ? 'not ended' : undefined} />${' '}
      <${Time} at=${fire.fire_at} full />${' '}
      <span class="dim">${fire.occasion}, lag ${lag(fire.lag_ms)},${' '}
        ${fire.attempts?.length === 1 ? '1 attempt' : `${fire.attempts?.length ?? 0} attempts`}
        ${fire.skipped && `, ${count(fire.skipped.fires)} skipped: ${fire.skipped.reason}`}</span>
    </summary>
    <p class="dim">Fire <code>${fire.fire_id}</code><${Copy} text=${fire.fire_id}
      label="Copy fire id" /></p>
    ${result !== undefined && html`<h3>Result</h3><${Value} name="result" text=${result} json />`}
    ${(fire.attempts ?? []).map((attempt) => html`<div class="attempt">
      <${State} of=${attempt.outcome ?? 'firing'} text=${`attempt ${attempt.attempt}`} />
      <${Time} at=${attempt.at} full />
      ${attempt.duration_ms != null && html`<span class="num">${span(attempt.duration_ms)}</span>`}
      <span>${outcomeWords(attempt)}</span><${Answer} of=${attempt.answer} /></div>`)}
  </details>`;
}

function Payload({ task, raw }) {
  if (raw !== undefined && raw !== 'null') {
    return html`<${Value} name="payload" text=${raw} json />`;
  }
  if (!task.payload_base64) return html`<${Empty}>No payload.</${Empty}>`;
  let text = task.payload_base64;
  let isText = true;
  try {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    isText = false;
  }
  return html`<p class="dim">${task.content_type ?? 'bytes'}${isText ? '' : ', in base64'}</p>
    <${Value} name="payload" text=${text} />`;
}

// What the broker says in words has instants in UTC.
const localized = (text) => text.replace(/\b\d{4}-\d\d-\d\dT[\d:.]+Z/g, inZone);

function Next({ of, isCron }) {
  if (!of.length) return html`<${Empty}>No further fire.</${Empty}>`;
  return html`<div class="scroll"><table><caption class="unseen">Next fires</caption><thead><tr>
    <th>Due</th><th>When</th>${isCron && html`<th>In the zone of the schedule</th>`}<th>Note</th>
    </tr></thead>
    <tbody>${of.map((fire) => html`<tr><td><${Time} at=${fire.fire_at} /></td>
      <td><${Ago} at=${fire.fire_at} /></td>${isCron && html`<td>${fire.local}</td>`}
      <td>${fire.why ?? ''}</td></tr>`)}</tbody></table></div>`;
}

function Explained({ ns, name, found, text }) {
  const { task, fires, next } = found;
  const fire = fires[0];
  const [ink, words] = WAITING[found.waiting_for] ?? [task.state, null];
  const result = (at) => rawAt(text, ['fires', at, 'result']);
  return html`
    <div class="title"><h1 class="name">${task.key ?? name}</h1><${State} of=${task.state} />
      <span class="grow"></span><${Actions} ns=${ns} name=${name} task=${task} fire=${fire} /></div>
    <div class=${`why ${ink}`}>${words && html`<strong>${words}. </strong>`}
      ${localized(found.summary)}
      ${found.details.length > 0 && html`<ul>${found.details.map((line) => html`
        <li>${localized(line)}</li>`)}</ul>`}</div>
    <${Life} of=${moments(task, fire, found)} />
    <div class="columns">
      <${Panel} id="payload" title="Payload">
        <${Payload} task=${task} raw=${rawAt(text, ['task', 'payload'])} /></${Panel}>
      <${Panel} id="definition" title="Definition"><${Facts} of=${[
        ['Schedule', task.target || task.cron ? scheduleWords(task) : null],
        ['Kind', kindOf(task)],
        ['Target', html`<span class="break">${targetWords(task.target)}</span>`],
        task.guarantee && ['Guarantee', task.guarantee],
        task.retry && ['Attempts', `up to ${task.retry.attempts_max}, timeout ${task.timeout}`],
        task.labels && ['Labels', Object.entries(task.labels).map(([label, value]) => html`
          <a class="chip" href=${href([ns, 'tasks'], { label: `${label}=${value}` })}>
            ${label}=${value}</a> `)],
        ['Id', html`<code>${task.id}</code><${Copy} text=${task.id} label="Copy id" />`],
        task.version && ['Version', task.version],
        ['Created', html`<${Time} at=${task.created_at} />`],
        task.updated_at && ['Updated', html`<${Time} at=${task.updated_at} />`],
        found.touches != null && ['Touches', count(found.touches)],
        ['Partition', `${found.partition}, epoch ${found.epoch ?? '–'}`],
        ['Owner', found.owner ?? 'none known'],
      ]} />
      <details><summary>All fields, as the broker answers</summary>
        <${Value} name="task" text=${rawAt(text, ['task'])} json /></details></${Panel}>
    </div>
    <${Panel} id="next" title="Next fires"><${Next} of=${next} isCron=${Boolean(task.cron)} /></${Panel}>
    <${Panel} id="fires" title="Fires">${fires.length
      ? fires.map((one, at) => html`<${FireRow} key=${one.fire_id} fire=${one}
        state=${task.state}
        result=${result(at)} />`) : html`<${Empty}>It has not fired yet.</${Empty}>`}</${Panel}>`;
}

export default function TaskView({ ns, name }) {
  const [every, setEvery] = useState(POLL_MS);
  const loaded = useLoad(async (stop) => {
    const text = await getText([ns, 'tasks', name, 'explain'], {}, stop);
    const found = JSON.parse(text);
    setEvery(pollTime(found.task));
    return { text, found };
  }, [ns, name], { every });
  const version = loaded.data?.found.task.version;
  // What other callers change is shown at once.
  useEffect(() => {
    if (!version || every !== POLL_MS || document.hidden) return undefined;
    const stop = new AbortController();
    get([ns, 'tasks', name], { after_version: version, wait: WAIT }, stop.signal)
      .then(loaded.reload, () => {});
    return () => stop.abort();
  }, [loaded.data]);
  return html`<${Loaded} from=${loaded}>${({ found, text }) => html`
    <${Explained} ns=${ns} name=${name} found=${found} text=${text} />`}</${Loaded}>`;
}
