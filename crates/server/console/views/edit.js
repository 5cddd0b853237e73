// Creates, edits or copies a task: its schedule as fields with a preview of the next fires, the
// rest as JSON, whose numbers stay as they were sent. A problem of the broker is shown at the field
// that it names. An edit is refused if the task has changed meanwhile.

import { html, useEffect, useState } from '../vendor/preact-htm.js';
import { get, getText, put } from '../parts/api.js';
import { indent, members, objectText, rawAt } from '../parts/json.js';
import { go, href } from '../parts/route.js';
import { cronWords } from '../parts/schedule_words.js';
import { Ago, Time } from '../parts/time.js';
import { Field, Loaded, Panel, ProblemBox, Select, say, useLoad } from '../parts/ui.js';


// What the broker adds to a task, or what is a field of this page.
const OWN = ['id', 'namespace', 'state', 'fire_at', 'nominal_at', 'version', 'attempt',
  'created_at', 'updated_at', 'key', 'redriven', 'callback_of', 'in', 'at', 'cron', 'every',
  'within', 'timezone', 'end', 'fired_at', 'ended_at', 'reason'];
const KINDS = [['in', 'once, after'], ['at', 'once, at'], ['cron', 'cron'], ['every', 'every'],
  ['within', 'watch: silent for']];
const HINTS = {
  in: 'A duration: 15s, 15m, 48h', at: 'RFC 3339: 2026-11-18T09:00:00Z',
  cron: 'minute hour day month weekday, or @daily; six fields begin with the second',
  every: 'A duration of at least 100ms', within: 'Fires when it is not touched for so long',
};
const TEMPLATE = '{"target":{"queue":"first"},"payload":null,"labels":{}}';
// A pause in typing before the preview is loaded.
const TYPING_MS = 200;

function initial(text) {
  if (!text) return { when: 'in', value: '15m', timezone: '', rest: indent(TEMPLATE) };
  const task = JSON.parse(text);
  const kind = ['cron', 'every', 'within'].find((name) => task[name]);
  const rest = members(text).filter(([name]) => !OWN.includes(name));
  return {
    when: kind ?? 'at', value: kind ? task[kind] : task.fire_at, timezone: task.timezone ?? '',
    rest: indent(objectText(rest)), version: task.version, paused: task.state === 'paused',
  };
}

function Preview({ cron, timezone, present }) {
  const [asked, setAsked] = useState({ cron, timezone });
  useEffect(() => {
    const timer = setTimeout(() => setAsked({ cron, timezone }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [cron, timezone]);
  const found = useLoad((stop) => get(['preview'], { ...asked, count: 5 }, stop),
    [asked.cron, asked.timezone]);
  if (found.error) {
    return html`<p class="preview bad" role="status" data-preview="bad">${found.error.message}</p>`;
  }
  return html`<${Loaded} from=${found}>${({ fires, timezone: name }) => html`
    <p role="status" data-preview=${asked.cron}>In words: <b>${cronWords(asked.cron)}</b>, ${name}.
    </p><div class="scroll"><table><caption class="unseen">Next fires</caption><thead><tr>
      ${present.length > 0 && html`<th>Now</th>`}<th>${present.length ? 'After the change'
        : 'Next fires'}</th><th>When</th><th>In ${name}</th><th>Clock change</th></tr></thead>
    <tbody>${fires.map((fire, at) => html`<tr>
      ${present.length > 0 && html`<td>${present[at] && html`<${Time} at=${present[at].fire_at} />`}
        </td>`}
      <td><${Time} at=${fire.fire_at} /></td><td><${Ago} at=${fire.fire_at} /></td>
      <td>${fire.local}</td><td>${fire.note ?? ''}</td></tr>`)}</tbody></table></div>`}
    </${Loaded}>`;
}

function Form({ ns, name, text, present, isCopy }) {
  const [form, setForm] = useState(() => initial(text));
  const [key, setKey] = useState(isCopy ? `${name}-copy` : name ?? '');
  const [problem, setProblem] = useState(null);
  const set = (field) => (value) => setForm({ ...form, [field]: value });
  const typed = (field) => (event) => set(field)(event.target.value);
  const isEdit = name !== undefined && !isCopy;
  const save = async (event) => {
    event.preventDefault();
    try {
      const rest = members(form.rest);
      JSON.parse(form.rest);
      const pairs = [[form.when, JSON.stringify(form.value)], ...rest];
      if (form.when === 'cron' && form.timezone) {
        pairs.push(['timezone', JSON.stringify(form.timezone)]);
      }
      if (form.paused) pairs.push(['paused', 'true']);
      const headers = isEdit ? { 'if-match': `"${form.version}"` } : { 'if-none-match': '*' };
      await put([ns, 'tasks', key], objectText(pairs), headers);
      say(isEdit ? 'Saved.' : 'Created.');
      go([ns, 'tasks', key]);
    } catch (error) {
      const isJson = error instanceof SyntaxError;
      setProblem(isJson ? { field: 'rest', message: error.message } : error);
    }
  };
  const field = problem?.field?.split('.')[0];
  const at = (name) => field === name && problem.message;
  const inRest = problem && field && ![form.when, 'timezone', 'key'].includes(field);
  return html`<form class="edit" onSubmit=${save}>
    <${ProblemBox} of=${problem && !problem.field && problem} />
    <${Panel} id="when" title="When">
      <div class="filters">
        <${Field} label="Key" problem=${at('key')}><input value=${key} disabled=${isEdit} required
          spellcheck="false" onInput=${(event) => setKey(event.target.value)} /></${Field}>
        <${Field} label="Schedule"><${Select} options=${KINDS} value=${form.when}
          onPick=${set('when')} /></${Field}>
        <${Field} label="Value" hint=${HINTS[form.when]} problem=${at(form.when)}>
          <input name="value" value=${form.value} required spellcheck="false"
            onInput=${typed('value')} /></${Field}>
        ${form.when === 'cron' && html`<${Field} label="Time zone" hint="UTC, if empty"
          problem=${at('timezone')}><input list="zones" value=${form.timezone} spellcheck="false"
            onInput=${typed('timezone')} /></${Field}>
          <datalist id="zones">${Intl.supportedValuesOf('timeZone').map((zone) =>
            html`<option value=${zone} />`)}</datalist>`}
      </div>
      ${form.when === 'cron' && html`<${Preview} cron=${form.value} timezone=${form.timezone}
        present=${present} />`}
    </${Panel}>
    <${Panel} id="rest" title="What">
      <${Field} label="Target, payload, retry, labels and all other fields, as JSON"
        problem=${inRest && problem.message}>
        <textarea rows="18" spellcheck="false" value=${form.rest} onInput=${typed('rest')} />
      </${Field}></${Panel}>
    <div class="actions"><a class="button" href=${isEdit || isCopy ? href([ns, 'tasks', name])
      : href([ns, 'tasks'])}>Discard</a>
      <button type="submit" class="primary">${isEdit ? 'Save' : 'Create'}</button></div>
  </form>`;
}

export default function Edit({ ns, name, isCopy }) {
  const loaded = useLoad(async (stop) => {
    if (name === undefined) return { present: [] };
    const text = await getText([ns, 'tasks', name, 'explain'], {}, stop);
    return { text: rawAt(text, ['task']), present: JSON.parse(text).next };
  }, [ns, name]);
  const title = name === undefined ? 'New task' : isCopy ? `Duplicate ${name}` : `Edit ${name}`;
  return html`<h1 class="name">${title}</h1><${Loaded} from=${loaded}>${(data) => html`
    <${Form} ns=${ns} name=${name} isCopy=${isCopy} ...${data} />`}</${Loaded}>`;
}
