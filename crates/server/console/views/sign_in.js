// Asks for a token. It is kept in the tab, or on this device if the user wants that.

import { html, useState } from '../vendor/preact-htm.js';
import { token } from '../parts/api.js';
import { ask } from '../parts/session.js';
import { Field } from '../parts/ui.js';

export default function SignIn({ refused }) {
  const [secret, setSecret] = useState('');
  const [keep, setKeep] = useState(false);
  const submit = (event) => {
    event.preventDefault();
    if (!secret.trim()) return;
    token.keep(secret.trim(), keep ? localStorage : sessionStorage);
    ask();
  };
  return html`<main class="sign-in"><form onSubmit=${submit}>
    <h1>Sign in to Punctual</h1>
    <p>This broker wants a token: one of <code>--token</code> or <code>--admin-token</code>.</p>
    <input hidden autocomplete="username" value="token" />
    <${Field} label="Token" problem=${refused && 'The broker does not know this token.'}>
      <input type="password" autocomplete="current-password" autofocus value=${secret}
        onInput=${(event) => setSecret(event.target.value)} /></${Field}>
    <label class="tick"><input type="checkbox" checked=${keep}
      onChange=${(event) => setKeep(event.target.checked)} /> Keep it on this device</label>
    <div class="actions"><button type="submit" class="primary">Sign in</button></div>
  </form></main>`;
}
