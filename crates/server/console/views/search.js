// Search by key, id, prefix or namespace, from everywhere (Ctrl K).

import { html, useEffect, useRef, useState } from '../vendor/preact-htm.js';
import { get } from '../parts/api.js';
import { href, taskHref } from '../parts/route.js';
import { isAdmin, session } from '../parts/session.js';
import { State, useDialog } from '../parts/ui.js';

const TYPING_MS = 150;
const SHOWN = 8;
// Read for each search, so that the task with exactly this key is likely among them.
const READ = 100;
// Without a namespace, the key is looked up in so many.
const NAMESPACES_MAX = 10;

async function namespaces(stop) {
  if (!isAdmin()) return session.value.namespaces.map(({ name }) => name);
  return (await get(['namespaces'], { limit: 1000 }, stop)).namespaces.map(({ name }) => name);
}

async function tasksOf(ns, text, stop) {
  const calls = [get([ns, 'tasks'], { key_prefix: text, limit: READ }, stop)];
  // Anything else is no id, and asking for it would only be a 404.
  if (/^[0-9a-z]{26}$/.test(text)) calls.push(get([ns, 'tasks', text], {}, stop));
  const [listed, named] = await Promise.allSettled(calls);
  const found = [...(named?.value ? [named.value] : []), ...(listed.value?.tasks ?? [])];
  const unique = new Map(found.map((task) => [task.id, task]));
  const isExact = (task) => task.key === text || task.id === text;
  const tasks = [...unique.values()].sort((a, b) => isExact(b) - isExact(a));
  return tasks.slice(0, SHOWN).map((task) => ({
    link: taskHref(ns, task), text: task.key ?? task.id, ns, state: task.state,
  }));
}

async function find(here, text, stop) {
  const all = await namespaces(stop);
  const matching = all.filter((name) => name.includes(text)).slice(0, SHOWN);
  const searched = here ? [here] : all.slice(0, NAMESPACES_MAX);
  const tasks = await Promise.all(searched.map((ns) => tasksOf(ns, text, stop)));
  return [
    ...tasks.flat().slice(0, 2 * SHOWN),
    ...matching.map((name) => ({ link: href([name]), text: name, ns: 'namespace' })),
    ...(here ? [{ link: href([here, 'tasks', text]), text: `Open task ${text}`, ns: here },
      { link: href([here, 'tasks'], { key_prefix: text }), text: `All that begin with ${text}`,
        ns: here }] : []),
  ];
}

export default function Search({ ns, close }) {
  const dialog = useRef();
  const [text, setText] = useState('');
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  useDialog(dialog);
  useEffect(() => {
    if (!text.trim()) return setFound([]);
    const stop = new AbortController();
    const timer = setTimeout(() => find(ns, text.trim(), stop.signal).then((results) => {
      if (stop.signal.aborted) return;
      setFound(results);
      setAt(0);
    }, () => {}), TYPING_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text, ns]);
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt(Math.min(found.length - 1, Math.max(0, at + step)));
    } else if (event.key === 'Enter' && found[at]) {
      event.preventDefault();
      location.hash = found[at].link;
      close();
    }
  };
  return html`<dialog ref=${dialog} class="finder" aria-label="Search" onClose=${close}>
    <input role="combobox" aria-expanded="true" aria-controls="found" aria-autocomplete="list"
      aria-label="Search" aria-activedescendant=${found[at] ? `found-${at}` : undefined} autofocus
      placeholder=${ns ? `Key, beginning of a key, or id in ${ns}` : 'Key, id or namespace'}
      spellcheck="false" value=${text} onKeyDown=${onKey}
      onInput=${(event) => setText(event.target.value)} />
    <ul id="found" role="listbox" aria-label="Results">${found.map((one, index) => html`
      <li role="option" id=${`found-${index}`} aria-selected=${index === at} onClick=${() => {
          location.hash = one.link;
          close();
        }}><span class="cut">${one.text}</span>
        ${one.state && html`<${State} of=${one.state} />`}<small>${one.ns}</small></li>`)}</ul>
  </dialog>`;
}
