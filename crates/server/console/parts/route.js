// The address of a view. Path and parameters are in the fragment, so a link opens the same view
// below any path prefix of a proxy. Every part is encoded, because keys may have `/ ? # %`.

import { signal } from './signal.js';

// Pages that belong to no namespace begin with a character that no namespace can have.
export const CLUSTER = '~cluster';
export const HELP = '~help';
export const CONNECTIONS = '~connections';

const decode = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

function read() {
  const fragment = location.href.split('#').slice(1).join('#').replace(/^\//, '');
  const [path, ...rest] = fragment.split('?');
  const parts = path.split('/').filter(Boolean).map(decode);
  const query = Object.fromEntries(new URLSearchParams(rest.join('?')));
  return { parts, query, text: fragment };
}

export const route = signal(read());
addEventListener('hashchange', () => (route.value = read()));

const filled = (query) => Object.entries(query).filter(([, v]) => v != null && v !== '');

export function href(parts, query = {}) {
  const text = filled(query).map((pair) => pair.map(encodeURIComponent).join('=')).join('&');
  return `#/${parts.map(encodeURIComponent).join('/')}${text && `?${text}`}`;
}

export const go = (parts, query) => (location.hash = href(parts, query));

// Changes parameters of the present view. `replace` leaves no entry in the history: for what is
// typed letter by letter.
export function setQuery(changes, { replace } = {}) {
  const { parts, query } = route.value;
  const next = href(parts, { ...query, ...changes });
  if (!replace) return (location.hash = next);
  history.replaceState(null, '', next);
  route.value = read();
}

// How a task is addressed. A browser removes the path segments `.` and `..`, even encoded.
export const nameOf = (task) => (task.key && !/^\.\.?$/.test(task.key) ? task.key : task.id);
export const taskHref = (ns, task) => href([ns, 'tasks', nameOf(task)]);
