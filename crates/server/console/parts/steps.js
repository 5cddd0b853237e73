// The first steps with this broker, as commands that work as they are, if `TOKEN` holds a token
// where the broker wants one. Loaded where there is no task yet, and in the help.

import { html } from '../vendor/preact-htm.js';
import { broker } from './api.js';
import { session } from './session.js';
import { Copy } from './ui.js';

const TASK = `'{"in": "1m", "target": {"queue": "first"}, "payload": {"order": 1}}'`;
const LEASE = `'{"max": 10, "wait": "20s", "lease": "30s"}'`;
const CRON = `'{"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin", ` +
  `"target": {"queue": "first"}}'`;

export default function FirstSteps({ ns = 'shop' }) {
  const auth = session.value?.tokens ? ' -H "Authorization: Bearer $TOKEN"' : '';
  const curl = (verb, path, body) =>
    `curl${verb && ` -X ${verb}`}${auth} ${broker}/v1/${ns}/${path}${body && ` -d ${body}`}`;
  const steps = [
    ['Schedule a task that fires in a minute:', curl('PUT', 'tasks/order-1', TASK)],
    ['Take it as a worker, by long poll:', curl('POST', 'queues/first/lease', LEASE)],
    ['Repeat something on working days:', curl('PUT', 'tasks/report', CRON)],
    ['Ask why a task has not fired yet:', curl('', 'tasks/order-1/explain', '')],
  ];
  return html`<ol class="steps">${steps.map(([text, command]) => html`<li>${text}
    <div class="command"><pre tabindex="0">${command}</pre>
      <${Copy} text=${command} label="Copy command" /></div></li>`)}</ol>`;
}
