// The tables beside the map: requests and why they wait, what is kept, who holds how much, what happened.

import { Component, html, useState } from './vendor/preact-htm.js';
import { call } from './api.js';
import { ago, keyOf } from './map.js';
import { FREE, KINDS } from './pool.js';

const ROWS = 40;
const number = (value) => Number(value || 0).toLocaleString('en');

// Tokens a second of each request, from what its rows said over the last seconds.
export class Speeds {
  constructor() {
    this.seen = new Map();
  }

  look(pool) {
    for (const id of this.seen.keys()) if (!pool.requests.has(id)) this.seen.delete(id);
    for (const [id, row] of pool.requests) {
      const output = row.choices.reduce((sum, choice) => sum + choice.output, 0);
      const points = this.seen.get(id) || [];
      points.push([pool.now, output]);
      while (points.length > 2 && pool.now - points[0][0] > 3) points.shift();
      this.seen.set(id, points);
    }
  }

  of(id) {
    const points = this.seen.get(id);
    if (!points || points.length < 2) return 0;
    const [first, last] = [points[0], points[points.length - 1]];
    return last[0] > first[0] ? (last[1] - first[1]) / (last[0] - first[0]) : 0;
  }
}

export function Requests({ pool, speeds, selected, select }) {
  const [all, setAll] = useState(false);
  const rows = [...pool.requests.values()];
  const running = rows.filter((row) => row.choices.some((choice) => choice.running));
  const waiting = rows.filter((row) => !row.choices.some((choice) => choice.running));
  const listed = running.concat(waiting);
  const shown = all ? listed : listed.slice(0, ROWS);
  const drafts = rows.some((row) => row.choices.some((choice) => choice.drafted));
  const sharers = (row) => (selected === `request:${row.id}` || pool.requests.size <= 24
    ? pool.sharersOf(pool.tablesWhere((holder) => holder.request === row.id)).length : -1);
  return html`<section class="panel" id="requests" aria-labelledby="requests-title">
    <h2 id="requests-title">Requests <small>${running.length} running, ${waiting.length} waiting</small></h2>
    ${!rows.length
      ? html`<p class="empty">Nothing runs. Say something in the playground, or send a request: its blocks appear
          on the map as its tokens come.</p>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Requests"><table>
          <thead><tr>
            <th>request</th><th>state</th><th>prompt</th><th class="r">output</th><th class="r">tokens/s</th>
            <th class="r">cached</th>${drafts && html`<th class="r">guesses</th>`}
            <th class="r">blocks</th><th class="r">sharers</th><th class="why">why</th>
          </tr></thead>
          <tbody>${shown.map(
            (row) => html`<${RequestRow} key=${row.id} row=${row} speed=${speeds.of(row.id).toFixed(1)} sharers=${sharers(row)}
              drafts=${drafts} isSelected=${selected === `request:${row.id}`} select=${select} />`,
          )}</tbody></table></div>`}
    ${listed.length > ROWS && html`<button class="link" onClick=${() => setAll(!all)}>
      ${all ? 'show fewer' : `show ${listed.length - ROWS} more`}</button>`}
  </section>`;
}

// Drawn again only when something in it has changed: there may be many.
class RequestRow extends Component {
  shouldComponentUpdate(next) {
    return ['row', 'speed', 'sharers', 'drafts', 'isSelected'].some((name) => next[name] !== this.props[name]);
  }

  render({ row, speed, sharers, drafts, isSelected, select }) {
    const sum = (field) => row.choices.reduce((total, choice) => total + choice[field], 0);
    const first = row.choices[0];
    const isRunning = row.choices.some((choice) => choice.running);
    const done = Math.min(first.computed, first.prompt);
    const preempted = sum('preemptions');
    const lost = preempted ? `preempted ${preempted === 1 ? 'once' : `${preempted} times`}` : '';
    const notes = [
      first.why || (done < first.prompt && isRunning ? 'its prompt is being computed' : ''),
      row.pin ? `fills pin ${row.pin}` : '',
      row.session ? 'turn of a session' : '',
    ].filter(Boolean);
    return html`<tr class=${isSelected ? 'selected' : ''} onClick=${() => select(isSelected ? null : `request:${row.id}`)}>
      <td><button class="link" aria-pressed=${isSelected}>${row.id}</button>${row.choices.length > 1 ? ` ×${row.choices.length}` : ''}
        ${row.tenant && html` <span class="tenant">${row.tenant}</span>`}</td>
      <td>${isRunning ? 'runs' : row.place === undefined ? 'waits' : `waits, ${row.place + 1}.`}</td>
      <td><progress max=${first.prompt} value=${done} aria-label="prompt computed"></progress>${' '}
        <span class="num">${number(done)}/${number(first.prompt)}</span></td>
      <td class="r">${number(sum('output'))}</td>
      <td class="r">${isRunning && speed !== '0.0' ? speed : ''}</td>
      <td class="r">${number(first.cached)}</td>
      ${drafts && html`<td class="r">${sum('drafted') ? `${number(sum('accepted'))}/${number(sum('drafted'))}` : ''}</td>`}
      <td class="r">${number(sum('blocks'))}</td>
      <td class="r">${sharers < 0 ? '·' : sharers || ''}</td>
      <td class="why">${lost && html`<span class=${isRunning ? 'quiet' : 'wrong'}>${lost}</span>`}${lost && notes.length ? '; ' : ''}${notes.join('; ')}</td>
    </tr>`;
  }
}

// The selected holder's block table, logical to physical.
export function BlockTable({ pool, selected, select }) {
  const tables = selected ? pool.tablesWhere((row) => keyOf(row) === selected) : [];
  if (!selected) return null;
  const size = pool.parts.pool.block_size;
  const request = selected.startsWith('request:') ? pool.requests.get(Number(selected.slice(8))) : null;
  if (!tables.length) {
    const why = request ? request.choices[0].why || 'it holds no block yet' : 'it has ended; its blocks went back';
    return html`<section class="panel chosen-panel"><h2>Block table</h2><p class="empty">${selected.replace(':', ' ')}: ${why}.
      <button class="link" onClick=${() => select(null)}>close</button></p></section>`;
  }
  return html`<section class="panel chosen-panel" aria-label="Block table of what is selected">
    ${tables.slice(0, 8).map((table) => {
      const choice = request && request.choices.find((one) => one.choice === table.row.choice);
      return html`<h2>${table.row.label || table.row.kind}${table.row.tenant ? ` of ${table.row.tenant}` : ''}
        <small>${number(table.blocks.length)} blocks: logical block above, where it lies in the pool below</small>
        <button class="link" onClick=${() => select(null)}>close</button></h2>
        <${Cells} pool=${pool} table=${table} computed=${choice ? choice.computed : table.blocks.length * size} />`;
    })}
  </section>`;
}

export function Cells({ pool, table, computed, limit = 192 }) {
  const size = pool.parts.pool.block_size;
  const words = Object.fromEntries(KINDS.map((kind) => [kind.state, kind.word]));
  return html`<ol class="cells">
    ${table.blocks.slice(0, limit).map((block, index) => {
      const fill = Math.max(0, Math.min(size, computed - index * size));
      const n = pool.numHolders(block);
      const state = words[pool.states[block]] || '';
      return html`<li class=${n > 1 ? 'shared' : state} key=${index}
        title=${`tokens ${index * size} to ${(index + 1) * size - 1}, ${fill} computed; block ${block} of the pool, ${n > 1 ? `shared by ${n}` : state}`}>
        <span class="logical">${index}</span><span class="fill"><i style=${{ width: `${(100 * fill) / size}%` }}></i></span>
        <span class="physical">${block}${n > 1 ? html`<b>×${n}</b>` : ''}</span></li>`;
    })}
    ${table.blocks.length > limit && html`<li class="more">and ${number(table.blocks.length - limit)} more</li>`}
  </ol>`;
}

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
    return html`<span class="ask" role="alertdialog" aria-label=${ask}>${ask}${' '}
      <button class="small danger" onClick=${go}>yes</button>${' '}
      <button class="small" onClick=${() => setAsked(false)}>no</button></span>`;
  }
  return html`<button class="small" disabled=${busy} title=${quiet || ''} onClick=${ask ? () => setAsked(true) : go}>
    ${busy ? `${word} …` : word}</button>`;
}

const query = (tenant) => (tenant ? `?tenant=${encodeURIComponent(tenant)}` : '');

export function Kept({ pool, select, tell }) {
  const pins = pool.parts.pins || [];
  const sessions = pool.parts.sessions || [];
  const left = (expires) => `${number(Math.max(0, Math.round(expires - pool.now)))} s left`;
  const own = pool.parts.server ? pool.parts.server.tenant : null;
  const path = (kind, name, tenant, verb = '') =>
    `/v1/${kind}/${encodeURIComponent(name)}${verb}${own === null ? query(tenant) : ''}`;
  const chosen = (test) => {
    const table = pool.tablesWhere(test)[0];
    if (table) select(keyOf(table.row));
  };
  return html`<section class="panel" id="kept" aria-labelledby="kept-title">
    <h2 id="kept-title">Kept <small>${pins.length} pins, ${sessions.length} sessions</small></h2>
    ${!pins.length && !sessions.length && html`<p class="empty">No pins and no chat sessions. A chat of the playground is a
      session: its blocks stay between its turns.</p>`}
    <div class="scroll short" tabindex="0" role="region" aria-label="Pins and sessions"><table><tbody>
    ${pins.map(
      (pin) => html`<tr key=${`p${pin.tenant}/${pin.name}`}>
        <td><button class="link" onClick=${() => chosen((row) => row.kind === 'pin' && row.label === `pin ${pin.name}` && row.tenant === pin.tenant)}>pin ${pin.name}</button>
          ${pin.tenant && html` <span class="tenant">${pin.tenant}</span>`}</td>
        <td>${pin.filling ? 'fills' : pin.strength}</td>
        <td class="r">${number(pin.held)} of ${number(pin.blocks)} blocks</td>
        <td>${pin.below ? `${number(pin.below)} below` : ''}</td><td>${left(pin.expires)}</td>
        <td class="acts"><${Act} word="unpin" ask=${`Let pin ${pin.name} go?`} tell=${tell}
          does=${() => call('DELETE', path('kv/pins', pin.name, pin.tenant))} /></td></tr>`,
    )}
    ${sessions.map((session) => {
      const suspended = session.state === 'suspended';
      return html`<tr key=${session.id}>
        <td><button class="link" title=${session.id}
          onClick=${() => chosen((row) => row.kind === 'session' && row.label.endsWith(session.id))}>session ${session.id.slice(0, 6)}</button>
          ${session.tenant && html` <span class="tenant">${session.tenant}</span>`}</td>
        <td title=${session.note}>${session.state}${session.note ? ' (best effort)' : ''}</td>
        <td class="r">${number(session.held)} of ${number(session.blocks)} blocks</td>
        <td>${session.kept ? `${number(session.kept)} kept below` : ''}</td><td>${left(session.expires)}</td>
        <td class="acts">
          <${Act} word=${suspended ? 'resume' : 'suspend'} tell=${tell}
            does=${() => call('POST', path('sessions', session.id, session.tenant, suspended ? '/resume' : '/suspend'))} />${' '}
          <${Act} word="delete" ask="Forget this chat?" tell=${tell}
            does=${() => call('DELETE', path('sessions', session.id, session.tenant))} /></td></tr>`;
    })}</tbody></table></div>
  </section>`;
}

export function Tiers({ pool }) {
  const { tier, pool: sizes } = pool.parts;
  if (!sizes) return null;
  const bytes = (blocks) => (sizes.bytes_per_block ? ` (${size(blocks * sizes.bytes_per_block)})` : '');
  const own = pool.parts.server.tenant;
  const used = pool.blocks - pool.counts[FREE];
  const rest = pool.blocks - used;
  return html`<section class="panel" id="tiers" aria-labelledby="tiers-title">
    <h2 id="tiers-title">Tiers</h2>
    ${own !== null
      ? html`<p>You see the blocks that ${own} holds; the pool's other ${number(rest)} blocks are the rest of the house's,
          and what becomes of them is not told.</p>`
      : html`<${Bar} word="pool" used=${used} all=${pool.blocks}
          says=${`${number(used)} of ${number(pool.blocks)} blocks held or cached${bytes(pool.blocks)}`} />`}
    ${tier && tier.host_slots > 0 && html`<${Bar} word="host" used=${tier.in_host} all=${tier.host_slots}
      says=${`${number(tier.in_host)} of ${number(tier.host_slots)} slots${bytes(tier.host_slots)}`} />`}
    ${tier && tier.slots > tier.host_slots && html`<${Bar} word="disk" used=${tier.found - tier.in_host} all=${tier.slots - tier.host_slots}
      says=${`${number(tier.found - tier.in_host)} of ${number(tier.slots - tier.host_slots)} slots${bytes(tier.slots - tier.host_slots)}`} />`}
    ${tier && html`<p class=${tier.failed ? 'wrong' : 'quiet'}>${number(tier.in_flight)} blocks on their way now;${' '}
      ${number(tier.stored)} sent down and ${number(tier.loaded)} brought up since the start${tier.failed ? `; ${number(tier.failed)} failed` : ''}.</p>`}
    ${own === null && !tier && html`<p class="quiet">Nothing is below the pool: what is evicted is computed again
      (--disk-cache FOLDER gives it a disk).</p>`}
  </section>`;
}

const Bar = ({ word, used, all, says }) => html`<div class="bar"><span>${word}</span>
  <meter min="0" max=${Math.max(1, all)} value=${used} aria-label=${`${word}: ${says}`}></meter><span class="quiet">${says}</span></div>`;

const size = (bytes) =>
  bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${Math.max(1, Math.round(bytes / 2 ** 20))} MiB`;

export function Tenants({ pool }) {
  const named = (pool.parts.tenants || []).filter((one) => one.name && (one.guaranteed || one.maximum || one.held || one.cached || one.running || one.waiting));
  if (!named.length) return null;
  return html`<section class="panel" id="tenants" aria-labelledby="tenants-title"><h2 id="tenants-title">Tenants</h2>
    <div class="scroll short" tabindex="0" role="region" aria-label="Tenants"><table>
    <thead><tr><th>tenant</th><th class="r">holds</th><th class="r">guaranteed</th><th class="r">borrows</th><th class="r">at most</th>
      <th class="r">cached</th><th class="r">pinned</th><th class="r">runs</th><th class="r">waits</th></tr></thead>
    <tbody>${named.map(
      (one) => html`<tr key=${one.name}><td class="tenant">${one.name}</td><td class="r">${number(one.held)}</td>
        <td class="r">${number(one.guaranteed)}</td><td class="r">${number(Math.max(0, one.held - one.guaranteed))}</td>
        <td class="r">${one.maximum === null ? 'the pool' : number(one.maximum)}</td><td class="r">${number(one.cached)}</td>
        <td class="r">${number(one.pinned)}</td><td class="r">${number(one.running)}</td><td class="r">${number(one.waiting)}</td></tr>`,
    )}</tbody></table></div></section>`;
}

const BAD = new Set(['preempted', 'failed', 'transfer_failed', 'pressed', 'refused', 'timed_out']);

export function Events({ pool }) {
  const [wanted, setWanted] = useState('');
  const kinds = [...new Set(pool.events.map((event) => event.kind))].sort();
  const shown = pool.events.filter((event) => !wanted || event.kind === wanted).slice(0, 100);
  return html`<section class="panel" id="events" aria-labelledby="events-title">
    <h2 id="events-title">What happened <label class="right">only${' '}
      <select value=${wanted} onChange=${(event) => setWanted(event.target.value)}>
        <option value="">everything</option>
        ${kinds.map((kind) => html`<option value=${kind}>${kind.replaceAll('_', ' ')}</option>`)}
      </select></label></h2>
    ${!shown.length && html`<p class="empty">Nothing that was worth a line.</p>`}
    <div class="scroll short" tabindex="0" role="region" aria-label="Events"><ul class="events">${shown.map(
      (event) => html`<li class=${BAD.has(event.kind) ? 'wrong' : ''}><span class="quiet">${ago(pool.now - event.at)}</span>
        <span class="kind">${event.kind.replaceAll('_', ' ')}</span> ${event.text}
        ${event.tenant && html` <span class="tenant">${event.tenant}</span>`}</li>`,
    )}</ul></div></section>`;
}
