// Who uses the page, and what the token may do. `session` is `null` until the broker has answered,
// `{signIn: true}` if it wants a token, and its answer to `whoami` otherwise. While the broker does
// not answer, it is asked again; then every view loads again.

import { connection, get, refused, token } from './api.js';
import { signal } from './signal.js';
import { setClock } from './time.js';

const RETRY_MS = 1000;

export const session = signal(null);
// Counts up when views should load again.
export const refreshes = signal(0);
export const refresh = () => (refreshes.value += 1);

export async function ask() {
  try {
    const who = await get(['whoami']);
    setClock(who.time);
    session.value = who;
    connection.value = 'ok';
  } catch (problem) {
    if (problem.status === 401) {
      connection.value = 'ok';
      session.value = { signIn: true, refused: Boolean(token.get()) };
      token.forget();
    } else {
      connection.value = 'lost';
      retry();
    }
  }
}

let waiting;
function retry() {
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    await ask();
    if (connection.value === 'ok') refresh();
  }, RETRY_MS);
}

connection.subscribe((state) => state === 'lost' && retry());
// A token that was valid and is no longer.
refused.subscribe(() => session.value && !session.value.signIn && ask());

export function signOut() {
  token.forget();
  session.value = null;
  ask();
}

// Whether the token has one of the rights in a namespace.
export function may(ns, ...rights) {
  const who = session.value;
  if (!who || who.signIn) return false;
  if (!who.tokens || who.admin) return true;
  const own = who.namespaces.find((one) => one.name === ns)?.rights ?? [];
  return rights.some((right) => own.includes(right));
}
export const isAdmin = () => !session.value.tokens || session.value.admin;
