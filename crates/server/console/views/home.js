// All namespaces that the token may see, with their counts, and the cluster in one line.

import { html, useState } from '../vendor/preact-htm.js';
import { get } from '../parts/api.js';
import { Sparkline } from '../parts/charts.js';
import { live } from '../parts/live.js';
import { CLUSTER, href } from '../parts/route.js';
import { isAdmin, session } from '../parts/session.js';
import { useSignal } from '../parts/signal.js';
import { clock, hourStart, iso, now, span, zone, zoneName } from '../parts/time.js';
import { Button, Lazy, Loaded, Panel, useLoad } from '../parts/ui.js';
import { count, lag, plural } from '../parts/words.js';

const firstSteps = () => import('../parts/steps.js');
// Rows that are measured one by one: overdue tasks, rates and lag cost a call each.
const MEASURED_MAX = 20;
const REFRESH_MS = 15_000;
// The hour with most fires changes seldom, and a forecast costs more than counts.
const AHEAD_REFRESH_MS = 300_000;
const PAGE = 100;

const list = (cursor, stop) => (isAdmin() ? get(['namespaces'], { limit: PAGE, cursor }, stop)
  : Promise.resolve({
    namespaces: session.value.namespaces.filter(({ rights }) => rights.includes('read')),
  }));

async function measure(names, stop) {
  const figures = await Promise.all(names.map(async (name) => {
    const [stats, series] = await Promise.allSettled([
      get([name, 'stats'], {}, stop), get([name, 'series'], { for: '1h', step: '1m' }, stop),
    ]);
    return [name, { ...stats.value, points: series.value?.points }];
  }));
  return Object.fromEntries(figures);
}

// The hour of the next day with most fires.
async function busiest(names, stop) {
  const start = iso(hourStart(now()));
  const found = await Promise.allSettled(names.map((name) =>
    get([name, 'forecast'], { at: start, for: '24h', step: '1h' }, stop)));
  const top = ({ value }) => value?.steps.reduce((best, step) =>
    (step.fires > best.fires ? step : best), { fires: 0 });
  return Object.fromEntries(names.map((name, at) => [name, top(found[at])]));
}

const Busiest = ({ ns, of }) => (of?.fires
  ? html`<a href=${href([ns, 'timeline'], { for: '24h' })}>${clock(of.from, { minute: true })
    .slice(11)}, ${plural(of.fires, 'fire')}</a>` : '–');

function Row({ of }) {
  const points = of.points ?? [];
  const worst = points.findLast((point) => point.lag_ms)?.lag_ms;
  const fires = points.map((point) => point.done + point.dead);
  const overdue = of.oldest_overdue_ms > 1000;
  return html`<tr>
    <th scope="row"><a data-row href=${href([of.name])}>${of.name}</a></th>
    <td class="num">${count(of.scheduled)}</td><td class="num">${count(of.firing)}</td>
    <td class=${`num ${overdue ? 'bad' : ''}`}>${overdue ? span(of.oldest_overdue_ms) : '–'}</td>
    <td class="num">${of.dead_letters ? html`<a class="bad" href=${href([of.name, 'dead'])}>
      ${count(of.dead_letters)}</a>` : count(of.dead_letters)}</td>
    <td class="num">${count(of.accepted)}</td>
    <td>${fires.length > 1 && html`<${Sparkline} values=${fires}
      label=${`${count(fires.reduce((a, b) => a + b))} fires in the last hour`} />`}</td>
    <td class="num">${lag(worst?.p99)}</td>
    <td class="num"><${Busiest} ns=${of.name} of=${of.busiest} /></td></tr>`;
}

function Strip() {
  const message = useSignal(live);
  const topology = useLoad((stop) => get(['topology'], {}, stop), [], { every: REFRESH_MS });
  const brokers = message?.brokers ?? topology.data?.brokers ?? [];
  const partitions = brokers.reduce((sum, { partitions: owned }) => sum + owned.length, 0);
  return html`<p class="strip">
    <a href=${href([CLUSTER])}>${plural(brokers.length, 'broker')}</a>,${' '}
    ${plural(partitions, 'partition')}, store ${session.value.store}
    ${message?.rates && html`<span>${' '}· ${message.rates.done.toFixed(1)} fires/s,${' '}
      ${message.rates.failed.toFixed(1)} failed attempts/s, lag p99${' '}
      ${lag(message.lag_ms?.p99)}</span>`}</p>`;
}

export default function Home() {
  const [cursor, setCursor] = useState(undefined);
  const found = useLoad((stop) => list(cursor, stop), [cursor], { every: REFRESH_MS });
  const names = found.data?.namespaces.slice(0, MEASURED_MAX).map(({ name }) => name) ?? [];
  const figures = useLoad((stop) => measure(names, stop), [names.join()], { every: REFRESH_MS });
  const ahead = useLoad((stop) => busiest(names, stop), [names.join(), useSignal(zone)],
    { every: AHEAD_REFRESH_MS });
  return html`<h1>Namespaces</h1><${Strip} />
    <${Loaded} from=${found}>${({ namespaces, next }) => namespaces.length ? html`
      <div class="scroll"><table class="list"><caption class="unseen">Namespaces</caption>
      <thead><tr><th>Namespace</th><th class="num">Pending</th><th class="num">Firing</th>
        <th class="num">Overdue</th><th class="num">Dead letters</th><th class="num">Accepted</th>
        <th>Fires, last hour</th><th class="num">Lag p99</th>
        <th class="num">Busiest hour, next day <small>${zoneName()}</small></th></tr></thead>
      <tbody>${namespaces.map((row) => html`<${Row} key=${row.name}
        of=${{ ...row, ...figures.data?.[row.name], busiest: ahead.data?.[row.name] }} />`)}</tbody></table></div>
      <div class="pager">${cursor && html`<${Button} onClick=${() => setCursor(undefined)}>
        First page</${Button}>`}${next && html`<${Button} onClick=${() => setCursor(next)}>
        Next page</${Button}>`}</div>`
    : html`<${Panel} id="steps" title="No task yet: first steps">
      <${Lazy} load=${firstSteps} /></${Panel}>`}
    </${Loaded}>`;
}
