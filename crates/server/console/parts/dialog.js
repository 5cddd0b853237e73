// Questions before an action. They say what happens and to how many; more than 1,000 want the
// number typed. Answers come as promises: `null` if the user leaves.

import { html, useRef, useState } from '../vendor/preact-htm.js';
import { signal, useSignal } from './signal.js';
import { Button, Field, ProblemBox, useDialog } from './ui.js';
import { count } from './words.js';

// From here on a slip would be costly.
const TYPED_FROM = 1000;

const asked = signal(null);

// `fields`: inputs of the dialog, each `{name, label, value, hint}`. `act` does the work with
// their values; its error is shown in the dialog.
export const ask = (question) =>
  new Promise((done) => (asked.value = { ...question, done, id: Math.random() }));

export function Dialogs() {
  const question = useSignal(asked);
  return question && html`<${Question} key=${question.id} ...${question} />`;
}

function Question({ title, text, verb, danger, number, fields = [], act, done }) {
  const ref = useRef();
  const initial = Object.fromEntries(fields.map(({ name, value }) => [name, value ?? '']));
  const [values, set] = useState(initial);
  const [typed, setTyped] = useState('');
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  useDialog(ref);
  const close = (result) => {
    asked.value = null;
    done(result);
  };
  const wantsNumber = danger && number > TYPED_FROM;
  const isReady = !busy && (!wantsNumber || typed.replace(/[,\s]/g, '') === String(number));
  const submit = async (event) => {
    event.preventDefault();
    if (!isReady) return;
    setBusy(true);
    try {
      close((await act(values)) ?? true);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  const unplaced = problem && !fields.some(({ name }) => name === problem.field) && problem;
  return html`<dialog ref=${ref} aria-labelledby="question" onClose=${() => close(null)}>
    <form method="dialog" onSubmit=${submit}>
      <h2 id="question">${title}</h2>
      ${text && html`<p>${text}</p>`}
      ${fields.map(({ name, label, hint }) => html`<${Field} label=${label} hint=${hint}
        problem=${problem?.field === name && problem.message}>
        <input value=${values[name]} spellcheck="false"
          onInput=${(e) => set({ ...values, [name]: e.target.value })} /></${Field}>`)}
      ${wantsNumber && html`<${Field} label=${`Type ${count(number)} to confirm`}>
        <input value=${typed} inputmode="numeric" onInput=${(e) => setTyped(e.target.value)} />
      </${Field}>`}
      <${ProblemBox} of=${unplaced} />
      <div class="actions">
        <${Button} onClick=${() => ref.current.close()}>Keep as it is</${Button}>
        <button type="submit" class=${danger ? 'danger' : 'primary'} disabled=${!isReady}>
          ${verb}</button>
      </div>
    </form></dialog>`;
}
