// The keys of the page, in a dialog (`?`).

import { html, useRef } from '../vendor/preact-htm.js';
import { Button, Facts, useDialog } from '../parts/ui.js';

const KEYS = [
  ['Ctrl K', 'Search keys, ids and namespaces'],
  ['/', 'Filter the list'],
  ['j k', 'Next and previous row; Enter opens it'],
  ['x', 'Select the row'],
  ['r', 'Refresh'],
  ['?', 'Show the keys'],
];

export const KeyList = () => html`<${Facts} of=${KEYS.map(([key, text]) =>
  [html`<kbd>${key}</kbd>`, text])} />`;

export default function Keys({ close }) {
  const dialog = useRef();
  useDialog(dialog);
  return html`<dialog ref=${dialog} aria-labelledby="keys-title" onClose=${close}>
    <h2 id="keys-title">Keys</h2><${KeyList} />
    <div class="actions"><${Button} onClick=${() => dialog.current.close()}>Close</${Button}></div>
  </dialog>`;
}
