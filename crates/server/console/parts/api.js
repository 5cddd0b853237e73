// Calls of the public API, and the token that they carry. The token is kept in the tab, or on this
// device if the user wants that; there are no cookies. An answer that is not a success becomes a
// `Problem` with the text of the broker.

import { signal } from './signal.js';

const KEPT = 'punctual.token';
// Longer than any answer that does not wait on purpose.
const TIMEOUT_MS = 40_000;
const ROOT = new URL('.', location.href.split('#')[0]);

// Whether the broker answers: `ok`, or `lost` until it answers again (`session.js` tries).
export const connection = signal('ok');
// Counts up when the broker refuses the token.
export const refused = signal(0);

export const token = {
  get: () => sessionStorage.getItem(KEPT) ?? localStorage.getItem(KEPT),
  keep(secret, storage) {
    token.forget();
    storage.setItem(KEPT, secret);
  },
  forget() {
    sessionStorage.removeItem(KEPT);
    localStorage.removeItem(KEPT);
  },
};

class Problem extends Error {
  constructor({ status = 0, title = 'Error', detail = '', field, type = '' }) {
    super(detail || title);
    Object.assign(this, { status, title, detail, field, type });
  }
}

export const url = (parts, query = {}) => {
  const full = new URL(['v1', ...parts.map(encodeURIComponent)].join('/'), ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value != null && value !== '') full.searchParams.set(name, value);
  }
  return full;
};

export function open(address, { method = 'GET', body, headers = {}, signal: stop } = {}) {
  const secret = token.get();
  if (secret) headers = { ...headers, authorization: `Bearer ${secret}` };
  if (body !== undefined) headers = { ...headers, 'content-type': 'application/json' };
  return fetch(address, { method, body, headers, signal: stop, cache: 'no-store' });
}

async function request(address, options) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const stop = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  let answer;
  let text;
  try {
    answer = await open(address, { ...options, signal: stop });
    text = await answer.text();
  } catch (error) {
    if (options.signal?.aborted) throw error;
    connection.value = 'lost';
    throw new Problem({ title: 'No answer', detail: 'The broker does not answer.' });
  }
  if (answer.ok) return { text, status: answer.status };
  let problem = {};
  try {
    problem = JSON.parse(text);
  } catch {
    // A proxy may answer with something else.
  }
  if (answer.status === 401) refused.value += 1;
  if (/:(stopping|not-ready)$/.test(problem.type)) connection.value = 'lost';
  throw new Problem({ title: `Status ${answer.status}`, ...problem, status: answer.status });
}

// The text of an answer: numbers in it are exact, which parsed ones are not.
export const getText = async (parts, query, stop) =>
  (await request(url(parts, query), { signal: stop })).text;

export const get = async (parts, query, stop) => JSON.parse(await getText(parts, query, stop));

// `/readyz` and the OpenAPI document are beside `/v1`.
export const getRoot = async (path, stop) =>
  JSON.parse((await request(new URL(path, ROOT), { signal: stop })).text);

async function send(method, parts, body, headers) {
  const text = typeof body === 'string' || body === undefined ? body : JSON.stringify(body);
  const answer = await request(url(parts), { method, body: text, headers });
  return answer.text ? JSON.parse(answer.text) : null;
}
export const post = (parts, body) => send('POST', parts, body);
export const put = (parts, body, headers) => send('PUT', parts, body, headers);
export const remove = (parts) => send('DELETE', parts);

export const broker = ROOT.origin + ROOT.pathname.replace(/\/$/, '');
