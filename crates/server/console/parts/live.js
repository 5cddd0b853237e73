// The live stream of a namespace, or of all for an admin: one message a second. It is read with
// `fetch`, because `EventSource` cannot send a token. A hidden page has no stream, so that idle
// tabs cost the broker nothing; a stream that ends is opened again.

import { open, url } from './api.js';
import { signal } from './signal.js';

const RETRY_MS = 2000;

// The latest message, with the namespace that it is about.
export const live = signal(null);
// `on`, `off` (not connected) or `paused` by the user.
export const liveState = signal('off');

let wanted = null;
let stream = null;

export function follow(ns) {
  if (wanted === ns) return;
  wanted = ns;
  live.value = null;
  restart();
}

export function togglePause() {
  liveState.value = liveState.value === 'paused' ? 'off' : 'paused';
  restart();
}

document.addEventListener('visibilitychange', restart);

function restart() {
  stream?.abort();
  stream = null;
  if (wanted === null || document.hidden || liveState.value === 'paused') return;
  stream = new AbortController();
  run(wanted, stream.signal);
}

async function run(ns, stop) {
  while (!stop.aborted) {
    try {
      const answer = await open(url(ns ? [ns, 'live'] : ['live']), { signal: stop });
      if (answer.ok) await read(answer.body, ns, stop);
    } catch {
      // The connection ended: the loop opens another.
    }
    if (stop.aborted) return;
    liveState.value = 'off';
    await new Promise((resume) => setTimeout(resume, RETRY_MS));
  }
}

async function read(body, ns, stop) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done || stop.aborted) return;
    const messages = (text + value).split('\n\n');
    text = messages.pop();
    const lines = messages.flatMap((message) => message.split('\n'));
    const data = lines.filter((line) => line.startsWith('data:')).pop();
    if (!data) continue;
    live.value = { ...JSON.parse(data.slice(5)), ns };
    liveState.value = 'on';
  }
}
