// ?demo: a demonstration of paging on the real server, for a minute. Each step has a caption.
//
// It shrinks the pool (held blocks move, nothing is lost), so that a few requests fill it, and restores the size
// afterwards. The size is stored in the browser, so that it can be restored after the page was closed. The demo
// starts only after a click on this page or on its link: a link of another site must not change a server.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { call, send } from './api.js';
import { Chat } from './chats.js';
import { SHARED, keyOf } from './pool.js';

const BLOCKS = 128;
const SIZE_KEY = 'octavo-demo-pool'; // in localStorage: the size to restore
const SYSTEM =
  'You are the librarian of a small town. You know every shelf, every book and most of the readers. Answer in ' +
  'plain words, name a book where one fits, and never make up a title. When a reader asks what to read next, ' +
  'ask first what they liked last. Keep to three short paragraphs, and end with a question. The library opens ' +
  'at nine, closes at six, and lends five books for four weeks. Fines are ten cents a day, and few pay them.';
const QUESTIONS = ['What is a book?', 'Which book should I read on a train?', 'How do I find a book about the sea?'];
const WEATHER = ['cold', 'long', 'quiet', 'strange', 'bright'];
const PEOPLE = ['baker', 'sailor', 'teacher', 'painter', 'miller'];
const LONG = { max_tokens: 1200, temperature: 0, ignore_eos: true, stream: true };

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(test, ms) {
  const end = performance.now() + ms;
  while (performance.now() < end) {
    const found = test();
    if (found) return found;
    await sleep(100);
  }
  return null;
}

// Restores the stored size of the pool. Throws if the server refuses.
async function restoreSize() {
  const blocks = Number(localStorage.getItem(SIZE_KEY));
  if (blocks) await call('PATCH', '/v1/kv', { blocks });
  localStorage.removeItem(SIZE_KEY);
}

class Play {
  constructor({ pool, chats, select }, caption) {
    Object.assign(this, { pool, chats, select, caption });
    this.requests = [];
    this.three = []; // chats
  }

  async run() {
    try {
      await this.shrink();
      await this.threeChats();
      await this.flood();
      await this.preemption();
      await this.vanish();
      await this.offload();
    } finally {
      await this.end();
    }
    this.caption('That was paging: every block has holders, a place, and a reason to be there.');
  }

  // Stops everything that the demo began, and restores the pool's size.
  async end() {
    this.select(null);
    for (const { abort } of this.requests) abort.abort();
    for (const chat of this.three) {
      chat.stop();
      await Promise.resolve(chat.delete()).catch(() => null); // it may have been deleted
    }
    await restoreSize();
  }

  // While the page unloads, only this request can still be sent.
  leave() {
    const blocks = Number(localStorage.getItem(SIZE_KEY));
    if (blocks) send('PATCH', '/v1/kv', { body: { blocks }, keepalive: true }).catch(() => null);
  }

  async shrink() {
    const size = this.pool.parts.pool.block_size;
    this.caption(`For a minute the pool is small, ${BLOCKS} blocks of ${size} tokens, so that you can see each one.`);
    localStorage.setItem(SIZE_KEY, String((await call('GET', '/v1/kv')).blocks_wanted));
    await call('PATCH', '/v1/kv', { blocks: BLOCKS });
    await sleep(2500);
  }

  async threeChats() {
    this.caption('Three chats begin with the same system prompt: its blocks are computed once, and held by all three.');
    const settings = { system: SYSTEM, temperature: 0.8, seed: 17, max_tokens: 520 };
    const answers = [];
    for (const question of QUESTIONS) {
      const chat = this.chats.add(new Chat(settings, { min_tokens: 520, speculate: false }));
      this.three.push(chat);
      answers.push(chat.submit(question, this.chats.changed));
    }
    await until(() => this.pool.counts[SHARED] > 0, 5000);
    await sleep(2500);
    this.caption("Selected in amber: one chat's block table in order; the number in a cell is how many share it.");
    this.select(keyOf({ request: this.three[2].request }));
    await sleep(3500);
    await Promise.all(answers);
    for (const { error } of this.three) if (error) throw new Error(error);
    await sleep(800);
    this.select(null);
  }

  request(body) {
    const one = { abort: new AbortController(), id: '', error: null };
    const isOurs = (error) => error.name === 'AbortError';
    one.done = send('POST', '/v1/completions', { body, signal: one.abort.signal })
      .then((response) => {
        one.id = response.headers.get('X-Octavo-Request');
        return response.text();
      })
      .catch((error) => {
        if (!isOurs(error)) one.error = error;
      });
    this.requests.push(one);
    return one;
  }

  // Several prompts in a request, because browsers open six connections at most to a server.
  async flood() {
    this.caption('A flood: ten requests need more blocks than there are, so some wait; their rows show the reason.');
    const story = (i) =>
      `Chapter ${i + 1}. It was a ${WEATHER[i % 5]} morning, and the ${PEOPLE[i % 5]} of the town went out to look ` +
      `for number ${i * 17 + 3}. `;
    const ask = (first, end) => {
      const prompt = Array.from({ length: end - first }, (_, i) => story(first + i).repeat(4));
      return this.request({ ...LONG, prompt });
    };
    this.vanishing = ask(0, 3);
    this.others = ask(3, 10);
    await until(() => [...this.pool.requests.values()].some((row) => row.choices[0].why), 8000);
    for (const { error } of this.requests) if (error) throw error;
    await sleep(4500);
  }

  async preemption() {
    this.caption('An urgent request arrives at a full pool: one with lower priority loses its blocks, and waits.');
    const began = this.pool.now;
    const prompt = 'The doctor is needed at once. '.repeat(60);
    const urgent = this.request({ ...LONG, prompt, max_tokens: 60, priority: -10 });
    await sleep(3000);
    const losses = () => this.pool.events.filter((one) => one.kind === 'preempted' && one.at > began);
    const toUrgent = (one) => one.text.includes(`for request ${urgent.id},`);
    const event = (await until(() => losses().find(toUrgent), 4000)) || losses()[0];
    if (event) {
      const [what] = event.text.split(/[,;]/);
      this.caption(`Preempted: ${what}; it resumes from the blocks that are kept, with the same answer.`);
      this.select(keyOf({ request: event.request }));
    }
    await sleep(3500);
    await urgent.done;
    if (urgent.error) throw urgent.error;
    await sleep(2500);
    this.select(null);
  }

  async vanish() {
    this.caption('A client vanishes in the middle of three answers: their blocks are freed within two steps.');
    this.vanishing.abort.abort();
    await sleep(4000);
    this.others.abort.abort();
    await sleep(1500);
  }

  async offload() {
    const [chat] = this.three;
    this.chats.open = chat;
    this.chats.changed();
    if (!this.pool.parts.tier) {
      this.caption('There is no offload tier: with --disk-cache FOLDER a chat could be suspended to disk.');
      await sleep(4000);
      return;
    }
    this.caption('A chat is suspended: its blocks are kept on disk, even through a restart, and freed in the pool.');
    await sleep(800);
    try {
      await chat.act('suspend');
    } catch {
      await chat.act('resume'); // computes blocks that the flood evicted and a small disk did not keep
      await chat.act('suspend');
    }
    await sleep(3500);
    this.caption('It is resumed: its blocks come back from disk instead of being computed again.');
    await chat.act('resume');
    await sleep(4000);
    chat.settings.max_tokens = 80;
    chat.extra = {};
    await chat.submit('And one for children?', this.chats.changed);
    await sleep(1000);
  }
}

export function Demo(props) {
  const { pool, notify } = props;
  const [caption, setCaption] = useState('');
  const [phase, setPhase] = useState('ready');
  const start = async () => {
    setPhase('plays');
    const play = new Play(props, setCaption);
    const leave = () => play.leave();
    addEventListener('pagehide', leave);
    try {
      await play.run();
    } catch (error) {
      setCaption(`The demo ended: ${error.message}`);
    }
    removeEventListener('pagehide', leave);
    setPhase('over');
  };
  const restore = () => restoreSize().then(() => setPhase('ready'), (error) => notify(error.message));
  const isKnown = pool.blocks > 0;
  const isFree = isKnown && pool.tenant === null && !localStorage.getItem(SIZE_KEY);
  useEffect(() => {
    const cameByLink = document.referrer.startsWith(`${location.origin}/`);
    if (isFree && phase === 'ready' && cameByLink && !pool.requests.size) start();
  }, [isKnown]);
  if (!isKnown) return null;
  if (phase !== 'ready') {
    return html`<div class="caption" role="status" data-phase=${phase}><span>${caption}</span>
      ${phase === 'over' && html`<button class="small" onClick=${start}>again</button>`}</div>`;
  }
  const about = pool.requests.size ? 'Other requests are running: they would wait longer for a minute.' : '';
  let words = html`<span>The demo runs for a minute on this server, with a small pool. ${about}</span>
    <button onClick=${start}>play</button>`;
  if (pool.tenant !== null) {
    words = html`<span>The demo changes the pool's size, which needs an operator's key.</span>`;
  } else if (!isFree) {
    words = html`<span>A demo runs in another tab, or was closed before its end: the pool is small.</span>
      <button onClick=${restore}>restore the pool's size</button>`;
  }
  return html`<div class="caption" role="status" data-phase="ready">${words}</div>`;
}
