// Values of users, such as payloads and answers: shown as text, copied and downloaded.

import { html } from '../vendor/preact-htm.js';
import { indent } from './json.js';
import { Button, Copy } from './ui.js';

const SHOWN_MAX = 64 * 1024;

export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement('a'), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// A value of a user, always as text. Long ones are cut, and can be downloaded whole.
export function Value({ text, name, json }) {
  const cut = text.length > SHOWN_MAX;
  const shown = cut ? text.slice(0, SHOWN_MAX) : json ? indent(text) : text;
  const type = json ? 'application/json' : 'text/plain';
  return html`<div class="value">
    <pre tabindex="0" aria-label=${name}>${shown}</pre>
    <div class="side">
      ${cut && html`<span>the first 64 KB of ${Math.ceil(text.length / 1024)} KB</span>`}
      <${Copy} text=${text} label=${`Copy ${name}`} />
      ${cut && html`<${Button} onClick=${() => download(name, text, type)}>Download</${Button}>`}
    </div></div>`;
}
