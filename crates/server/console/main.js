// The entry of the console: the frame around all views, sign-in, keys, and which view an address
// opens. Views are in `views/`, what they share is in `parts/`.

import { html, render, useEffect, useState } from './vendor/preact-htm.js';
import { connection } from './parts/api.js';
import { Dialogs } from './parts/dialog.js';
import { follow, liveState, togglePause } from './parts/live.js';
import { CLUSTER, CONNECTIONS, HELP, href, route } from './parts/route.js';
import { SCHEMES, chosenScheme, setScheme } from './parts/scheme.js';
import { ask, isAdmin, may, refresh, session, signOut } from './parts/session.js';
import { useSignal } from './parts/signal.js';
import { ZONES, zone } from './parts/time.js';
import { Boundary, Button, Icon, Lazy, Notice, Select } from './parts/ui.js';

// The views of a namespace: the part of the address, the name, the icon, the module.
const VIEWS = [
  ['', 'Overview', 'overview', 'namespace'],
  ['tasks', 'Tasks', 'tasks', 'tasks'],
  ['timeline', 'Timeline', 'timeline', 'timeline'],
  ['schedules', 'Schedules', 'schedules', 'schedules'],
  ['watches', 'Watches', 'watches', 'watches'],
  ['dead', 'Dead letters', 'dead', 'dead'],
  ['queues', 'Targets', 'queues', 'queues'],
  ['alarms', 'Alarms', 'alarms', 'alarms'],
  ['operations', 'Operations', 'operations', 'operations'],
];

// Views are loaded when they are first shown. Each module exports its view as `default`.
const loads = new Map();
function View({ module, ...props }) {
  if (!loads.has(module)) loads.set(module, () => import(`./views/${module}.js`));
  return html`<${Lazy} key=${module} load=${loads.get(module)} ...${props} />`;
}

// The title of an address, and its view.
function choose({ parts, query }) {
  const [ns, part = '', name, action] = parts;
  const show = (title, module, props) => [title, html`<${View} module=${module} ...${props} />`];
  if (!ns) return show('Namespaces', 'home');
  if (ns === CLUSTER) return show('Cluster', 'cluster');
  if (ns === CONNECTIONS) return show('Connections', 'connections');
  if (ns === HELP) return show('Help', 'help');
  if (part === 'new') return show('New task', 'edit', { ns });
  if (part === 'tasks' && name !== undefined) {
    if (action === 'edit') return show(`Edit ${name}`, 'edit', { ns, name });
    if (action === 'copy') return show(`Copy ${name}`, 'edit', { ns, name, isCopy: true });
    return show(name, 'task', { ns, name });
  }
  const [, title, , module] = VIEWS.find(([own]) => own === part) ?? VIEWS[0];
  return show(title, module, { ns, query });
}

const KEY_ACTIONS = {
  '/': () => document.querySelector('[data-filter]')?.focus(),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  x: () => document.activeElement.closest('tr')?.querySelector('[type=checkbox]')?.click(),
  r: refresh,
};

// Moves the focus to the next row of a list.
function moveRow(step) {
  const rows = [...document.querySelectorAll('[data-row]')];
  const here = rows.findIndex((row) => row === document.activeElement);
  const next = here < 0 ? (step > 0 ? 0 : rows.length - 1) : here + step;
  rows[Math.min(rows.length - 1, Math.max(0, next))]?.focus();
}

function useKeys(setOpen) {
  useEffect(() => {
    const onKey = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault();
        return setOpen('search');
      }
      const isTyping = event.target.closest?.('input, textarea, select, dialog');
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return undefined;
      if (event.key === '?') return setOpen('keys');
      const act = KEY_ACTIONS[event.key];
      if (!act) return undefined;
      event.preventDefault();
      return act();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
}

function Sidebar({ ns, part }) {
  // On a narrow screen the views are one line, of which the present one is shown.
  useEffect(() => document.querySelector('nav [aria-current]')
    ?.scrollIntoView({ block: 'nearest', inline: 'center' }), [ns, part]);
  const item = (parts, icon, text, isHere) => html`<a href=${href(parts)}
    aria-current=${isHere ? 'page' : undefined}><${Icon} name=${icon} />${text}</a>`;
  return html`<nav aria-label="Views">
    ${item([], 'home', 'Namespaces', !ns)}
    ${ns && !ns.startsWith('~') && html`<h2>${ns}</h2>
      ${VIEWS.map(([own, text, icon]) =>
        item(own ? [ns, own] : [ns], icon, text, (part ?? '') === own))}`}
    <h2>Broker</h2>
    ${item([CLUSTER], 'cluster', 'Cluster', ns === CLUSTER)}
    ${isAdmin() && item([CONNECTIONS], 'connections', 'Connections', ns === CONNECTIONS)}
    ${item([HELP], 'help', 'Help', ns === HELP)}
  </nav>`;
}

function skip(event) {
  event.preventDefault();
  document.querySelector('main').focus();
}

const LIVE_WORDS = { on: 'Live', off: 'Not live', paused: 'Paused' };

function TopBar({ who, setOpen, title, ns }) {
  const state = useSignal(liveState);
  useSignal(zone);
  return html`<header class="top">
    <a class="skip" href=${location.hash} onClick=${skip}>Skip to content</a>
    <a class="brand" href="#/"><svg viewBox="0 0 32 32" aria-hidden="true"><circle cx="16" cy="16"
      r="11" /><path d="M16 9v7l5 3" /></svg>Punctual</a>
    <div class="where">${ns && !ns.startsWith('~') && html`<a href=${href([ns])}>${ns}</a>
      <span aria-hidden="true">/</span>`}<span>${title}</span></div>
    <${Button} kind="search" icon="search" onClick=${() => setOpen('search')}>
      Search <kbd>Ctrl K</kbd></${Button}>
    <${Button} kind=${`quiet live ${state}`} aria-pressed=${state === 'paused'}
      title="Pause or continue live figures" onClick=${togglePause}>
      <i aria-hidden="true"></i>${LIVE_WORDS[state]}</${Button}>
    <${Select} aria-label="Time zone" value=${zone.value}
      options=${ZONES.map((name) => [name, name])} onPick=${(name) => (zone.value = name)} />
    <${Select} aria-label="Colours" value=${chosenScheme()} options=${SCHEMES}
      onPick=${setScheme} />
    ${who.tokens && html`<${Button} onClick=${signOut}>Sign out</${Button}>`}
  </header>`;
}

function Frame({ who }) {
  const here = useSignal(route);
  const [opened, setOpen] = useState(null);
  useKeys(setOpen);
  const ns = here.parts[0];
  const [title, view] = choose(here);
  const isOwn = ns && !ns.startsWith('~');
  useEffect(() => {
    document.title = [title, isOwn && ns, 'Punctual'].filter(Boolean).join(' · ');
    setOpen(null);
  }, [title, ns, here.text]);
  useEffect(() => {
    if (isOwn) follow(may(ns, 'read') ? ns : null);
    else follow(isAdmin() ? '' : null);
  }, [ns, who]);
  useEffect(() => scrollTo(0, 0), [here.parts.join('/')]);
  return html`<${TopBar} who=${who} setOpen=${setOpen} title=${title} ns=${ns} />
    <${Sidebar} ns=${ns} part=${here.parts[1]} />
    <main tabindex="-1" key=${here.parts.join('/')}><${Boundary}>${view}</${Boundary}></main>
    ${opened === 'search' && html`<${View} module="search"
      ns=${isOwn ? ns : null} close=${() => setOpen(null)} />`}
    ${opened === 'keys' && html`<${View} module="keys"
      close=${() => setOpen(null)} />`}
    <${Dialogs} />`;
}

function App() {
  const who = useSignal(session);
  const state = useSignal(connection);
  const lost = state === 'lost' && html`<div class="lost" role="alert">
    The broker does not answer. Trying again every second.</div>`;
  if (!who) return lost || html`<p class="empty">Loading…</p>`;
  return html`${lost}${who.signIn ? html`<${View} module="sign_in" refused=${who.refused} />`
    : html`<${Frame} who=${who} />`}<${Notice} />`;
}

render(html`<${App} />`, document.getElementById('app'));
ask();
