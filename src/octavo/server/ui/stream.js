// The stream of frames, kept alive: it connects, reads, notices silence, and tries again.
//
//   connecting -> live -> stale (no frame for a while) -> live ...
//                  |-> lost (the connection ended; the next try is counted down) -> connecting
//   refused (the key is wrong or missing), stopped (the engine gave up): the server's own words

import { send, Refused } from './api.js';

const STALE_MS = 8000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class FrameStream {
  // `take` gets each frame; `tell` the state, a word, and words that explain it.
  constructor(take, tell) {
    this.take = take;
    this.tell = tell;
    this.failures = 0;
    this.isLive = false;
    setInterval(() => this.#look(), 1000);
  }

  async run() {
    for (;;) {
      try {
        await this.#once();
        this.#lose('the server ended the connection');
      } catch (error) {
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.isLive = false;
          this.tell('refused', error.message);
          await new Promise((resolve) => (this.retry = resolve));
          continue;
        }
        this.#lose(error instanceof TypeError ? 'the server does not answer' : error.message);
      }
      const pause = RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)];
      await Promise.race([
        new Promise((resolve) => setTimeout(resolve, pause)),
        new Promise((resolve) => (this.retry = resolve)),
      ]);
    }
  }

  again() {
    if (this.abort) this.abort.abort();
    if (this.retry) this.retry();
  }

  #lose(why) {
    this.isLive = false;
    this.tell('lost', why);
  }

  #look() {
    if (this.isLive && performance.now() - this.heard > STALE_MS) {
      this.tell('stale', 'no news for some seconds: a step takes long, or the connection hangs');
    }
  }

  async #once() {
    this.tell('connecting', '');
    this.abort = new AbortController();
    const response = await send('GET', '/v1/kv/watch', undefined, this.abort.signal);
    const reader = response.body.getReader();
    let data = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      data = data.length ? joined(data, value) : value;
      data = this.#takeFrames(data);
    }
  }

  #takeFrames(data) {
    let at = 0;
    while (data.length - at >= 4) {
      const length = new DataView(data.buffer, data.byteOffset + at).getUint32(0, true);
      if (data.length - at < 4 + length) break;
      this.take(data.slice(at + 4, at + 4 + length).buffer);
      at += 4 + length;
      this.heard = performance.now();
      this.failures = 0;
      if (!this.isLive) this.isLive = true;
      this.tell('live', '');
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
