// The panels: pins and sessions with their actions, tiers, tenants, events, and the replicas of a cluster.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { call } from './api.js';
import { ago } from './map.js';
import { FREE, keyOf } from './pool.js';
import { inBytes, number } from './requests.js';

const EVENTS_SHOWN = 100;
const POLL_MS = 2000; // of the replicas
const FAILURES = new Set(['preempted', 'failed', 'transfer_failed', 'memory_pressure', 'refused', 'timed_out']);

// A button for a request to the server. `question`: it asks for confirmation. `notify` gets the server's error.
export function ActionButton({ word, question, action, notify, hint }) {
  const [isAsking, setIsAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const go = async () => {
    setIsAsking(false);
    setBusy(true);
    try {
      await action();
    } catch (error) {
      notify(error.message);
    }
    setBusy(false);
  };
  if (isAsking) {
    return html`<span class="ask" role="alertdialog" aria-label=${question}>${question}
      ${' '}<button class="small danger" onClick=${go}>yes</button>
      ${' '}<button class="small" onClick=${() => setIsAsking(false)}>no</button></span>`;
  }
  const begin = question ? () => setIsAsking(true) : go;
  return html`<button class="small" disabled=${busy} title=${hint || ''} onClick=${begin}>
    ${busy ? `${word} …` : word}</button>`;
}

const Tenant = ({ name }) => (name ? html` <span class="tenant">${name}</span>` : null);

export function PinsAndSessions({ pool, select, notify }) {
  const pins = pool.parts.pins || [];
  const sessions = pool.parts.sessions || [];
  const isNone = !pins.length && !sessions.length;
  const common = { pool, select, notify };
  return html`<section class="panel" id="pins" aria-labelledby="pins-title">
    <h2 id="pins-title">Pins and sessions <small>${pins.length} pins, ${sessions.length} sessions</small></h2>
    ${isNone && html`<p class="empty">No pins and no sessions. A chat of the playground is a session: its blocks stay
      between its turns.</p>`}
    <div class="scroll short" tabindex="0" role="region" aria-label="Pins and sessions"><table><tbody>
      ${pins.map((pin) => html`<${PinRow} key=${`${pin.tenant}/${pin.name}`} pin=${pin} ...${common} />`)}
      ${sessions.map((one) => html`<${SessionRow} key=${one.id} session=${one} ...${common} />`)}
    </tbody></table></div>
  </section>`;
}

// The path of a pin or a session; an operator's has its tenant.
const pathTo = (pool, kind, name, tenant, verb = '') => {
  const query = pool.tenant === null && tenant ? `?tenant=${encodeURIComponent(tenant)}` : '';
  return `/v1/${kind}/${encodeURIComponent(name)}${verb}${query}`;
};

const left = (pool, expires) => `${number(Math.max(0, Math.round(expires - pool.now)))} s left`;

// Selects the holder with most blocks of those that pass `test`.
function selectLargest(pool, select, test) {
  const found = pool.tablesWhere(test).sort((a, b) => b.blocks.length - a.blocks.length);
  if (found.length) select(keyOf(found[0].row));
}

function PinRow({ pin, pool, select, notify }) {
  const isIt = (row) => row.kind === 'pin' && row.label === `pin ${pin.name}` && row.tenant === pin.tenant;
  return html`<tr>
    <td><button class="link" onClick=${() => selectLargest(pool, select, isIt)}>pin ${pin.name}</button>
      <${Tenant} name=${pin.tenant} /></td>
    <td>${pin.filling ? 'filling' : pin.strength}</td>
    <td class="r">${number(pin.held)} of ${number(pin.blocks)} blocks</td>
    <td>${pin.offloaded ? `${number(pin.offloaded)} offloaded` : ''}</td>
    <td>${left(pool, pin.expires)}</td>
    <td class="acts"><${ActionButton} word="unpin" question=${`Delete pin ${pin.name}?`} notify=${notify}
      action=${() => call('DELETE', pathTo(pool, 'kv/pins', pin.name, pin.tenant))} /></td></tr>`;
}

function SessionRow({ session, pool, select, notify }) {
  const { id, tenant, state, note } = session;
  const verb = state === 'suspended' ? 'resume' : 'suspend';
  const isIt = (row) => row.kind === 'session' && row.label.endsWith(id);
  return html`<tr>
    <td><button class="link" title=${id}
        onClick=${() => selectLargest(pool, select, isIt)}>session ${id.slice(0, 6)}</button>
      <${Tenant} name=${tenant} /></td>
    <td title=${note}>${state}${note ? ' (best effort)' : ''}</td>
    <td class="r">${number(session.held)} of ${number(session.blocks)} blocks</td>
    <td>${session.kept ? `${number(session.kept)} kept offloaded` : ''}</td>
    <td>${left(pool, session.expires)}</td>
    <td class="acts">
      <${ActionButton} word=${verb} notify=${notify}
        action=${() => call('POST', pathTo(pool, 'sessions', id, tenant, `/${verb}`))} />
      ${' '}<${ActionButton} word="delete" question="Delete this session?" notify=${notify}
        action=${() => call('DELETE', pathTo(pool, 'sessions', id, tenant))} /></td></tr>`;
}

export function Tiers({ pool }) {
  const { first_tokens: first, target, tier, pool: sizes } = pool.parts;
  const used = pool.blocks - pool.counts[FREE];
  const bytes = (blocks) => (sizes.bytes_per_block ? ` (${inBytes(blocks * sizes.bytes_per_block)})` : '');
  const slots = (taken, all) => `${number(taken)} of ${number(all)} slots${bytes(all)}`;
  return html`<section class="panel" id="tiers" aria-labelledby="tiers-title">
    <h2 id="tiers-title">Tiers</h2>
    ${pool.tenant !== null
      ? html`<p>You see the blocks that ${pool.tenant} holds. The state of the other
          ${' '}${number(pool.blocks - used)} blocks is hidden.</p>`
      : html`<${Bar} word="pool" used=${used} all=${pool.blocks}
          text=${`${number(used)} of ${number(pool.blocks)} blocks held or cached${bytes(pool.blocks)}`} />`}
    ${tier && tier.host_slots > 0 && html`<${Bar} word="host" used=${tier.in_host} all=${tier.host_slots}
      text=${slots(tier.in_host, tier.host_slots)} />`}
    ${tier && tier.slots > tier.host_slots && html`<${Bar} word="disk" used=${tier.found - tier.in_host}
      all=${tier.slots - tier.host_slots} text=${slots(tier.found - tier.in_host, tier.slots - tier.host_slots)} />`}
    ${tier && tier.cold > 0 && html`<${Bar} word="cold" used=${tier.cold} all=${tier.cold_max}
      text=${`${slots(tier.cold, tier.cold_max)}: running sequences read them there for each token` +
        (tier.cold_blocks_per_s ? `, ${inBytes(tier.cold_blocks_per_s * sizes.bytes_per_block)}/s` : '')} />`}
    ${first && html`<p class="quiet">Target: ${number(first.seconds * 1000)} ms to the first token; of ${' '}
      ${number(first.counted)} requests ${number(first.late)} were later, ${number(first.shed)} refused.</p>`}
    ${target && html`<p class="quiet">Target: ${number(target.seconds * 1000)} ms between two tokens; of
      ${' '}${number(target.gaps)} gaps ${number(target.missed)} were longer.</p>`}
    ${tier && html`<p class=${tier.failed ? 'wrong' : 'quiet'}>${describeTransfers(tier)}</p>`}
    ${pool.tenant === null && !tier && html`<p class="quiet">There is no offload tier: evicted blocks are computed
      again (--disk-cache FOLDER adds a disk tier).</p>`}
  </section>`;
}

const describeTransfers = (tier) =>
  `${number(tier.in_flight)} blocks in transfer; since the start ${number(tier.stored)} stored and ` +
  `${number(tier.loaded)} loaded${tier.failed ? `, ${number(tier.failed)} failed` : ''}.`;

const Bar = ({ word, used, all, text }) => html`<div class="bar"><span>${word}</span>
  <meter min="0" max=${Math.max(1, all)} value=${used} aria-label=${`${word}: ${text}`}></meter>
  <span class="quiet">${text}</span></div>`;

export function Tenants({ pool }) {
  const fields = ['guaranteed', 'maximum', 'held', 'cached', 'running', 'waiting'];
  const named = (pool.parts.tenants || []).filter((one) => one.name && fields.some((field) => one[field]));
  if (!named.length) return null;
  return html`<section class="panel" id="tenants" aria-labelledby="tenants-title"><h2 id="tenants-title">Tenants</h2>
    <div class="scroll short" tabindex="0" role="region" aria-label="Tenants"><table>
    <thead><tr><th>tenant</th><th class="r">holds</th><th class="r">guaranteed</th><th class="r">borrows</th>
      <th class="r">at most</th><th class="r">cached</th><th class="r">pinned</th><th class="r">running</th>
      <th class="r">waiting</th></tr></thead>
    <tbody>${named.map((one) => html`<${TenantRow} key=${one.name} one=${one} />`)}</tbody></table></div></section>`;
}

function TenantRow({ one }) {
  const borrowed = Math.max(0, one.held - one.guaranteed);
  const counts = [one.held, one.guaranteed, borrowed, one.maximum, one.cached, one.pinned, one.running, one.waiting];
  return html`<tr><td class="tenant">${one.name}</td>
    ${counts.map((count) => html`<td class="r">${count === null ? 'the pool' : number(count)}</td>`)}</tr>`;
}

export function Events({ pool }) {
  const [wanted, setWanted] = useState('');
  const [text, setText] = useState('');
  const kinds = [...new Set(pool.events.map((event) => event.kind))].sort();
  const isShown = (event) => (!wanted || event.kind === wanted) && `${event.text} ${event.tenant || ''}`.includes(text);
  const shown = pool.events.filter(isShown).slice(0, EVENTS_SHOWN);
  return html`<section class="panel" id="events" aria-labelledby="events-title">
    <h2 id="events-title">Events
      <label class="right">only <select value=${wanted} onChange=${(event) => setWanted(event.target.value)}>
        <option value="">everything</option>
        ${kinds.map((kind) => html`<option value=${kind}>${kind.replaceAll('_', ' ')}</option>`)}
      </select></label>
      <label>with <input size="12" value=${text} onInput=${(event) => setText(event.target.value)} /></label></h2>
    ${!shown.length && html`<p class="empty">No events.</p>`}
    <div class="scroll short" tabindex="0" role="region" aria-label="Events"><ul class="events">
      ${shown.map((event) => html`<li class=${FAILURES.has(event.kind) ? 'wrong' : ''}>
        <span class="quiet">${ago(pool.now - event.at)}</span>
        <span class="kind">${event.kind.replaceAll('_', ' ')}</span> ${event.text}
        <${Tenant} name=${event.tenant} /></li>`)}
    </ul></div></section>`;
}

const useCluster = () => {
  const [cluster, setCluster] = useState(null);
  useEffect(() => {
    let isOver = false;
    const poll = async () => {
      // Only operators may call this route: for others the panel names only the map's replica.
      if (!document.hidden) setCluster(await call('GET', '/cluster').catch(() => null));
      if (!isOver) setTimeout(poll, POLL_MS);
    };
    poll();
    return () => {
      isOver = true;
    };
  }, []);
  return cluster;
};

// In a cluster: its replicas, with links to their maps. `shown`: the name of the one whose map the page has.
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
  const show = (value) => (value === undefined ? '' : number(value));
  const state = row.load && load.is_draining ? 'draining' : row.load && load.is_full ? 'full' : row.state;
  return html`<tr class=${isShown ? 'selected' : ''}>
    <td>${isShown ? row.name : html`<a href=${`/ui?replica=${encodeURIComponent(row.name)}`}>${row.name}</a>`}</td>
    <td>${state}</td><td>${row.node}</td>
    <td class="r">${show(load.num_running)}</td><td class="r">${show(load.num_waiting)}</td>
    <td class="r">${row.wait_ms === undefined ? '' : `${number(Math.round(row.wait_ms))} ms`}</td>
    <td class="r">${row.load ? `${show(load.free_blocks)} of ${show(load.num_blocks)}` : ''}</td>
    <td class="why">${row.reason}</td></tr>`;
}
