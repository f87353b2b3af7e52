// The playground: chats, and beside each the blocks that it has.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { Chat } from './chats.js';
import { Act, Cells } from './panels.js';
import { nameOf } from './pool.js';

const number = (value) => Number(value || 0).toLocaleString('en');

// Chats of this page: `chats` and which one is open; `changed` shows them again.
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

export function Playground({ chats, pool, select, tell }) {
  const chat = chats.open;
  return html`<section class="panel" id="playground" aria-labelledby="playground-title">
    <h2 id="playground-title">Playground
      <button class="small right" onClick=${() => chats.add(new Chat({ ...chat.settings }))}>new chat</button></h2>
    <div class="tabs" role="group" aria-label="Chats">${chats.all.map(
      (one) => html`<button aria-pressed=${one === chat} onClick=${() => { chats.open = one; chats.changed(); }}>
        ${one.isBusy ? '… ' : ''}${one.title}</button>`,
    )}</div>
    <${Blocks} chat=${chat} pool=${pool} select=${select} />
    <${Said} chat=${chat} chats=${chats} tell=${tell} pool=${pool} />
    <${Actions} chat=${chat} chats=${chats} pool=${pool} tell=${tell} />
    <${Composer} chat=${chat} chats=${chats} />
  </section>`;
}

// The tables of a chat now: of the turn that runs, else of what is kept of its session.
export function tablesOf(chat, pool) {
  const running = chat.request === null ? [] : pool.tablesWhere((row) => row.request === chat.request);
  if (running.length || !chat.session) return running;
  const kept = pool.tablesWhere((row) => row.kind !== 'sequence' && row.label.endsWith(chat.session));
  return kept.sort((a, b) => b.blocks.length - a.blocks.length).slice(0, 1); // resumed: one holds, one keeps
}

function Blocks({ chat, pool, select }) {
  if (!pool.parts.pool) return null;
  const tables = tablesOf(chat, pool);
  const request = pool.requests.get(chat.request);
  const session = (pool.parts.sessions || []).find((one) => one.id === chat.session);
  const context = pool.parts.server.context_length;
  const first = request && request.choices[0];
  const used = first ? first.prompt + first.output : chat.usage ? chat.usage.total_tokens : 0;
  const size = pool.parts.pool.block_size;
  if (tables.some((table) => table.blocks.length)) remember(chat, tables[0], pool);
  const left = tables.some((table) => table.blocks.length) ? null : chat.remembered;
  return html`<div class="own-blocks">
    <div class="row quiet">
      ${first && first.computed < first.prompt
        ? html`<span>prompt <progress max=${first.prompt} value=${first.computed} aria-label="prompt computed"></progress> ${number(first.computed)} of ${number(first.prompt)}${first.why ? `: ${first.why}` : ''}</span>`
        : html`<span>context <meter min="0" max=${context} value=${used} aria-label="context used"></meter> ${number(used)} of ${number(context)} tokens</span>`}
      ${chat.usage && html`<span>${number(chat.usage.cached_tokens)} of the prompt found${chat.usage.draft_tokens ? `, ${number(chat.usage.accepted_draft_tokens)} of ${number(chat.usage.draft_tokens)} guesses right` : ''}</span>`}
      ${tables.length > 0 && html`<button class="link" onClick=${() => select(tables[0].row.request === undefined ? `holder:${tables[0].row.number}` : `request:${tables[0].row.request}`)}>show on the map</button>`}
    </div>
    ${tables.map((table) => {
      const choice = request && request.choices.find((one) => one.choice === table.row.choice);
      return html`<${Cells} pool=${pool} table=${table} limit=${96} computed=${choice ? choice.computed : table.blocks.length * size} />`;
    })}
    ${left && html`<${Left} left=${left} pool=${pool} />`}
    ${!tables.some((table) => table.blocks.length) && html`<p class="empty">${
      session && session.state === 'suspended' ? `Suspended: its ${number(session.blocks)} blocks are on disk, and nothing holds them in the pool.`
      : chat.said.length ? (request ? request.choices[0].why || 'It waits.' : session && session.kept ? `Between two turns: ${number(session.kept)} blocks are kept on disk, so the pool may take their places.` : 'It holds no block now; full ones may still be cached.')
      : `The blocks of this chat will stand here, each of ${size} tokens, and fill while tokens come.`}</p>`}
  </div>`;
}

// Where its blocks were when it last held some, and what they were called then.
function remember(chat, table, pool) {
  chat.remembered = table.blocks.map((block) => ({ block, name: nameOf(pool.cells[block]) }));
}

// Of these, the ones that are still found where they were: nobody has to compute them again.
function Left({ left, pool }) {
  return html`<ol class="cells">${left.slice(0, 96).map(({ block, name }, index) => {
    const isThere = name && nameOf(pool.cells[block]) === name;
    return html`<li key=${index} class=${isThere ? 'cached' : 'gone'}
      title=${isThere ? `block ${block} is still there under its name` : 'its place in the pool is another\'s now'}>
      <span class="logical">${index}</span><span class="fill"></span><span class="physical">${isThere ? block : '–'}</span></li>`;
  })}</ol>`;
}

function Said({ chat, chats, tell, pool }) {
  const end = useRef(null);
  const box = useRef(null);
  const length = chat.said.reduce((sum, one) => sum + one.text.length + (one.choices ? one.choices.reduce((n, c) => n + c.text.length, 0) : 0), 0);
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [length, chat.id]);
  return html`<div class="said" ref=${box} tabindex="0" role="log" aria-label="What was said">
    ${chat.said.map((one) => html`<article class=${one.role}>
      <header>${one.role}${one.finish === 'length' ? html` <small>cut at max tokens</small>` : ''}
        ${one.turn && chat.session && !chat.isBusy && html`<${Act} word="fork here" quiet="A new chat that goes on from here, with the same blocks"
          tell=${tell} does=${async () => chats.add(await chat.fork(one))} />`}</header>
      ${one.choices && one.choices.length === 1 ? html`<${Text} one=${one.choices[0]} />` : one.choices
        ? html`<div class="side-by-side">${one.choices.map((choice, index) => html`<div>
            <${Text} one=${choice} />${!chat.isBusy && html`<button class="small" onClick=${() => { chat.keep(one, index); chats.changed(); }}>keep this one</button>`}
          </div>`)}</div>`
        : html`<${Text} one=${one} />`}
    </article>`)}
    ${chat.note && html`<p class="note">${chat.note}</p>`}
    ${chat.error && html`<p class="wrong" role="alert">${chat.error}</p>`}
    <div ref=${end}></div>
  </div>`;
}

// Text as text; where logprobs came along, each token is shaded by how sure the model was of it.
function Text({ one }) {
  if (!one.tokens || !one.tokens.length) return html`<p class="text">${one.text}</p>`;
  const last = one.tokens[one.tokens.length - 1];
  const tokens = one.text.endsWith(last.token) ? one.tokens : one.tokens.slice(0, -1); // an end token is no text
  return html`<p class="text">${tokens.map((token) => {
    const share = Math.exp(token.logprob);
    const others = (token.top_logprobs || []).map((top) => `${(100 * Math.exp(top.logprob)).toFixed(1)} %  ${JSON.stringify(top.token)}`);
    const shade = share > 0.9 ? '' : share > 0.6 ? 'sure-3' : share > 0.3 ? 'sure-2' : 'sure-1';
    return html`<span class=${shade} title=${`${(100 * share).toFixed(1)} % sure\n${others.join('\n')}`}>${token.token}</span>`;
  })}</p>`;
}

function Actions({ chat, chats, pool, tell }) {
  const session = (pool.parts.sessions || []).find((one) => one.id === chat.session);
  const hasDisk = !pool.parts.server || pool.parts.server.tenant !== null || !!pool.parts.tier;
  const idle = chat.session && !chat.isBusy;
  return html`<div class="row actions">
    ${idle && hasDisk && session && session.state !== 'suspended' && html`<${Act} word="suspend" quiet="Send its blocks to disk" tell=${tell} does=${() => chat.act('suspend')} />`}
    ${idle && session && session.state === 'suspended' && html`<${Act} word="resume" quiet="Bring its blocks back" tell=${tell} does=${() => chat.act('resume')} />`}
    ${idle && html`<${Act} word="pin" quiet="Keep its blocks for an hour, whatever else runs" tell=${tell} does=${() => chat.pin()} />`}
    ${chats.all.length > 1 && html`<button class="small" onClick=${() => chats.close(chat)}>close</button>`}
    ${session && html`<span class="quiet">session ${chat.session.slice(0, 6)}, ${session.state}${session.note ? `: ${session.note}` : ''}</span>`}
  </div>`;
}

function Composer({ chat, chats }) {
  const [text, setText] = useState('');
  const set = (name, value) => {
    chat.settings[name] = value;
    chats.changed();
  };
  const say = () => {
    if (!text.trim() || chat.isBusy) return;
    chat.say(text.trim(), chats.changed);
    setText('');
  };
  const field = (name, word, min, max, step) => html`<label>${word}
    <input type="number" min=${min} max=${max} step=${step} value=${chat.settings[name]}
      onChange=${(event) => set(name, event.target.value === '' ? '' : Number(event.target.value))} /></label>`;
  const needsChoice = chat.said.some((one) => one.choices) && !chat.isBusy;
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); say(); }}>
    <label class="grow"><span class="hidden">Your message</span>
      <textarea rows="2" placeholder=${needsChoice ? 'Keep one of the answers first' : 'Say something'} value=${text} disabled=${needsChoice}
        onInput=${(event) => setText(event.target.value)}
        onKeyDown=${(event) => { if (event.key === 'Enter' && !event.shiftKey) { event.preventDefault(); say(); } }}></textarea></label>
    ${chat.isBusy
      ? html`<button type="button" onClick=${() => chat.stop()}>stop</button>`
      : html`<button type="submit" disabled=${!text.trim()}>send</button>`}
    <details><summary>settings</summary><div class="row settings">
      ${field('temperature', 'temperature', 0, 2, 0.1)} ${field('top_p', 'top p', 0, 1, 0.05)}
      ${field('max_tokens', 'max tokens', 1, 8192, 1)} ${field('n', 'answers', 1, 4, 1)} ${field('seed', 'seed', 0, 2147483647, 1)}
      <label><input type="checkbox" checked=${chat.settings.shade} onChange=${(event) => set('shade', event.target.checked)} /> shade by surety</label>
      <label class="wide">system prompt <textarea rows="2" value=${chat.settings.system} disabled=${chat.said.length > 0}
        onChange=${(event) => set('system', event.target.value)}></textarea></label>
    </div></details>
  </form>`;
}
