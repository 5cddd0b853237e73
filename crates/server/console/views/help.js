// The first steps, with commands for this broker, the keys of the page, and the calls of the API.

import { html } from '../vendor/preact-htm.js';
import { getRoot } from '../parts/api.js';
import { session } from '../parts/session.js';
import FirstSteps from '../parts/steps.js';
import { Facts, Loaded, Panel, useLoad } from '../parts/ui.js';
import { KeyList } from './keys.js';

const METHODS = ['get', 'put', 'post', 'delete'];

function rightsOf(who) {
  if (!who.tokens) return 'none needed';
  if (who.admin) return 'admin';
  return who.namespaces.map(({ name, rights }) => `${name}: ${rights.join(', ')}`).join('; ');
}

export default function Help() {
  const document = useLoad((stop) => getRoot('openapi.json', stop), []);
  const who = session.value;
  return html`<h1>Help</h1>
    <${Panel} id="steps" title="First steps"><${FirstSteps} /></${Panel}>
    <div class="columns">
      <${Panel} id="broker" title="This broker"><${Facts} of=${[
        ['Address', who.broker], ['Cluster', who.cluster ?? 'none: one broker'],
        ['Store', who.store], ['Version', who.version], ['Token', rightsOf(who)],
      ]} /></${Panel}>
      <${Panel} id="keys" title="Keys"><${KeyList} /></${Panel}></div>
    <${Panel} id="calls" title="Calls of the API">
      <${Loaded} from=${document}>${({ paths }) => html`<div class="scroll"><table>
        <caption class="unseen">Calls of the API</caption>
        <thead><tr><th>Method</th><th>Path</th><th>Does</th></tr></thead>
        <tbody>${Object.entries(paths).flatMap(([path, verbs]) =>
          METHODS.filter((verb) => verbs[verb]).map((verb) => html`<tr>
            <td><code>${verb.toUpperCase()}</code></td><td><code>${path}</code></td>
            <td>${verbs[verb].summary}</td></tr>`))}</tbody></table></div>`}
      </${Loaded}></${Panel}>`;
}
