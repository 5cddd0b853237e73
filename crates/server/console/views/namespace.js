// One namespace: counts that add up to what was accepted, what is to come, how fires ended, how
// late they were, and what waits where.

import { html, useMemo } from '../vendor/preact-htm.js';
import { get } from '../parts/api.js';
import { Chart, LagHistogram, hourName } from '../parts/charts.js';
import { HeatMap } from '../parts/heat.js';
import { LaneTable, laneWarnings } from '../parts/lanes.js';
import { live } from '../parts/live.js';
import { href, setQuery } from '../parts/route.js';
import { useSignal } from '../parts/signal.js';
import { hourStart, inZone, iso, now, span, zone, zoneName } from '../parts/time.js';
import { Icon, Lazy, Loaded, Panel, Select, State, useLoad } from '../parts/ui.js';
import { count, lag, plural } from '../parts/words.js';

const firstSteps = () => import('../parts/steps.js');
const STATES = ['scheduled', 'firing', 'paused', 'done', 'dead', 'cancelled'];
const LISTED = ['scheduled', 'firing', 'paused'];
const RANGES = [['1h', 'last hour'], ['6h', 'last 6 hours'], ['24h', 'last 24 hours']];
const STEPS = { '1h': '1m', '6h': '5m', '24h': '15m' };
const REFRESH_MS = 30_000;

// The counts of the live stream, or those of the first load.
function Tiles({ ns, stats }) {
  const message = useSignal(live);
  const counts = message?.ns === ns ? message.counts : stats;
  return html`<div class="tiles">
    ${STATES.map((state, at) => html`<div class="tile">
      ${LISTED.includes(state) ? html`<a href=${href([ns, 'tasks'], { state })}>
        <${State} of=${state} /></a>` : state === 'dead' ? html`<a href=${href([ns, 'dead'])}>
        <${State} of="dead" /></a>` : html`<${State} of=${state} />`}
      <b class="num" data-count=${state}>${count(counts[state])}</b>
      <span class="sign" aria-hidden="true">${at < STATES.length - 1 ? '+' : '='}</span>
    </div>`)}
    <div class="tile sum"><span>accepted</span>
      <b class="num" data-count="accepted">${count(counts.accepted)}</b></div>
  </div>`;
}

function Rates({ ns }) {
  const message = useSignal(live);
  if (message?.ns !== ns) return null;
  const { rates, lag_ms: lags, waiting, in_flight: inFlight } = message;
  return html`<p class="strip num">${rates.done.toFixed(1)} fires/s ·${' '}
    ${rates.failed.toFixed(1)} failed attempts/s · ${count(waiting)} waiting ·${' '}
    ${count(inFlight)} in flight · lag p50 ${lag(lags?.p50)}, p99 ${lag(lags?.p99)},${' '}
    p99.9 ${lag(lags?.p999)}</p>`;
}

// What an operator should look at, in words.
function warnings(ns, stats, lanes) {
  const found = [];
  if (stats.oldest_overdue_ms > 5000) {
    const query = { state: 'scheduled', to: stats.oldest_overdue };
    found.push([`The oldest task that waits is overdue by ${span(stats.oldest_overdue_ms)}.`,
      href([ns, 'tasks'], query)]);
  }
  if (stats.dead_letters) {
    found.push([`${plural(stats.dead_letters, 'dead letter')} to redrive or delete.`,
      href([ns, 'dead'])]);
  }
  return [...found, ...laneWarnings(ns, lanes)];
}

function SeriesPanels({ series, range }) {
  const { times, fires, lags } = useMemo(() => {
    const { points } = series;
    const of = (name) => points.map((point) => point[name]);
    const at = (name) => points.map((point) => point.lag_ms?.[name] || null);
    return {
      times: points.map((point) => Date.parse(point.at)),
      fires: [
        { name: 'done', ink: 'done', values: of('done') },
        { name: 'failed attempts', ink: 'paused', values: of('failed') },
        { name: 'dead', ink: 'dead', values: of('dead') },
      ],
      lags: [
        { name: 'p50', ink: 'done', values: at('p50') },
        { name: 'p99', ink: 'accent', values: at('p99') },
        { name: 'p99.9', ink: 'firing', values: at('p999') },
      ],
    };
  }, [series]);
  return html`<${Panel} id="fires" title=${`Fires by outcome, per ${series.step}`} side=${html`
      <${Select} aria-label="Range" options=${RANGES} value=${range}
        onPick=${(name) => setQuery({ for: name })} />`}>
      <${Chart} times=${times} series=${fires} label="Fires by outcome over time" />
      <p class="dim">${series.since ? `Measured since ${inZone(series.since)}.`
        : 'Nothing was measured yet.'}</p></${Panel}>
    <${Panel} id="lag" title="Lag over time">
      <${Chart} times=${times} series=${lags} log label="Lag percentiles over time" /></${Panel}>`;
}

// Percentiles of all points together, from the buckets: the bound that so many do not exceed.
function percentiles(bounds, counts, points) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  const max = Math.max(0, ...points.map((point) => point.lag_ms?.max ?? 0));
  const upTo = (share) => {
    let seen = 0;
    const bucket = counts.findIndex((n) => (seen += n) >= total * share);
    return Math.min(bounds[bucket] ?? max, max);
  };
  return total ? { p50: upTo(0.5), p99: upTo(0.99), 'p99.9': upTo(0.999), max } : null;
}

function LagPanel({ series }) {
  const bounds = series.lag_bounds_ms;
  const counts = Array(bounds.length + 1).fill(0);
  series.points.forEach(({ lag: buckets }) => buckets.forEach((n, at) => (counts[at] += n)));
  return html`<${LagHistogram} bounds=${bounds} counts=${counts}
    marks=${percentiles(bounds, counts, series.points)} />`;
}

function Busiest({ ns, steps, ahead }) {
  const top = steps.reduce((best, step) => (step.fires > best.fires ? step : best), { fires: 0 });
  if (!top.fires) return html`No fire is expected in the next ${ahead}.`;
  const at = Date.parse(top.from);
  const query = { from: iso(at), to: iso(at + 3_600_000) };
  return html`Busiest hour: <a href=${href([ns, 'tasks'], query)}>${hourName(at)} ${zoneName(at)},
    ${' '}${plural(top.fires, 'fire')}</a>.`;
}

export default function NamespaceView({ ns, query }) {
  const range = STEPS[query.for] ? query.for : '6h';
  const zoned = useSignal(zone);
  const every = { every: REFRESH_MS };
  const stats = useLoad((stop) => get([ns, 'stats'], {}, stop), [ns], every);
  const lanes = useLoad((stop) => get([ns, 'lanes'], {}, stop), [ns], every);
  // Overdue fires count in the first step, so it is the present hour and not midnight.
  const start = hourStart(now());
  const forecast = useLoad((stop) =>
    get([ns, 'forecast'], { at: iso(start), for: '7d', step: '1h' }, stop), [ns, zoned], every);
  const series = useLoad((stop) =>
    get([ns, 'series'], { for: range, step: STEPS[range] }, stop), [ns, range], every);
  if (stats.data?.accepted === 0) {
    return html`<h1>${ns}</h1><${Panel} id="steps" title="No task yet: first steps">
      <${Lazy} load=${firstSteps} ns=${ns} /></${Panel}>`;
  }
  const waits = stats.data ? warnings(ns, stats.data, lanes.data?.lanes ?? []) : [];
  return html`<h1>${ns}</h1>
    <${Loaded} from=${stats}>${(data) => html`<${Tiles} ns=${ns} stats=${data} />`}</${Loaded}>
    <${Rates} ns=${ns} />
    ${waits.length > 0 && html`<ul class="warnings">${waits.map(([text, link]) => html`
      <li><${Icon} name="warning" /><a href=${link}>${text}</a></li>`)}</ul>`}
    <${Panel} id="forecast" title="Next seven days" side=${html`
      <a href=${href([ns, 'timeline'])}>Timeline</a>`}>
      <${Loaded} from=${forecast}>${({ steps, complete, complete_until: until }) => html`
        <p><${Busiest} ns=${ns} steps=${steps} ahead="seven days" />
          ${!complete && html` Counted up to ${inZone(until)}.`}</p>
        <${HeatMap} ns=${ns} steps=${steps} />`}</${Loaded}></${Panel}>
    <div class="columns">
      <${Loaded} from=${series}>${(data) => html`<${SeriesPanels} series=${data}
        range=${range} />`}</${Loaded}>
    </div>
    <div class="columns beside">
      <${Panel} id="histogram" title="Lag of fires"><${Loaded} from=${series}>${(data) => html`
        <${LagPanel} series=${data} />`}</${Loaded}></${Panel}>
      <${Panel} id="lanes" title="Targets" side=${html`
        <a href=${href([ns, 'queues'])}>Targets, queues and workers</a>`}>
        <${Loaded} from=${lanes}>${(data) => html`<${LaneTable} ns=${ns} of=${data} />`}
        </${Loaded}></${Panel}>
    </div>`;
}
