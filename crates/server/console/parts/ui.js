// Small components that all views use: icons, states, buttons, boxes, and text that can be copied.

import { html, useEffect, useLayoutEffect, useReducer, useState } from '../vendor/preact-htm.js';
import { refreshes } from './session.js';
import { signal, useSignal } from './signal.js';

// Paths on a grid of 16.
const ICONS = {
  scheduled: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 3v3.2l2.2 1.3',
  firing: 'M9 1.5 3.5 9H8l-1 5.5L12.5 7H8z',
  paused: 'M5.5 3v10M10.5 3v10',
  done: 'M3 8.5 6.5 12 13 4.5',
  dead: 'M4 4l8 8M12 4l-8 8',
  cancelled: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM3.8 3.8l8.4 8.4',
  skipped: 'M4 4l4 4-4 4M9 4l4 4-4 4',
  warning: 'M8 2 1.5 13.5h13zM8 6.5v3.2M8 11.5v.3',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zm3.3 7.8L14 14',
  refresh: 'M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  home: 'M2.5 7.5 8 2.5l5.5 5V13.5h-4v-4h-3v4h-4z',
  overview: 'M2.5 2.5h4v4h-4zM9.5 2.5h4v4h-4zM2.5 9.5h4v4h-4zM9.5 9.5h4v4h-4z',
  tasks: 'M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.5M2.5 8h.5M2.5 12h.5',
  timeline: 'M2.5 13.5v-4M6 13.5v-9M9.5 13.5v-6M13 13.5v-11',
  schedules: 'M2.5 3.5h11v10h-11zM2.5 6.5h11M5.5 2v3M10.5 2v3',
  watches: 'M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 6.2v3.6',
  queues: 'M2 4.5h12M2 8h12M2 11.5h7',
  alarms: 'M4 11.5V7.5a4 4 0 0 1 8 0v4l1.2 1H2.8zM7 14h2',
  operations: 'M3 3.5h6M3 8h10M3 12.5h4M11 2v3M6 6.5v3M9 11v3',
  cluster: 'M8 2.5v4M8 6.5 3.5 12M8 6.5l4.5 5.5M3 12h1M12 12h1M7.5 2.5h1',
  connections: 'M6 2v4M10 2v4M4 6h8v2a4 4 0 0 1-8 0zM8 12v2.5',
  help: 'M6 6a2 2 0 1 1 2.7 1.9C8.2 8.2 8 8.6 8 9.5M8 12v.3',
};
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
  <path d=${ICONS[name] ?? ICONS.scheduled} /></svg>`;

const STATE_ICONS = {
  failed: 'dead', refused: 'dead', expired: 'dead', stopped: 'cancelled', replaced: 'skipped',
  acked: 'done', ok: 'done', raised: 'warning', running: 'firing', waiting: 'scheduled',
  alive: 'done', silent: 'warning', gone: 'dead',
};
// A state is an icon and a word; the colour only repeats it.
export const State = ({ of, text }) => html`<span class=${`state ${of}`}>
  <${Icon} name=${STATE_ICONS[of] ?? of} />${text ?? of}</span>`;

export const Button = ({ icon, kind = '', children, ...rest }) => html`
  <button type="button" class=${kind} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}</button>`;

export const Panel = ({ title, side, children, id }) => html`
  <section class="panel" aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2>${side && html`<div class="side">${side}</div>`}</header>
    ${children}
  </section>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const ProblemBox = ({ of }) => of && html`<div class="problem" role="alert">
  <${Icon} name="warning" /><div><strong>${of.title ?? 'Error'}</strong> ${of.message}</div></div>`;

// Shows what was loaded, what went wrong, or that it loads.
export function Loaded({ from, children }) {
  if (from.data !== undefined) {
    return html`<${ProblemBox} of=${from.error} />${children(from.data)}`;
  }
  if (from.error) return html`<${ProblemBox} of=${from.error} />`;
  return html`<p class="empty">Loading…</p>`;
}

// Loads data when `inputs` change, when views are refreshed, and each `every` milliseconds while
// the page is visible. What was loaded stays until the next answer.
export function useLoad(load, inputs, { every } = {}) {
  const [state, set] = useState({});
  const [turn, reload] = useReducer((n) => n + 1, 0);
  const refreshed = useSignal(refreshes);
  useEffect(() => {
    const stop = new AbortController();
    load(stop.signal).then(
      (data) => stop.signal.aborted || set({ data, turn }),
      (error) => stop.signal.aborted || set((old) => ({ data: old.data, error, turn })),
    );
    return () => stop.abort();
  }, [...inputs, turn, refreshed]);
  useEffect(() => {
    if (!every) return undefined;
    const timer = setInterval(() => document.hidden || reload(), every);
    return () => clearInterval(timer);
  }, [every]);
  return { ...state, reload };
}

// A component whose module is loaded when it is first shown.
export function Lazy({ load, ...props }) {
  const [state, set] = useState({});
  useEffect(() => {
    load().then((module) => set({ Part: module.default }), () => set({ failed: true }));
  }, [load]);
  if (state.Part) return html`<${state.Part} ...${props} />`;
  // After an upgrade of the broker the files of this page are gone.
  return state.failed && html`<p class="empty">The console has changed.${' '}
    <${Button} onClick=${() => location.reload()}>Reload the page</${Button}></p>`;
}

// Shows that a view has stopped, and the way on, when drawing it throws. The rest of the page
// stays. Preact calls the function as a method of its component, and keeps the error there.
export function Boundary({ children }) {
  const error = this.state?.error;
  if (!error) return children;
  return html`<h1>This view has stopped</h1>
    <${ProblemBox} of=${{ title: 'Error in the console:', message: String(error) }} />
    <p class="bulk"><${Button} kind="primary" onClick=${() => this.setState({ error: null })}>
      Try again</${Button}>
      <${Button} onClick=${() => location.reload()}>Reload the page</${Button}>
      <a class="button" href="#/">Namespaces</a></p>`;
}
Boundary.getDerivedStateFromError = (error) => ({ error });

// What is said to users who do not see it: also read by screen readers.
const notice = signal(null);
let clearing;
export function say(text, kind = 'ok') {
  clearTimeout(clearing);
  notice.value = { text, kind };
  clearing = setTimeout(() => (notice.value = null), 8000);
}
export function Notice() {
  const shown = useSignal(notice);
  return html`<div class=${`notice ${shown?.kind ?? ''}`} role="status">${shown?.text}</div>`;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain HTTP there is no clipboard: copy a selection.
    const area = document.createElement('textarea');
    area.value = text;
    (document.querySelector('dialog[open]') ?? document.body).append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  say('Copied.');
}
export const Copy = ({ text, label = 'Copy' }) => html`
  <${Button} kind="quiet" icon="copy" aria-label=${label} title=${label}
    onClick=${() => copy(text)} />`;

export function Field({ label, hint, problem, children }) {
  return html`<label class=${`field ${problem ? 'bad' : ''}`}><span>${label}</span>${children}
    ${problem ? html`<em role="alert">${problem}</em>` : hint && html`<small>${hint}</small>`}
  </label>`;
}

export const Select = ({ options, value, onPick, ...rest }) => html`
  <select value=${value} onChange=${(e) => onPick(e.target.value)} ...${rest}>
    ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}
    </option>`)}</select>`;

// A share from 0 to 1 as a bar; the number is beside it.
export const Share = ({ of }) => html`<svg class="left" viewBox="0 0 100 8" aria-hidden="true"
  preserveAspectRatio="none"><rect class="rail" width="100" height="8" />
  <rect class="fill" width=${of * 100} height="8" /></svg>`;

// A list of names and values.
export const Facts = ({ of }) => html`<dl class="facts">${of.filter(Boolean).map(([name, value]) =>
  html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export function useDialog(ref) {
  useLayoutEffect(() => {
    ref.current.showModal();
  }, []);
}
