// Charts over time, by uPlot, and bars, by SVG. Each is a figure with its numbers as text. uPlot
// paints on a canvas, which does not inherit colours: they are read from the page, again when the
// scheme changes.

import { html, useEffect, useRef } from '../vendor/preact-htm.js';
import { scheme } from './scheme.js';
import { useSignal } from './signal.js';
import { civil, clock, zone } from './time.js';
import { compact, count, lag } from './words.js';

const HEIGHT = 160;

function colour(name) {
  const probe = document.createElement('i');
  probe.className = `ink ${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// `series`: `{name, ink, values}`; `times` in milliseconds; `log`: a logarithmic axis of durations.
export function Chart({ times, series, log, label }) {
  const ref = useRef();
  const drawn = useSignal(scheme);
  useSignal(zone);
  useEffect(() => {
    let plot;
    let gone = false;
    let observer;
    const box = ref.current;
    import('../vendor/uplot.js').then(({ default: UPlot }) => {
      if (gone) return;
      const axis = { stroke: colour('dim'), grid: { stroke: colour('line'), width: 1 },
        ticks: { show: false }, font: '11px system-ui' };
      const day = times.at(-1) - times[0] > 86_400_000;
      const name = (s) => (day ? clock(s * 1000).slice(5, 10) : clock(s * 1000).slice(11, 16));
      plot = new UPlot({
        width: box.clientWidth, height: HEIGHT, legend: { show: false },
        cursor: { drag: { x: false, y: false }, y: false },
        scales: { x: {}, y: log ? { distr: 3 } : { range: (_, low, high) => [0, high || 1] } },
        axes: [
          { ...axis, size: 24, values: (_, ticks) => ticks.map(name) },
          { ...axis, size: 46,
            values: (_, ticks) => ticks.map((n) => (n == null ? '' : log ? lag(n) : compact(n))) },
        ],
        series: [{}, ...series.map(({ ink }) => ({
          stroke: colour(ink), width: 1.5, points: { show: false }, spanGaps: false,
        }))],
      }, [times.map((ms) => ms / 1000), ...series.map(({ values }) => values)], box);
      observer = new ResizeObserver(() =>
        plot.setSize({ width: box.clientWidth, height: HEIGHT }));
      observer.observe(box);
    });
    return () => {
      gone = true;
      observer?.disconnect();
      plot?.destroy();
    };
  }, [times, series, drawn, zone.value]);
  const last = ({ values }) => values.findLast((n) => n != null);
  return html`<figure class="chart">
    <div class="plot" ref=${ref} role="img" aria-label=${label}></div>
    <figcaption>${series.map((one) => html`<span class="key"><i class=${`ink ${one.ink}`}></i>
      ${one.name} <b class="num">${log ? lag(last(one)) : count(last(one) ?? 0)}</b></span>`)}
    </figcaption></figure>`;
}

// A line of some counts, without axes.
export function Sparkline({ values, label }) {
  const top = Math.max(1, ...values);
  const points = values.map((n, at) => `${at},${(20 - (n / top) * 18).toFixed(1)}`).join(' ');
  return html`<svg class="spark" viewBox=${`0 0 ${values.length - 1} 21`} role="img"
    preserveAspectRatio="none" aria-label=${label}><polyline points=${points} /></svg>`;
}

// How many fires had which lag. `bounds` are the upper ends of all buckets but the last.
export function LagHistogram({ bounds, counts, marks }) {
  const first = counts.findIndex(Boolean);
  if (first < 0) return html`<p class="empty">No fire in this time.</p>`;
  const from = Math.max(0, first - 1);
  const to = Math.min(counts.length, counts.findLastIndex(Boolean) + 2);
  const shown = counts.slice(from, to);
  const top = Math.max(...shown);
  const total = counts.reduce((sum, n) => sum + n, 0);
  const name = (at) => (at < bounds.length ? `≤ ${lag(bounds[at])}` : `> ${lag(bounds.at(-1))}`);
  // A mark belongs to the first bucket whose bound is not below it.
  const marked = (at) => Object.entries(marks ?? {}).filter(([, ms]) => {
    const bucket = bounds.findIndex((bound) => ms <= bound);
    return (bucket < 0 ? bounds.length : bucket) === at;
  });
  return html`<div class="scroll"><table class="bars"><caption class="unseen">Lag of fires</caption>
    <thead class="unseen"><tr><th>Lag</th><th>Share</th><th>Fires</th><th>Percentiles</th></tr>
    </thead><tbody>${shown.map((n, index) => html`<tr>
      <th scope="row" class="num">${name(from + index)}</th>
      <td class="bar"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect class="fill" width=${Math.max(n ? 0.6 : 0, (n / top) * 100)} height="8" /></svg></td>
      <td class="num">${count(n)} <small>${((n / total) * 100).toFixed(1)} %</small></td>
      <td>${marked(from + index).map(([mark, ms]) => html`<span class="mark">${mark}${' '}
        <b class="num">${lag(ms)}</b></span>`)}</td></tr>`)}</tbody></table></div>`;
}

export const hourName = (ms) => {
  const { weekday, day, hour, minute } = civil(ms);
  return `${weekday} ${day} ${String(hour).padStart(2, '0')}:${minute}`;
};
