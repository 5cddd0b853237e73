// The forecast from this hour on as a table: a row per day, a column per hour, in the zone of the
// page. The whole table is one tab stop; arrow keys move in it. A cell opens the tasks of its hour.

import { html, useRef, useState } from '../vendor/preact-htm.js';
import { href } from './route.js';
import { civil, iso, zoneName } from './time.js';
import { compact, count, plural } from './words.js';

const HOURS = [...Array(24).keys()];
const HOUR_MS = 3_600_000;
const LEVELS = 5;
const MOVES = {
  ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
};

// Days with their hours. A day with a clock change has an hour twice, which is one cell, or not.
function byDay(steps) {
  const days = new Map();
  for (const { from, fires } of steps) {
    const at = Date.parse(from);
    const { day, weekday, hour } = civil(at);
    if (!days.has(day)) days.set(day, { day, weekday, hours: [] });
    const hours = days.get(day).hours;
    hours[hour] ??= { at, to: at, fires: 0 };
    hours[hour].fires += fires;
    hours[hour].to = at + HOUR_MS;
  }
  return [...days.values()];
}

// Levels grow with the root: one herd does not make all other hours look empty.
const level = (n, top) => Math.ceil(Math.sqrt(n / top) * LEVELS);

export function HeatMap({ ns, steps }) {
  const days = byDay(steps).slice(0, 7);
  const top = Math.max(1, ...days.flatMap(({ hours }) => hours.map((cell) => cell?.fires ?? 0)));
  const [focus, setFocus] = useState([0, days[0]?.hours.findIndex(Boolean) ?? 0]);
  const table = useRef();
  const move = (event) => {
    const step = MOVES[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = [focus[0] + step[0], focus[1] + step[1]];
    const link = table.current.querySelector(`[data-cell="${row}-${column}"]`);
    if (!link) return;
    setFocus([row, column]);
    link.focus();
  };
  return html`<div class="scroll"><table class="heat" ref=${table} onKeyDown=${move}>
    <caption>Expected fires per hour, ${zoneName()}. An hour opens its tasks.</caption>
    <thead><tr><th scope="col"><span class="unseen">Day</span></th>
      ${HOURS.map((hour) => html`<th scope="col" class="num">
        ${String(hour).padStart(2, '0')}</th>`)}
      <th scope="col">Sum</th></tr></thead>
    <tbody>${days.map(({ day, weekday, hours }, row) => html`<tr>
      <th scope="row"><span class="num">${weekday} ${day.slice(5)}</span></th>
      ${HOURS.map((hour) => {
        const cell = hours[hour];
        if (!cell) return html`<td class="h0"><span class="unseen">none</span></td>`;
        const query = { from: iso(cell.at), to: iso(cell.to) };
        const shown = cell.fires ? compact(cell.fires) : '·';
        const label = `${weekday} ${day} ${hour}:00, ${shown} (${plural(cell.fires, 'fire')})`;
        const here = focus[0] === row && focus[1] === hour;
        return html`<td class=${`h${level(cell.fires, top)}`}>
          <a href=${href([ns, 'tasks'], query)} aria-label=${label} title=${label}
            data-cell=${`${row}-${hour}`} data-fires=${cell.fires}
            tabindex=${here ? 0 : -1} onFocus=${() => setFocus([row, hour])}>
            ${shown}</a></td>`;
      })}
      <td class="num sum">${count(hours.reduce((sum, cell) => sum + (cell?.fires ?? 0), 0))}</td>
    </tr>`)}</tbody></table></div>`;
}
