// The timeline of the future: expected fires from minutes to a year ahead. A bar zooms in, a drag
// or Shift with the arrow keys selects a range, and a range opens its tasks, or moves or pauses
// them. Bars are stacked by target as far as the broker has read the tasks. Start, length and range
// are in the address.

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { bulkMatching } from '../parts/actions.js';
import { get } from '../parts/api.js';
import { hourName } from '../parts/charts.js';
import { go, href, setQuery } from '../parts/route.js';
import { may } from '../parts/session.js';
import { useSignal } from '../parts/signal.js';
import { inZone, iso, midnight, now, span, zone, zoneName } from '../parts/time.js';
import { Button, Empty, Loaded, useLoad } from '../parts/ui.js';
import { compact, count, plural } from '../parts/words.js';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
// From near to far: the length of the view and of a step, their names in the API, and how many steps
// a tick has: all ticks have as many, so that each is below its bar.
const ZOOMS = [
  { name: '1 hour', for: '1h', step: '1m', length: HOUR, step_ms: MINUTE, tick: 10 },
  { name: '6 hours', for: '6h', step: '5m', length: 6 * HOUR, step_ms: 5 * MINUTE, tick: 12 },
  { name: '1 day', for: '24h', step: '15m', length: DAY, step_ms: 15 * MINUTE, tick: 12 },
  { name: '1 week', for: '7d', step: '2h', length: 7 * DAY, step_ms: 2 * HOUR, tick: 12 },
  { name: '1 month', for: '30d', step: '12h', length: 30 * DAY, step_ms: 12 * HOUR, tick: 10 },
  { name: '1 year', for: '360d', step: '5d', length: 360 * DAY, step_ms: 5 * DAY, tick: 12 },
];
const HEIGHT = 100;
// A step with so many times the mean is a herd.
const HERD = 5;
const HERDS_MAX = 5;

const align = (ms, zoom) => (zoom.step_ms >= 2 * HOUR ? midnight(ms) : ms - (ms % zoom.step_ms));

// Colours for targets; what other targets have is grey.
const INKS = 7;

// The pieces of a bar, from below: the fires of each target, and the rest.
function pieces(index, fires, targets) {
  let left = fires;
  const found = targets.map(({ fires: counts }, at) => {
    const count = Math.min(left, counts[index]);
    left -= count;
    return [`stack o${at}`, count];
  });
  return [...found, [targets.length ? 'stack rest' : 'fill', left]];
}

function Stack({ of, top }) {
  let below = 0;
  return of.map(([ink, count]) => {
    const height = (count / top) * HEIGHT;
    below += height;
    return count > 0 && html`<rect class=${ink} width="10" y=${HEIGHT - below} height=${height} />`;
  });
}

// Which colour is which target, with its fires.
function Legend({ targets, until }) {
  return html`<p class="legend">${targets.map(({ target, fires }, at) => html`<span class="key">
      <i class=${`o${at}`}></i>${target}${' '}
      <b class="num">${count(fires.reduce((sum, n) => sum + n, 0))}</b></span>`)}
    <span class="key"><i class="rest"></i>other</span>
    ${until && html`<span class="dim">Divided up to ${inZone(until)}: more tasks than are read.
      </span>`}</p>`;
}

function Bars({ steps, targets, zoom, level, at }) {
  const [drag, setDrag] = useState(null);
  const [focus, setFocus] = useState(0);
  const box = useRef();
  const top = Math.max(1, ...steps.map(({ fires }) => fires));
  const starts = steps.map(({ from }) => Date.parse(from));
  const select = (a, b) => setQuery({
    from: iso(starts[Math.min(a, b)]), to: iso(starts[Math.max(a, b)] + zoom.step_ms),
  });
  const zoomIn = (index) => {
    const near = ZOOMS[level - 1];
    if (!near) return select(index, index);
    return setQuery({ for: near.for, at: iso(align(starts[index], near)), from: '', to: '' });
  };
  const onWheel = (event) => {
    event.preventDefault();
    const next = ZOOMS[level + Math.sign(event.deltaY)];
    if (next) setQuery({ for: next.for, at: iso(align(at, next)) }, { replace: true });
  };
  useEffect(() => {
    const element = box.current;
    element.addEventListener('wheel', onWheel, { passive: false });
    return () => element.removeEventListener('wheel', onWheel);
  });
  const onKey = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      const next = Math.min(steps.length - 1, Math.max(0, focus + step));
      setFocus(next);
      box.current.querySelectorAll('button')[next].focus();
      if (event.shiftKey) {
        const first = drag ? drag[0] : focus;
        setDrag([first, next]);
        select(first, next);
      } else setDrag(null);
    }
  };
  const finish = (index) => {
    if (!drag) return;
    if (drag[0] === index) zoomIn(index);
    else select(drag[0], index);
    setDrag(null);
  };
  const inDrag = (index) => drag && index >= Math.min(...drag) && index <= Math.max(...drag);
  return html`<div class="timeline" ref=${box} role="group" onKeyDown=${onKey}
    aria-label="Expected fires. Arrow keys move, Enter zooms in, Shift selects a range.">
    ${steps.map(({ from, fires }, index) => {
      const when = `${hourName(starts[index])} ${zoneName(starts[index])}`;
      const label = `${when}, ${plural(fires, 'fire')}`;
      const parts = targets.filter((one) => one.fires[index])
        .map((one) => `${one.target} ${count(one.fires[index])}`);
      return html`<button type="button" key=${from} aria-label=${label}
        title=${[label, ...parts].join('\n')}
        class=${inDrag(index) ? 'in' : ''} tabindex=${index === focus ? 0 : -1}
        onFocus=${() => setFocus(index)}
        onClick=${(event) => event.detail === 0 && zoomIn(index)}
        onPointerDown=${() => setDrag([index, index])}
        onPointerEnter=${(event) => event.buttons === 1 && drag && setDrag([drag[0], index])}
        onPointerUp=${() => finish(index)}>
        <svg viewBox=${`0 0 10 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <${Stack} of=${pieces(index, fires, targets)} top=${top} /></svg></button>`;
    })}</div>`;
}

function Ticks({ starts, zoom }) {
  const name = (ms) => (zoom.length > DAY ? hourName(ms).slice(0, 14).replace(/\d{4}-/, '')
    : hourName(ms).slice(-5));
  return html`<div class="ticks num" aria-hidden="true">${starts
    .filter((_, at) => at % zoom.tick === 0).map((ms) => html`<span>${name(ms)}</span>`)}</div>`;
}

function Herds({ ns, steps, zoom }) {
  const total = steps.reduce((sum, { fires }) => sum + fires, 0);
  const found = steps.filter(({ fires }) => fires > 1 && fires > (total / steps.length) * HERD)
    .sort((a, b) => b.fires - a.fires).slice(0, HERDS_MAX);
  if (!found.length) return null;
  return html`<p>Herds: ${found.map(({ from, fires }) => {
    const at = Date.parse(from);
    return html`<a class="chip" href=${href([ns, 'tasks'],
      { from: iso(at), to: iso(at + zoom.step_ms) })}>${count(fires)} at ${hourName(at)}</a> `;
  })}</p>`;
}

// The range that was selected, and what can be done to its tasks.
function Selected({ ns, from, to }) {
  const start = async (verb) => {
    const started = await bulkMatching(ns, verb, { from, to });
    if (started?.id) go([ns, 'operations'], { id: started.id });
  };
  return html`<p class="bulk">Selected: ${inZone(from)} to ${inZone(to)}
    <a class="button primary" href=${href([ns, 'tasks'], { from, to })}>Open its tasks</a>
    ${may(ns, 'operate') && ['Shift', 'Spread', 'Pause'].map((name) => html`
      <${Button} onClick=${() => start(name.toLowerCase())}>${name}</${Button}>`)}</p>`;
}

export default function Timeline({ ns, query }) {
  useSignal(zone);
  const level = Math.max(0, ZOOMS.findIndex((zoom) => zoom.for === (query.for ?? '24h')));
  const zoom = ZOOMS[level];
  const at = Date.parse(query.at) || align(now(), zoom);
  const found = useLoad((stop) => get([ns, 'forecast'],
    { at: iso(at), for: zoom.for, step: zoom.step }, stop), [ns, iso(at), zoom.for]);
  // The sums are there at once; the parts want tasks to be read.
  const divided = useLoad((stop) => get([ns, 'forecast'],
    { at: iso(at), for: zoom.for, step: zoom.step, by: 'target' }, stop), [ns, iso(at), zoom.for]);
  const { targets: all = [], complete_until: dividedUntil } = divided.data ?? {};
  const targets = all.slice(0, INKS);
  const move = (steps) => setQuery({ at: iso(at + steps * zoom.length), from: '', to: '' });
  return html`<div class="title"><h1>Timeline</h1><span class="dim">${inZone(at)},${' '}
      ${zoom.name}, a bar is ${span(zoom.step_ms)}</span></div>
    <div class="bulk" role="group" aria-label="Zoom">
      <${Button} disabled=${at <= now()} onClick=${() => move(-1)}>Earlier</${Button}>
      ${ZOOMS.map((one) => html`<${Button} aria-pressed=${one === zoom} onClick=${() =>
        setQuery({ for: one.for, at: query.at ? iso(align(at, one)) : '', from: '', to: '' })}>
        ${one.name}</${Button}>`)}
      <${Button} onClick=${() => move(1)}>Later</${Button}>
      ${query.at && html`<${Button} onClick=${() => setQuery({ at: '', from: '', to: '' })}>Now
        </${Button}>`}</div>
    <${Loaded} from=${found}>${({ steps, complete, complete_until: until }) => {
      const total = steps.reduce((sum, { fires }) => sum + fires, 0);
      const top = Math.max(...steps.map(({ fires }) => fires));
      return html`<p>${plural(total, 'fire')} expected, at most ${compact(top)} in${' '}
          ${span(zoom.step_ms)}.
          ${!complete && ` Counted up to ${inZone(until)}.`}</p>
        <${Bars} key=${`${at}${zoom.for}`} steps=${steps} targets=${targets} zoom=${zoom}
          level=${level} at=${at} />
        <${Ticks} starts=${steps.map(({ from }) => Date.parse(from))} zoom=${zoom} />
        ${targets.length > 0 && html`<${Legend} targets=${targets} until=${dividedUntil} />`}
        ${total === 0 && html`<${Empty}>No fire is expected in this time.</${Empty}>`}
        <${Herds} ns=${ns} steps=${steps} zoom=${zoom} />`;
    }}</${Loaded}>
    ${query.from && html`<${Selected} ns=${ns} from=${query.from} to=${query.to} />`}`;
}
