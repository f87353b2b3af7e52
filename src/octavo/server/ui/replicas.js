// Of a cluster: its replicas, with state and load, and the way to each one's map. A server alone has none.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { call } from './api.js';
import { number } from './requests.js';

const LOOK_MS = 2000;

const useCluster = () => {
  const [cluster, setCluster] = useState(null);
  useEffect(() => {
    let isOver = false;
    const look = async () => {
      // A tenant that is no operator may not ask: the panel names the replica of the map alone.
      if (!document.hidden) setCluster(await call('GET', '/cluster').catch(() => null));
      if (!isOver) setTimeout(look, LOOK_MS);
    };
    look();
    return () => {
      isOver = true;
    };
  }, []);
  return cluster;
};

// `shown`: the name of the replica whose map the page has.
export function Replicas({ shown }) {
  const cluster = useCluster();
  const rows = cluster ? cluster.replicas : [];
  return html`<section class="panel" id="replicas" aria-labelledby="replicas-title">
    <h2 id="replicas-title">Replicas <small>this map is of ${shown}</small></h2>
    ${rows.length > 0 && html`<div class="scroll short" tabindex="0" role="region" aria-label="Replicas"><table>
      <thead><tr><th>replica</th><th>state</th><th>node</th><th class="r">running</th><th class="r">waiting</th>
        <th class="r">predicted wait</th><th class="r">free blocks</th><th class="why">why</th></tr></thead>
      <tbody>${rows.map((row) => html`<${ReplicaRow} key=${row.id} row=${row} isShown=${row.name === shown} />`)}
      </tbody></table></div>`}
  </section>`;
}

function ReplicaRow({ row, isShown }) {
  const load = row.load || {};
  const told = (value) => (value === undefined ? '' : number(value));
  const state = row.load && load.is_draining ? 'draining' : row.load && load.is_full ? 'full' : row.state;
  return html`<tr class=${isShown ? 'selected' : ''}>
    <td>${isShown ? row.name : html`<a href=${`/ui?replica=${encodeURIComponent(row.name)}`}>${row.name}</a>`}</td>
    <td>${state}</td><td>${row.node}</td>
    <td class="r">${told(load.num_running)}</td><td class="r">${told(load.num_waiting)}</td>
    <td class="r">${row.wait_ms === undefined ? '' : `${number(Math.round(row.wait_ms))} ms`}</td>
    <td class="r">${row.load ? `${told(load.free_blocks)} of ${told(load.num_blocks)}` : ''}</td>
    <td class="why">${row.reason}</td></tr>`;
}
