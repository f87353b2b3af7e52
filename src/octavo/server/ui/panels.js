// What is kept and what can be done to it, how full the tiers are, who holds how much, what happened.

import { html, useState } from './vendor/preact-htm.js';
import { call } from './api.js';
import { ago } from './map.js';
import { FREE, keyOf } from './pool.js';
import { inBytes, number } from './requests.js';

const EVENTS_SHOWN = 100;
const BAD = new Set(['preempted', 'failed', 'transfer_failed', 'memory_pressure', 'refused', 'timed_out']);

// A button that asks once more before it does harm, and tells what the server said.
export function Act({ word, ask, does, tell, quiet }) {
  const [asked, setAsked] = useState(false);
  const [busy, setBusy] = useState(false);
  const go = async () => {
    setAsked(false);
    setBusy(true);
    try {
      await does();
    } catch (error) {
      tell(error.message);
    }
    setBusy(false);
  };
  if (asked) {
    return html`<span class="ask" role="alertdialog" aria-label=${ask}>${ask}
      ${' '}<button class="small danger" onClick=${go}>yes</button>
      ${' '}<button class="small" onClick=${() => setAsked(false)}>no</button></span>`;
  }
  const begin = ask ? () => setAsked(true) : go;
  return html`<button class="small" disabled=${busy} title=${quiet || ''} onClick=${begin}>
    ${busy ? `${word} …` : word}</button>`;
}

const Tenant = ({ name }) => (name ? html` <span class="tenant">${name}</span>` : null);

export function Kept({ pool, select, tell }) {
  const pins = pool.parts.pins || [];
  const sessions = pool.parts.sessions || [];
  const isNone = !pins.length && !sessions.length;
  const common = { pool, select, tell };
  return html`<section class="panel" id="kept" aria-labelledby="kept-title">
    <h2 id="kept-title">Kept <small>${pins.length} pins, ${sessions.length} sessions</small></h2>
    ${isNone && html`<p class="empty">No pins and no chat sessions. A chat of the playground is a session: its blocks
      stay between its turns.</p>`}
    <div class="scroll short" tabindex="0" role="region" aria-label="Pins and sessions"><table><tbody>
      ${pins.map((pin) => html`<${PinRow} key=${`${pin.tenant}/${pin.name}`} pin=${pin} ...${common} />`)}
      ${sessions.map((one) => html`<${SessionRow} key=${one.id} session=${one} ...${common} />`)}
    </tbody></table></div>
  </section>`;
}

// An operator names whose it is, where it is another's.
const pathTo = (pool, kind, name, tenant, verb = '') => {
  const query = pool.tenant === null && tenant ? `?tenant=${encodeURIComponent(tenant)}` : '';
  return `/v1/${kind}/${encodeURIComponent(name)}${verb}${query}`;
};

const left = (pool, expires) => `${number(Math.max(0, Math.round(expires - pool.now)))} s left`;

// Selects the holder that has most blocks of those that are meant.
function choose(pool, select, test) {
  const found = pool.tablesWhere(test).sort((a, b) => b.blocks.length - a.blocks.length);
  if (found.length) select(keyOf(found[0].row));
}

function PinRow({ pin, pool, select, tell }) {
  const isIt = (row) => row.kind === 'pin' && row.label === `pin ${pin.name}` && row.tenant === pin.tenant;
  return html`<tr>
    <td><button class="link" onClick=${() => choose(pool, select, isIt)}>pin ${pin.name}</button>
      <${Tenant} name=${pin.tenant} /></td>
    <td>${pin.filling ? 'fills' : pin.strength}</td>
    <td class="r">${number(pin.held)} of ${number(pin.blocks)} blocks</td>
    <td>${pin.offloaded ? `${number(pin.offloaded)} offloaded` : ''}</td>
    <td>${left(pool, pin.expires)}</td>
    <td class="acts"><${Act} word="unpin" ask=${`Let pin ${pin.name} go?`} tell=${tell}
      does=${() => call('DELETE', pathTo(pool, 'kv/pins', pin.name, pin.tenant))} /></td></tr>`;
}

function SessionRow({ session, pool, select, tell }) {
  const { id, tenant, state, note } = session;
  const verb = state === 'suspended' ? 'resume' : 'suspend';
  const isIt = (row) => row.kind === 'session' && row.label.endsWith(id);
  return html`<tr>
    <td><button class="link" title=${id} onClick=${() => choose(pool, select, isIt)}>session ${id.slice(0, 6)}</button>
      <${Tenant} name=${tenant} /></td>
    <td title=${note}>${state}${note ? ' (best effort)' : ''}</td>
    <td class="r">${number(session.held)} of ${number(session.blocks)} blocks</td>
    <td>${session.kept ? `${number(session.kept)} kept offloaded` : ''}</td>
    <td>${left(pool, session.expires)}</td>
    <td class="acts">
      <${Act} word=${verb} tell=${tell} does=${() => call('POST', pathTo(pool, 'sessions', id, tenant, `/${verb}`))} />
      ${' '}<${Act} word="delete" ask="Forget this chat?" tell=${tell}
        does=${() => call('DELETE', pathTo(pool, 'sessions', id, tenant))} /></td></tr>`;
}

export function Tiers({ pool }) {
  const { first_tokens: first, target, tier, pool: sizes } = pool.parts;
  const used = pool.blocks - pool.counts[FREE];
  const bytes = (blocks) => (sizes.bytes_per_block ? ` (${inBytes(blocks * sizes.bytes_per_block)})` : '');
  const slots = (taken, all) => `${number(taken)} of ${number(all)} slots${bytes(all)}`;
  return html`<section class="panel" id="tiers" aria-labelledby="tiers-title">
    <h2 id="tiers-title">Tiers</h2>
    ${pool.tenant !== null
      ? html`<p>You see the blocks that ${pool.tenant} holds. What becomes of the other
          ${' '}${number(pool.blocks - used)} blocks of the pool is not told.</p>`
      : html`<${Bar} word="pool" used=${used} all=${pool.blocks}
          says=${`${number(used)} of ${number(pool.blocks)} blocks held or cached${bytes(pool.blocks)}`} />`}
    ${tier && tier.host_slots > 0 && html`<${Bar} word="host" used=${tier.in_host} all=${tier.host_slots}
      says=${slots(tier.in_host, tier.host_slots)} />`}
    ${tier && tier.slots > tier.host_slots && html`<${Bar} word="disk" used=${tier.found - tier.in_host}
      all=${tier.slots - tier.host_slots} says=${slots(tier.found - tier.in_host, tier.slots - tier.host_slots)} />`}
    ${tier && tier.cold > 0 && html`<${Bar} word="cold" used=${tier.cold} all=${tier.cold_max}
      says=${`${slots(tier.cold, tier.cold_max)}: running sequences read them there for each token` +
        (tier.cold_blocks_per_s ? `, ${inBytes(tier.cold_blocks_per_s * sizes.bytes_per_block)}/s` : '')} />`}
    ${first && html`<p class="quiet">Target: ${number(first.seconds * 1000)} ms to the first token; of ${' '}
      ${number(first.counted)} requests ${number(first.late)} were later, ${number(first.shed)} refused.</p>`}
    ${target && html`<p class="quiet">Target: ${number(target.seconds * 1000)} ms between two tokens; of
      ${' '}${number(target.gaps)} gaps ${number(target.missed)} were longer.</p>`}
    ${tier && html`<p class=${tier.failed ? 'wrong' : 'quiet'}>${wordsOfTransfers(tier)}</p>`}
    ${pool.tenant === null && !tier && html`<p class="quiet">There is no offload tier: what is evicted is computed
      again (--disk-cache FOLDER gives it a disk).</p>`}
  </section>`;
}

const wordsOfTransfers = (tier) =>
  `${number(tier.in_flight)} blocks are on their way now; ${number(tier.stored)} went down and ` +
  `${number(tier.loaded)} came up since the start${tier.failed ? `; ${number(tier.failed)} failed` : ''}.`;

const Bar = ({ word, used, all, says }) => html`<div class="bar"><span>${word}</span>
  <meter min="0" max=${Math.max(1, all)} value=${used} aria-label=${`${word}: ${says}`}></meter>
  <span class="quiet">${says}</span></div>`;

export function Tenants({ pool }) {
  const fields = ['guaranteed', 'maximum', 'held', 'cached', 'running', 'waiting'];
  const named = (pool.parts.tenants || []).filter((one) => one.name && fields.some((field) => one[field]));
  if (!named.length) return null;
  return html`<section class="panel" id="tenants" aria-labelledby="tenants-title"><h2 id="tenants-title">Tenants</h2>
    <div class="scroll short" tabindex="0" role="region" aria-label="Tenants"><table>
    <thead><tr><th>tenant</th><th class="r">holds</th><th class="r">guaranteed</th><th class="r">borrows</th>
      <th class="r">at most</th><th class="r">cached</th><th class="r">pinned</th><th class="r">runs</th>
      <th class="r">waits</th></tr></thead>
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
  const isMeant = (event) => (!wanted || event.kind === wanted) && `${event.text} ${event.tenant || ''}`.includes(text);
  const shown = pool.events.filter(isMeant).slice(0, EVENTS_SHOWN);
  return html`<section class="panel" id="events" aria-labelledby="events-title">
    <h2 id="events-title">What happened
      <label class="right">only <select value=${wanted} onChange=${(event) => setWanted(event.target.value)}>
        <option value="">everything</option>
        ${kinds.map((kind) => html`<option value=${kind}>${kind.replaceAll('_', ' ')}</option>`)}
      </select></label>
      <label>with <input size="12" value=${text} onInput=${(event) => setText(event.target.value)} /></label></h2>
    ${!shown.length && html`<p class="empty">Nothing that was worth a line.</p>`}
    <div class="scroll short" tabindex="0" role="region" aria-label="Events"><ul class="events">
      ${shown.map((event) => html`<li class=${BAD.has(event.kind) ? 'wrong' : ''}>
        <span class="quiet">${ago(pool.now - event.at)}</span>
        <span class="kind">${event.kind.replaceAll('_', ' ')}</span> ${event.text}
        <${Tenant} name=${event.tenant} /></li>`)}
    </ul></div></section>`;
}
