// Running and waiting requests, with reasons; the block table of the selection; cold blocks.

import { Component, html, useState } from './vendor/preact-htm.js';
import { KINDS, keyOf } from './pool.js';

const RUNNING_ROWS = 30; // until the reader selects all
const WAITING_ROWS = 10;
const FEW_REQUESTS = 24; // up to so many, sharers are counted
const TABLES_SHOWN = 8;
const CELLS_MAX = 192;
const STRIPS_MAX = 8; // sequences with cold blocks
const COLD_CELLS_MAX = 256; // in a strip

export const number = (value) => Number(value || 0).toLocaleString('en');

export const inBytes = (bytes) =>
  bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${Math.max(1, Math.round(bytes / 2 ** 20))} MiB`;

// Tokens a second of each request, from its rows of the last seconds.
export class Speeds {
  constructor() {
    this.seen = new Map();
  }

  record(pool) {
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
  const isRunning = (row) => row.choices.some((choice) => choice.running);
  const running = rows.filter(isRunning);
  const waiting = rows.filter((row) => !isRunning(row));
  const few = running.slice(0, RUNNING_ROWS).concat(waiting.slice(0, WAITING_ROWS));
  const shown = all ? running.concat(waiting) : few;
  const drafts = rows.some((row) => row.choices.some((choice) => choice.drafted));
  const sharers = rows.length <= FEW_REQUESTS ? sharersByRequest(pool) : null;
  return html`<section class="panel" id="requests" aria-labelledby="requests-title">
    <h2 id="requests-title">Requests <small>${running.length} running, ${waiting.length} waiting</small></h2>
    ${!rows.length
      ? html`<p class="empty">No requests. Send one, for example from the playground: its blocks appear on the map as
          its tokens come.</p>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Requests"><table>
          <thead><tr>
            <th>request</th><th>state</th><th>prompt</th><th class="r">output</th><th class="r">tokens/s</th>
            <th class="r">cached</th>${drafts && html`<th class="r">drafts</th>`}
            <th class="r">blocks</th><th class="r">sharers</th><th class="why">why</th>
          </tr></thead>
          <tbody>${shown.map(
            (row) => html`<${RequestRow} key=${row.id} row=${row} speed=${speeds.of(row.id).toFixed(1)}
              sharers=${sharers ? sharers.get(row.id) || 0 : -1} drafts=${drafts}
              isSelected=${selected === `request:${row.id}`} select=${select} />`,
          )}</tbody></table></div>`}
    ${rows.length > few.length && html`<button class="link" onClick=${() => setAll(!all)}>
      ${all ? 'show fewer' : `show ${rows.length - few.length} more`}</button>`}
  </section>`;
}

function sharersByRequest(pool) {
  const found = new Map();
  for (const [table, count] of pool.sharers) {
    const { request } = table.row;
    if (request !== undefined) found.set(request, Math.max(count, found.get(request) || 0));
  }
  return found;
}

const times = (count) => (count === 1 ? 'once' : `${count} times`);

// Rendered only when one of these properties has changed: there may be many rows.
class RequestRow extends Component {
  shouldComponentUpdate(next) {
    return ['row', 'speed', 'sharers', 'drafts', 'isSelected'].some((name) => next[name] !== this.props[name]);
  }

  render({ row, speed, sharers, drafts, isSelected, select }) {
    const sum = (field) => row.choices.reduce((total, choice) => total + choice[field], 0);
    const [first] = row.choices;
    const isRunning = row.choices.some((choice) => choice.running);
    const done = Math.min(first.computed, first.prompt);
    const accepted = sum('drafted') ? `${number(sum('accepted'))}/${number(sum('drafted'))}` : '';
    const waiting = row.place === undefined ? 'waiting' : `waiting #${row.place + 1}`;
    const toggle = () => select(isSelected ? null : keyOf({ request: row.id }));
    return html`<tr class=${isSelected ? 'selected' : ''} onClick=${toggle}>
      <td><button class="link" aria-pressed=${isSelected}>${row.id}</button>
        ${row.choices.length > 1 ? ` ×${row.choices.length}` : ''}
        ${row.tenant && html` <span class="tenant">${row.tenant}</span>`}</td>
      <td>${isRunning ? 'running' : waiting}</td>
      <td><progress max=${first.prompt} value=${done} aria-label="prompt computed"></progress>
        ${' '}${number(done)}/${number(first.prompt)}</td>
      <td class="r">${number(sum('output'))}</td>
      <td class="r">${isRunning && speed !== '0.0' ? speed : ''}</td>
      <td class="r">${number(first.cached)}</td>
      ${drafts && html`<td class="r">${accepted}</td>`}
      <td class="r">${number(sum('blocks'))}</td>
      <td class="r">${sharers < 0 ? '·' : sharers || ''}</td>
      <td class="why"><${Why} row=${row} isRunning=${isRunning} preemptions=${sum('preemptions')} /></td>
    </tr>`;
  }
}

function Why({ row, isRunning, preemptions }) {
  const [first] = row.choices;
  const waiting = row.choices.find((choice) => choice.why);
  const isComputed = !isRunning || first.computed >= first.prompt;
  const notes = [
    waiting ? waiting.why : '',
    isComputed ? '' : 'computing its prompt',
    row.pin ? `fills pin ${row.pin}` : '',
    row.session ? 'turn of a session' : '',
  ].filter(Boolean);
  if (!preemptions) return html`${notes.join('; ')}`;
  return html`<span class=${isRunning ? 'quiet' : 'wrong'}>preempted ${times(preemptions)}</span>
    ${notes.length ? `; ${notes.join('; ')}` : ''}`;
}

// The block table of the selected holder, from logical to physical blocks.
export function BlockTable({ pool, selected, select }) {
  if (!selected) return null;
  const tables = pool.tablesWhere((row) => keyOf(row) === selected);
  const known = [...pool.requests.values(), ...pool.ended.values()];
  const row = known.find(({ id }) => keyOf({ request: id }) === selected);
  const request = row && pool.requests.get(row.id);
  const close = html`<button class="link" onClick=${() => select(null)}>close</button>`;
  if (!tables.length) {
    const waiting = request ? request.choices[0].why || 'it holds no block yet' : 'it has ended and holds no block';
    const what = row ? `Request ${row.id}` : 'The selection';
    return html`<section class="panel chosen-panel" aria-label="Block table of the selection">
      <h2>Block table ${close}</h2><p class="empty">${what}: ${waiting}.</p>
      <${PromptSplit} pool=${pool} row=${row} /></section>`;
  }
  return html`<section class="panel chosen-panel" aria-label="Block table of the selection">
    ${tables.slice(0, TABLES_SHOWN).map((table) => html`
      <h2>${table.row.label || table.row.kind}${table.row.tenant ? ` of ${table.row.tenant}` : ''}
        <small>${number(table.blocks.length)} blocks: logical number above, block of the pool below it${
          pool.coldOf(table.row) ? `; before them ${number(pool.coldOf(table.row))} cold blocks` : ''}</small>
        ${close}</h2>
      <${Cells} pool=${pool} table=${table} />`)}
    <${PromptSplit} pool=${pool} row=${row} />
  </section>`;
}

// Which tokens of the prompt were found in the cache, and why the rest was computed.
function PromptSplit({ pool, row }) {
  if (!row || !row.split) return null;
  const seconds = Math.round(Math.max(0, pool.now - row.left_at));
  const gone = row.left_at === undefined ? '' : ` (gone ${number(seconds)} s ago)`;
  return html`<p class="quiet">Its prompt, in tokens: ${row.split}${gone}.</p>`;
}

const WORDS = Object.fromEntries(KINDS.map(({ state, word }) => [state, word]));

// The cells of a table, each filled to the share of its tokens that is computed.
export function Cells({ pool, table, limit = CELLS_MAX }) {
  const size = pool.parts.pool.block_size;
  const [cold, computed] = [pool.coldOf(table.row), pool.computedOf(table)];
  return html`<ol class="cells">
    ${cold > 0 && html`<li class="cold" title="in an offload tier, where attention reads them for each token">
      0 to ${number(cold - 1)}<br />cold</li>`}
    ${table.blocks.slice(0, limit).map((block, index) => {
      const fill = Math.max(0, Math.min(size, computed - index * size));
      const n = pool.numHolders(block);
      const state = n > 1 ? 'shared' : WORDS[pool.states[block]] || '';
      const logical = cold + index;
      const tokens = `tokens ${logical * size} to ${(logical + 1) * size - 1}, ${fill} computed`;
      const title = `${tokens}; block ${block} of the pool, ${state}${n > 1 ? ` by ${n}` : ''}`;
      return html`<li class=${state} key=${index} title=${title}>
        <span class="logical">${logical}</span>
        <span class="fill"><i style=${{ width: `${(100 * fill) / size}%` }}></i></span>
        <span class="physical">${block}${n > 1 ? html`<b>×${n}</b>` : ''}</span></li>`;
    })}
    ${table.blocks.length > limit && html`<li class="more">and ${number(table.blocks.length - limit)} more</li>`}
  </ol>`;
}

// Blocks that are not on the map: running sequences read them in an offload tier. One strip for each sequence.
export function ColdBlocks({ pool, select }) {
  const bytes = pool.parts.pool ? pool.parts.pool.bytes_per_block : 0;
  const rows = [...pool.requests.values()].flatMap(({ id, choices }) =>
    choices.filter(({ cold }) => cold > 0).map((choice) => ({ id, choice })),
  );
  return rows.slice(0, STRIPS_MAX).map(({ id, choice: { choice, cold } }) => {
    const each = Math.ceil(cold / COLD_CELLS_MAX);
    const says = `request ${id}${choice ? `, choice ${choice + 1}` : ''}: ${number(cold)} cold blocks, ` +
      `${inBytes(cold * bytes)} read for each token` + (each > 1 ? `; a cell is ${number(each)} blocks` : '');
    const cells = Array.from({ length: Math.ceil(cold / each) }, () => html`<i></i>`);
    return html`<button class="cold-blocks" key=${`${id}/${choice}`} onClick=${() => select(keyOf({ request: id }))}>
      <span class="strip" aria-hidden="true">${cells}</span>
      <span class="quiet">${says}</span></button>`;
  });
}
