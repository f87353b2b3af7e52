// The stream of frames, kept alive: it connects, reads, notices silence, and tries again.
//
//   connecting -> live -> stale (silent for a while) -> live, or given up after some more: lost
//                  |-> lost (the connection ended, or a frame made no sense) -> connecting, ever more slowly
//                  |-> asleep (nobody looks at the page) -> connecting
//   refused (the key is wrong or missing): until there is another

import { send, Refused } from './api.js';

const STALE_MS = 8000;
const DEAD_MS = 30000; // of silence, or without an answer
const HIDDEN_MS = 15000; // a browser opens six connections to a server: a page in the background frees its own
const CALM_MS = 5000; // live for as long, a connection counts as a good one
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class FrameStream {
  // `take` gets each frame; `tell` the state, a word, and words that explain it.
  constructor(take, tell) {
    this.take = take;
    this.tell = tell;
    this.failures = 0;
    this.word = '';
    this.hiddenSince = 0;
    this.replica = null; // of a cluster: the one whose frames these are
    setInterval(() => this.look(), 1000);
    document.addEventListener('visibilitychange', () => this.look());
  }

  async run() {
    for (;;) {
      if (this.isAsleep) {
        this.become('asleep', '');
        await this.pause(Infinity);
        continue;
      }
      try {
        await this.connect();
        this.become('lost', 'the server ended the connection');
      } catch (error) {
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.become('refused', error.message);
          await this.pause(Infinity);
          continue;
        }
        const silent = error.name === 'AbortError' || error instanceof TypeError;
        this.become('lost', silent ? 'the server does not answer' : error.message);
      }
      if (!this.isAsleep) await this.pause(RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
    }
  }

  // Tries at once.
  again() {
    if (this.abort) this.abort.abort();
    if (this.wake) this.wake();
  }

  get isAsleep() {
    return this.hiddenSince > 0 && performance.now() - this.hiddenSince > HIDDEN_MS;
  }

  become(word, why) {
    this.word = word;
    this.tell(word, why);
  }

  pause(ms) {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (ms < Infinity) setTimeout(resolve, ms);
    });
  }

  // Once a second: has it been silent, is anybody there?
  look() {
    const now = performance.now();
    if (!document.hidden) {
      this.hiddenSince = 0;
      if (this.word === 'asleep') this.again();
    } else if (!this.hiddenSince) this.hiddenSince = now;
    if (!['live', 'stale', 'connecting'].includes(this.word)) return;
    if (this.isAsleep || now - this.heard > DEAD_MS) this.abort.abort();
    else if (this.word === 'live' && now - this.heard > STALE_MS) {
      this.become('stale', 'no news for some seconds: a step takes long, or the connection hangs');
    }
  }

  async connect() {
    this.become('connecting', '');
    this.abort = new AbortController();
    this.heard = performance.now();
    try {
      const response = await send('GET', '/v1/kv/watch', { signal: this.abort.signal });
      this.replica = response.headers.get('x-octavo-replica');
      await this.read(response.body.getReader());
    } finally {
      this.abort.abort(); // whatever happened, the server need not go on sending
    }
  }

  async read(reader) {
    const begun = performance.now();
    let data = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      data = this.takeFrames(data.length ? joined(data, value) : value);
      if (performance.now() - begun > CALM_MS) this.failures = 0;
    }
  }

  takeFrames(data) {
    let at = 0;
    while (data.length - at >= 4) {
      const length = new DataView(data.buffer, data.byteOffset + at).getUint32(0, true);
      if (data.length - at < 4 + length) break;
      this.take(data.slice(at + 4, at + 4 + length).buffer);
      at += 4 + length;
      this.heard = performance.now();
      if (this.word !== 'live') this.become('live', '');
    }
    return data.subarray(at);
  }
}

function joined(a, b) {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
