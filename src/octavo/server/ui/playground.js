// The playground: chats, each with its blocks.

import { html, useEffect, useRef } from './vendor/preact-htm.js';
import { Chat } from './chats.js';
import { ActionButton } from './panels.js';
import { keyOf, nameOf } from './pool.js';
import { Cells, number } from './requests.js';

const CELLS_MAX = 96;

// The chats of the page and the open one; `changed` renders them.
export class Chats {
  constructor(changed) {
    this.all = [new Chat()];
    this.open = this.all[0];
    this.changed = changed;
  }

  add(chat) {
    this.all.push(chat);
    this.open = chat;
    this.changed();
    return chat;
  }

  close(chat) {
    chat.stop();
    this.all = this.all.filter((one) => one !== chat);
    if (!this.all.length) this.all = [new Chat(chat.settings)];
    if (this.open === chat) this.open = this.all[this.all.length - 1];
    this.changed();
  }
}

export function Playground({ chats, pool, select, notify }) {
  const chat = chats.open;
  const show = (one) => {
    chats.open = one;
    chats.changed();
  };
  const { server } = pool.parts;
  if (server && !server.has_chat) {
    return html`<section class="panel" id="playground" aria-labelledby="playground-title">
      <h2 id="playground-title">Playground</h2>
      <p class="empty">${server.model} has no chat template, so it cannot chat; it continues texts
        (POST /v1/completions), whose blocks appear on the map.</p></section>`;
  }
  return html`<section class="panel" id="playground" aria-labelledby="playground-title">
    <h2 id="playground-title">Playground
      <button class="small right" onClick=${() => chats.add(new Chat(chat.settings))}>new chat</button></h2>
    <div class="tabs" role="group" aria-label="Chats">${chats.all.map(
      (one) => html`<button key=${one.id} aria-pressed=${one === chat} onClick=${() => show(one)}>
        ${one.isBusy ? '… ' : ''}${one.title}</button>`,
    )}</div>
    <${Blocks} chat=${chat} pool=${pool} select=${select} />
    <${Transcript} chat=${chat} chats=${chats} notify=${notify} />
    <${Actions} chat=${chat} chats=${chats} pool=${pool} notify=${notify} />
    <${Composer} chat=${chat} chats=${chats} />
  </section>`;
}

// The block tables of a chat: of its running turn, else of its session.
export function tablesOf(chat, pool) {
  const running = chat.request === null ? [] : pool.tablesWhere((row) => row.request === chat.request);
  if (running.length || !chat.session) return running;
  const kept = pool.tablesWhere((row) => row.kind !== 'sequence' && row.label.endsWith(chat.session));
  return kept.sort((a, b) => b.blocks.length - a.blocks.length).slice(0, 1); // a resumed session has two
}

function Blocks({ chat, pool, select }) {
  if (!pool.parts.pool) return null;
  const tables = tablesOf(chat, pool).filter((table) => table.blocks.length);
  const request = pool.requests.get(chat.request);
  if (tables.length) storeLastBlocks(chat, tables[0], pool);
  return html`<div class="own-blocks" tabindex="0" role="region" aria-label="The blocks of this chat">
    <div class="row quiet"><${Progress} chat=${chat} pool=${pool} request=${request} />
      ${tables.length > 0 && html`<button class="link"
        onClick=${() => select(keyOf(tables[0].row))}>show on the map</button>`}
    </div>
    ${tables.map((table) => html`<${Cells} pool=${pool} table=${table} limit=${CELLS_MAX} />`)}
    ${!tables.length && chat.lastBlocks && html`<${LastBlocks} blocks=${chat.lastBlocks} pool=${pool} />`}
    ${!tables.length && html`<p class="empty">${describeNoBlocks(chat, pool, request)}</p>`}
  </div>`;
}

function Progress({ chat, pool, request }) {
  const { usage } = chat;
  const first = request && request.choices[0];
  if (first && first.computed < first.prompt) {
    return html`<span>prompt
      ${' '}<progress max=${first.prompt} value=${first.computed} aria-label="prompt computed"></progress>
      ${' '}${number(first.computed)} of ${number(first.prompt)}${first.why ? `: ${first.why}` : ''}</span>`;
  }
  const context = pool.parts.server.context_length;
  const ended = usage ? usage.total_tokens : 0;
  const used = first ? first.prompt + first.output : ended;
  const drafts = usage && usage.draft_tokens
    ? `, ${number(usage.accepted_draft_tokens)} of ${number(usage.draft_tokens)} drafts accepted` : '';
  return html`<span>context <meter min="0" max=${context} value=${used} aria-label="context used"></meter>
      ${' '}${number(used)} of ${number(context)} tokens</span>
    ${usage && html`<span>${number(usage.cached_tokens)} prompt tokens cached${drafts}</span>`}`;
}

function describeNoBlocks(chat, pool, request) {
  const session = (pool.parts.sessions || []).find((one) => one.id === chat.session);
  if (request) return request.choices[0].why || 'Waiting.';
  if (session && session.state === 'suspended') {
    return `Suspended: its ${number(session.blocks)} blocks are on disk, and none is held in the pool.`;
  }
  if (session && session.kept) {
    return `Between two turns: ${number(session.kept)} blocks are kept on disk, so the pool may evict them.`;
  }
  if (chat.transcript.length) return 'It holds no blocks now; full ones may still be cached.';
  const size = pool.parts.pool.block_size;
  return `The blocks of this chat appear here, each of ${size} tokens, and fill as tokens come.`;
}

// Stores the chat's blocks and their names.
function storeLastBlocks(chat, table, pool) {
  chat.lastBlocks = table.blocks.map((block) => ({ block, name: nameOf(pool.cells[block]) }));
}

// The former blocks of a chat, with those that are still cached and need not be computed again.
function LastBlocks({ blocks, pool }) {
  const describe = (isCached, block) =>
    isCached ? `block ${block} is still cached` : 'its block has been evicted';
  return html`<ol class="cells">${blocks.slice(0, CELLS_MAX).map(({ block, name }, index) => {
    const isCached = name && nameOf(pool.cells[block]) === name;
    return html`<li key=${index} class=${isCached ? 'cached' : 'gone'} title=${describe(isCached, block)}>
      <span class="logical">${index}</span><span class="fill"></span>
      <span class="physical">${isCached ? block : '–'}</span></li>`;
  })}</ol>`;
}

const lengthOf = ({ text, choices }) =>
  text.length + (choices || []).reduce((sum, choice) => sum + choice.text.length, 0);

function Transcript({ chat, chats, notify }) {
  const box = useRef(null);
  const isAtEnd = useRef(true);
  const length = chat.transcript.reduce((sum, one) => sum + lengthOf(one), chat.note.length + chat.error.length);
  useEffect(() => {
    isAtEnd.current = true;
  }, [chat.id, chat.transcript.length]);
  useEffect(() => {
    if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight; // else the reader has scrolled up
  }, [length, chat.id, chat.transcript.length]);
  const onScroll = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    isAtEnd.current = scrollTop + clientHeight > scrollHeight - 30;
  };
  return html`<div class="transcript" ref=${box} tabindex="0" role="log" aria-label="Transcript" onScroll=${onScroll}>
    ${chat.transcript.map((one) => html`<${Message} one=${one} chat=${chat} chats=${chats} notify=${notify} />`)}
    ${chat.note && html`<p class="note">${chat.note}</p>`}
    ${chat.error && html`<p class="wrong" role="alert">${chat.error}</p>`}
  </div>`;
}

function Message({ one, chat, chats, notify }) {
  const canFork = one.turn && chat.session && !chat.isBusy;
  const fork = async () => chats.add(await chat.fork(one));
  const keep = (index) => {
    chat.keep(one, index);
    chats.changed();
  };
  return html`<article class=${one.role}>
    <header>${one.role}${one.finish === 'length' ? html` <small>cut at max tokens</small>` : ''}
      ${canFork && html`<${ActionButton} word="fork here" notify=${notify} action=${fork}
        hint="A new chat that continues from here, with the same blocks" />`}</header>
    ${one.choices && one.choices.length > 1
      ? html`<div class="side-by-side">${one.choices.map((choice, index) => html`<div>
          <${Text} one=${choice} />
          ${!chat.isBusy && html`<button class="small" onClick=${() => keep(index)}>keep this one</button>`}
        </div>`)}</div>`
      : html`<${Text} one=${one.choices ? one.choices[0] : one} />`}
  </article>`;
}

const shadeOf = (share) => (share > 0.9 ? '' : share > 0.6 ? 'sure-3' : share > 0.3 ? 'sure-2' : 'sure-1');

// Plain text; with logprobs, each token is shaded by its probability.
function Text({ one }) {
  if (!one.tokens || !one.tokens.length) return html`<p class="text">${one.text}</p>`;
  const decoder = new TextDecoder(); // a character may span several tokens
  const last = one.tokens[one.tokens.length - 1];
  const tokens = one.text.endsWith(last.token) ? one.tokens : one.tokens.slice(0, -1); // without the end token
  return html`<p class="text">${tokens.map((token) => {
    const share = Math.exp(token.logprob);
    const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
    const others = (token.top_logprobs || []).map((top) => `${percent(top.logprob)}  ${JSON.stringify(top.token)}`);
    const text = token.bytes ? decoder.decode(Uint8Array.from(token.bytes), { stream: true }) : token.token;
    const title = `probability ${percent(token.logprob)}\n${others.join('\n')}`;
    return html`<span class=${shadeOf(share)} title=${title}>${text}</span>`;
  })}</p>`;
}

function Actions({ chat, chats, pool, notify }) {
  const session = (pool.parts.sessions || []).find((one) => one.id === chat.session);
  const mayHaveDisk = pool.tenant !== null || !!pool.parts.tier;
  const isSuspended = session && session.state === 'suspended';
  const isIdle = session && !chat.isBusy && (isSuspended || session.state === 'idle');
  const note = session && session.note ? `: ${session.note}` : '';
  const about = session && `session ${chat.session.slice(0, 6)}, ${session.state}${note}`;
  return html`<div class="row actions">
    ${isIdle && !isSuspended && mayHaveDisk && html`<${ActionButton} word="suspend" notify=${notify}
      action=${() => chat.act('suspend')} hint="Store its blocks on disk" />`}
    ${isIdle && isSuspended && html`<${ActionButton} word="resume" notify=${notify}
      action=${() => chat.act('resume')} hint="Load its blocks into the pool" />`}
    ${isIdle && html`<${ActionButton} word="pin" notify=${notify} action=${() => chat.pin()}
      hint="Keep its blocks for an hour" />`}
    ${chats.all.length > 1 && html`<button class="small" onClick=${() => chats.close(chat)}>close</button>`}
    ${about && html`<span class="quiet">${about}</span>`}
  </div>`;
}

const FIELDS = [
  ['temperature', 'temperature', 0.1],
  ['top_p', 'top p', 0.05],
  ['max_tokens', 'max tokens', 1],
  ['n', 'answers', 1],
  ['seed', 'seed', 1],
];

function Composer({ chat, chats }) {
  const set = (name, value) => {
    chat.set(name, value);
    chats.changed();
  };
  const setDraft = (text) => {
    chat.draft = text;
    chats.changed();
  };
  const submit = (event) => {
    event.preventDefault();
    const text = chat.draft.trim();
    if (!text || chat.isBusy) return;
    chat.draft = '';
    chat.submit(text, chats.changed);
  };
  const onKey = (event) => event.key === 'Enter' && !event.shiftKey && submit(event);
  const needsChoice = !chat.isBusy && chat.transcript.some((one) => one.choices);
  return html`<form class="composer" onSubmit=${submit}>
    <label class="grow"><span class="hidden">Your message</span>
      <textarea rows="2" placeholder=${needsChoice ? 'Keep one of the answers first' : 'Say something'}
        value=${chat.draft} disabled=${needsChoice}
        onInput=${(event) => setDraft(event.target.value)} onKeyDown=${onKey}></textarea></label>
    ${chat.isBusy
      ? html`<button type="button" onClick=${() => chat.stop()}>stop</button>`
      : html`<button type="submit" disabled=${!chat.draft.trim()}>send</button>`}
    <details><summary>settings</summary><div class="row settings">
      ${FIELDS.map(([name, word, step]) => html`<label>${word}
        <input type="number" step=${step} value=${chat.settings[name]}
          onChange=${(event) => set(name, event.target.value)} /></label>`)}
      <label><input type="checkbox" checked=${chat.settings.shade}
        onChange=${(event) => set('shade', event.target.checked)} /> shade by probability</label>
      <label class="wide">system prompt <textarea rows="2" value=${chat.settings.system}
        disabled=${chat.transcript.length > 0}
        onChange=${(event) => set('system', event.target.value)}></textarea></label>
    </div></details>
  </form>`;
}
