// The alarms of a namespace: their state, what they measure, and the last notice. An alarm is
// created, replaced, tested and deleted here; the secret of a chat robot is never shown.

import { html, useState } from '../vendor/preact-htm.js';
import { get, post, put, remove } from '../parts/api.js';
import { ask } from '../parts/dialog.js';
import { href, go } from '../parts/route.js';
import { may, refresh } from '../parts/session.js';
import { Time } from '../parts/time.js';
import { Button, Empty, Field, Loaded, Panel, ProblemBox, Select, State, say, useLoad }
  from '../parts/ui.js';
import { count } from '../parts/words.js';

const REFRESH_MS = 2000;

// The conditions with their fields and usual values.
const CONDITIONS = {
  failures: { count: 100, window: '1m' }, failure_share: { over: 0.1, min: 50, window: '5m' },
  dead_letters: { over: 0 }, lag: { p99_over: '1s', window: '1m' }, overdue: { over: '30s' },
  no_workers: { queue: 'emails', for: '1m' },
};
const CONDITION_NAMES = {
  failures: 'failed attempts', failure_share: 'share of failed attempts',
  dead_letters: 'dead letters', lag: 'lag', overdue: 'overdue', no_workers: 'no workers',
};
const CHATS = ['slack', 'dingtalk', 'feishu', 'wecom'];
const RECEIVERS = [['http', 'webhook'], ...CHATS.map((kind) => [kind, kind]), ['mail', 'mail']];

const conditionWords = (when) => Object.entries(when).map(([name, fields]) =>
  `${CONDITION_NAMES[name] ?? name}: ${Object.entries(fields).map(([field, value]) =>
    `${field.replace('_', ' ')} ${value}`).join(', ')}`).join('; ');

const receiverWords = ({ http, chat, mail }) => (http ? http.url
  : chat ? chat.kind : mail ? mail.to.join(', ') : '–');

const numeric = (value) => (/^[\d.]+$/.test(value) ? Number(value) : value);

const valueWords = (value) => (typeof value === 'number' ? count(value) : value ?? '–');

function receiver(kind, address, secret) {
  if (kind === 'http') return { http: { url: address } };
  if (kind === 'mail') return { mail: { to: address.split(/[\s,]+/).filter(Boolean) } };
  return { chat: { kind, url: address, ...(secret && { secret }) } };
}

function Editor({ ns, of }) {
  const first = of ? Object.keys(of.when)[0] : 'failures';
  const kind = !of ? 'http' : of.to.chat?.kind ?? Object.keys(of.to)[0];
  const [name, setName] = useState(of?.name ?? '');
  const [condition, setCondition] = useState(first);
  const [fields, setFields] = useState(of ? of.when[first] : CONDITIONS[first]);
  const [to, setTo] = useState(kind);
  const [address, setAddress] = useState(
    of ? of.to.http?.url ?? of.to.chat?.url ?? of.to.mail?.to.join(', ') ?? '' : '');
  const [secret, setSecret] = useState('');
  const [repeat, setRepeat] = useState(of?.repeat_after ?? '');
  const [problem, setProblem] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    const values = Object.entries(fields).map(([field, value]) => [field, numeric(value)]);
    // A webhook keeps its other settings as long as it stays a webhook.
    const same = of?.to.http && to === 'http';
    try {
      await put([ns, 'alarms', name], {
        when: { [condition]: Object.fromEntries(values) },
        to: same ? { http: { ...of.to.http, url: address } } : receiver(to, address, secret),
        ...(repeat && { repeat_after: repeat }),
      });
      say('Saved.');
      go([ns, 'alarms']);
    } catch (error) {
      setProblem(error);
    }
  };
  const typed = (set) => (event) => set(event.target.value);
  const input = (value, set, more = {}) => html`<input value=${value} spellcheck="false"
    onInput=${typed(set)} ...${more} />`;
  return html`<${Panel} id="alarm" title=${of ? `Alarm ${of.name}` : 'New alarm'}>
    <form onSubmit=${save}><div class="filters">
      <${Field} label="Name">${input(name, setName, { required: true, disabled: Boolean(of) })}
      </${Field}>
      <${Field} label="Raised by"><${Select} value=${condition}
        options=${Object.entries(CONDITION_NAMES)} onPick=${(next) => {
          setCondition(next);
          setFields(CONDITIONS[next]);
        }} /></${Field}>
      ${Object.entries(fields).map(([field, value]) => html`<${Field} key=${field}
        label=${field[0].toUpperCase() + field.slice(1).replace('_', ' ')}>${input(value, (text) =>
          setFields({ ...fields, [field]: text }))}</${Field}>`)}
      <${Field} label="Notice to"><${Select} options=${RECEIVERS} value=${to} onPick=${setTo} />
      </${Field}>
      <${Field} label=${to === 'mail' ? 'Addresses' : 'URL'}>${input(address, setAddress,
        { required: true })}</${Field}>
      ${['dingtalk', 'feishu'].includes(to) && html`<${Field} label="Secret"
        hint=${of && 'Give it again: it is never shown'}>${input(secret, setSecret)}</${Field}>`}
      <${Field} label="Repeat after" hint="Empty: no repetition">${input(repeat, setRepeat)}
      </${Field}>
    </div>
    <${ProblemBox} of=${problem} />
    <div class="actions"><a class="button" href=${href([ns, 'alarms'])}>Discard</a>
      <button type="submit" class="primary">Save</button></div></form></${Panel}>`;
}

async function test(ns, name) {
  try {
    const { state, reason } = await post([ns, 'alarms', name, 'test']);
    say(`Test notice: ${state}${reason ? `, ${reason}` : ''}.`, state === 'failed' ? 'bad' : 'ok');
    refresh();
  } catch (problem) {
    say(problem.message, 'bad');
  }
}

const drop = (ns, name) => ask({
  title: `Delete alarm ${name}?`, text: 'It sends no further notice.', verb: 'Delete alarm',
  danger: true,
  act: async () => {
    await remove([ns, 'alarms', name]);
    say('Deleted.');
    refresh();
  },
});

function Rows({ ns, alarms }) {
  return alarms.map((alarm) => html`<tr key=${alarm.name}>
    <th scope="row">${alarm.name}</th><td><${State} of=${alarm.state} /></td>
    <td>${conditionWords(alarm.when)}</td>
    <td class="num">${valueWords(alarm.value)}</td>
    <td><${Time} at=${alarm.since} /></td><td class="cut">${receiverWords(alarm.to)}</td>
    <td>${alarm.last_notice ? html`<${State} of=${alarm.last_notice.state}
      text=${`${alarm.last_notice.kind}, ${alarm.last_notice.state}`} />${' '}
      <${Time} at=${alarm.last_notice.at} />` : 'none'}</td>
    <td>${may(ns, 'operate') && html`<div class="actions">
      <${Button} onClick=${() => test(ns, alarm.name)}>Test</${Button}>
      <a class="button" href=${href([ns, 'alarms'], { edit: alarm.name })}>Edit</a>
      <${Button} kind="danger" onClick=${() => drop(ns, alarm.name)}>Delete</${Button}></div>`}</td>
  </tr>`);
}

export default function Alarms({ ns, query }) {
  const found = useLoad((stop) => get([ns, 'alarms'], {}, stop), [ns], { every: REFRESH_MS });
  return html`<div class="title"><h1>Alarms</h1><span class="grow"></span>
      ${may(ns, 'operate') && html`<a class="button primary"
        href=${href([ns, 'alarms'], { new: 1 })}>New alarm</a>`}</div>
    <${Loaded} from=${found}>${({ alarms }) => {
      const edited = alarms.find(({ name }) => name === query.edit);
      return html`${(edited || query.new) && html`<${Editor} key=${query.edit} ns=${ns}
          of=${edited} />`}
        ${alarms.length ? html`<div class="scroll"><table class="list">
          <caption class="unseen">Alarms</caption><thead><tr><th>Alarm</th><th>State</th>
            <th>Raised by</th><th class="num">Now</th><th>Since</th><th>Notice to</th>
            <th>Last notice</th><th><span class="unseen">Actions</span></th></tr></thead>
          <tbody><${Rows} ns=${ns} alarms=${alarms} /></tbody></table></div>`
          : html`<${Empty}>No alarm.</${Empty}>`}`;
    }}</${Loaded}>`;
}
