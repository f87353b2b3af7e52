// ?demo: a minute of paging, played on the real server. Each moment has a caption of one sentence.
//
// The pool is made small for it (what is held moves, nothing is lost), so that a few requests fill it, and gets
// its size back in the end, also when the page is left. It begins by itself only where nothing runs.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { call, readKey, send } from './api.js';
import { Chat } from './chats.js';
import { SHARED } from './pool.js';

const BLOCKS = 128;
const SYSTEM =
  'You are the librarian of a small town. You know every shelf, every book and most of the readers. Answer in ' +
  'plain words, name a book where one fits, and never make up a title. When somebody asks what to read next, ' +
  'ask first what they liked last. Keep to three short paragraphs, and end with a question. The library opens ' +
  'at nine, closes at six, and lends five books for four weeks. Fines are ten cents a day, and nobody pays them.';
const QUESTIONS = ['What is a book?', 'Which book should I read on a train?', 'How do I find a book about the sea?'];
const WEATHER = ['cold', 'long', 'quiet', 'strange', 'bright'];
const PEOPLE = ['baker', 'sailor', 'teacher', 'painter', 'miller'];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(test, ms = 15000) {
  const end = performance.now() + ms;
  while (performance.now() < end) {
    const found = test();
    if (found) return found;
    await sleep(100);
  }
  return null;
}

class Play {
  constructor({ pool, chats, select, page }, caption) {
    Object.assign(this, { pool, chats, select, page, caption });
    this.fetches = [];
    this.answers = [];
    this.before = 0; // blocks of the pool when we came
  }

  async run() {
    this.before = this.pool.blocks;
    try {
      await this.#shrink();
      await this.#threeChats();
      await this.#flood();
      await this.#preemption();
      await this.#vanish();
      await this.#offload();
      this.caption('That was paging: every block has owners, a place, and a reason to be where it is.');
    } finally {
      this.end();
    }
  }

  end() {
    for (const abort of this.fetches) abort.abort();
    for (const chat of this.three || []) chat.stop();
    if (this.before) {
      const headers = { 'Content-Type': 'application/json' };
      if (readKey()) headers.Authorization = `Bearer ${readKey()}`;
      fetch('/v1/kv', { method: 'PATCH', headers, body: JSON.stringify({ blocks: this.before }), keepalive: true });
      this.before = 0;
    }
  }

  async #shrink() {
    this.caption(`For a minute the pool is made small, ${BLOCKS} blocks of ${this.pool.parts.pool.block_size} tokens, so that you can see each.`);
    await call('PATCH', '/v1/kv', { blocks: BLOCKS });
    await sleep(2500);
  }

  async #threeChats() {
    this.caption('Three chats begin with the same system prompt: its blocks are computed once, and held by all three.');
    this.three = QUESTIONS.map((question) => {
      const chat = this.chats.add(new Chat({ system: SYSTEM, temperature: 0.8, seed: 17, max_tokens: 420 }, { min_tokens: 420, speculate: false }));
      this.answers.push(chat.say(question, this.chats.changed));
      return chat;
    });
    await until(() => this.pool.counts[SHARED] > 0, 5000);
    await sleep(2500);
    this.caption('Selected in amber: one chat\'s block table in order; blue blocks are shared, and never copied.');
    this.select(`request:${this.three[2].request}`);
    await sleep(3500);
    await Promise.all(this.answers);
    await sleep(800);
    this.select(null);
  }

  #request(body) {
    const abort = new AbortController();
    this.fetches.push(abort);
    const one = { abort, id: '' };
    one.done = send('POST', '/v1/completions', body, abort.signal)
      .then((response) => {
        one.id = response.headers.get('X-Octavo-Request');
        return response.text();
      })
      .catch(() => '');
    return one;
  }

  // Several prompts in one request: a browser opens six connections to a server, and no more.
  async #flood() {
    this.caption('A flood: ten requests want more blocks than there are, so some wait, and their rows say for what.');
    const story = (i) =>
      `Chapter ${i + 1}. It was a ${WEATHER[i % 5]} morning, and the ${PEOPLE[i % 5]} of the town went out to look for number ${i * 17 + 3}. `.repeat(4);
    const ask = (first, end) =>
      this.#request({
        prompt: Array.from({ length: end - first }, (_, i) => story(first + i)),
        max_tokens: 1200, temperature: 0, ignore_eos: true, stream: true,
      });
    this.vanishing = ask(0, 3);
    this.others = ask(3, 10);
    await until(() => [...this.pool.requests.values()].some((row) => row.choices[0].why), 8000);
    await sleep(4500);
  }

  async #preemption() {
    this.caption('An urgent request comes to a full pool: a sequence that ranks behind it gives its blocks up, and waits.');
    const began = this.pool.now;
    this.urgent = this.#request({
      prompt: 'The doctor is needed at once. '.repeat(60), max_tokens: 60, temperature: 0, ignore_eos: true, stream: true, priority: -10,
    });
    await sleep(3000);
    const losses = () => this.pool.events.filter((one) => one.kind === 'preempted' && one.at > began);
    const toUrgent = (one) => one.text.includes(`for request ${this.urgent.id},`);
    const event = (await until(() => losses().find(toUrgent), 4000)) || losses()[0];
    if (event) {
      this.caption(`Preempted: ${event.text.split(/[,;]/)[0]}; it will go on from what is kept, to the very same answer.`);
      this.select(`request:${event.request}`);
    }
    await sleep(3500);
    await this.urgent.done;
    await sleep(2500);
    this.select(null);
  }

  async #vanish() {
    this.caption('A client vanishes in the middle of three answers: their blocks are free within two steps, and others take them.');
    this.vanishing.abort.abort();
    await sleep(4000);
    this.others.abort.abort();
    await sleep(1500);
  }

  async #offload() {
    const [chat] = this.three;
    this.chats.open = chat;
    this.chats.changed();
    if (!this.pool.parts.tier) {
      this.caption('There is no disk below this pool (--disk-cache FOLDER): with one, a chat could be suspended to it.');
      await sleep(4000);
      return;
    }
    this.caption('A chat is suspended: its blocks go to disk, and the pool is free for others, even through a restart.');
    await sleep(800);
    await chat.act('suspend');
    await sleep(3500);
    this.caption('It is resumed: its blocks come back from disk instead of being computed again.');
    await chat.act('resume');
    await sleep(4000);
    chat.settings.max_tokens = 80;
    chat.extra = {};
    await chat.say('And one for children?', this.chats.changed);
    await sleep(1000);
  }
}

export function Demo(props) {
  const { pool, page } = props;
  const [caption, setCaption] = useState('');
  const [phase, setPhase] = useState('ready');
  const start = async () => {
    setPhase('plays');
    const play = new Play(props, setCaption);
    addEventListener('pagehide', () => play.end());
    try {
      await play.run();
    } catch (error) {
      setCaption(`The demo ended: ${error.message}`);
    }
    setPhase('over');
  };
  const isKnown = pool.blocks > 0;
  useEffect(() => {
    if (isKnown && phase === 'ready' && !pool.requests.size && pool.parts.server.tenant === null) start();
  }, [isKnown]);
  if (!isKnown) return null;
  const why = pool.parts.server.tenant !== null ? 'It changes the pool\'s size, which wants an operator\'s key.' : 'Requests of others run: they would wait longer for a minute.';
  return html`<div class="caption" role="status" data-phase=${phase}>
    ${phase === 'ready' ? html`<span>The demo plays for a minute on this very server, with a small pool. ${why}</span>
        ${pool.parts.server.tenant === null && html`<button onClick=${start}>play it all the same</button>`}`
      : html`<span>${caption}</span>${phase === 'over' && html`<button class="small" onClick=${start}>again</button>`}`}
  </div>`;
}
