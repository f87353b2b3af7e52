// The stream of frames: connects, reads, detects silence, and reconnects.
//
//   connecting -> live -> stale (silent for STALE_MS) -> live, or lost (silent for DEAD_MS)
//                  |-> lost (the connection ended, or a frame is invalid) -> connecting, with growing pauses
//                  |-> asleep (the page is hidden) -> connecting
//   refused (the key is wrong or missing), until the key changes

import { send, Refusal } from './api.js';

const STALE_MS = 8000;
const DEAD_MS = 30000; // of silence, or without an answer
const HIDDEN_MS = 15000; // a hidden page closes its connection: browsers open six at most to a server
const CALM_MS = 5000; // after so long a live connection resets the pauses
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class FrameStream {
  // `onFrame` gets each frame, `onState` each state and its explanation.
  constructor(onFrame, onState) {
    this.onFrame = onFrame;
    this.onState = onState;
    this.failures = 0;
    this.state = '';
    this.hiddenSince = 0;
    this.replica = null; // in a cluster: the one that sends the frames
    setInterval(() => this.check(), 1000);
    document.addEventListener('visibilitychange', () => this.check());
  }

  async run() {
    for (;;) {
      if (this.isAsleep) {
        this.setState('asleep', '');
        await this.pause(Infinity);
        continue;
      }
      try {
        await this.connect();
        this.setState('lost', 'the server ended the connection');
      } catch (error) {
        if (error instanceof Refusal && (error.status === 401 || error.status === 403)) {
          this.setState('refused', error.message);
          await this.pause(Infinity);
          continue;
        }
        const silent = error.name === 'AbortError' || error instanceof TypeError;
        this.setState('lost', silent ? 'the server does not answer' : error.message);
      }
      if (!this.isAsleep) await this.pause(RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
    }
  }

  // Reconnects at once.
  reconnect() {
    if (this.abort) this.abort.abort();
    if (this.wake) this.wake();
  }

  get isAsleep() {
    return this.hiddenSince > 0 && performance.now() - this.hiddenSince > HIDDEN_MS;
  }

  setState(state, why) {
    this.state = state;
    this.onState(state, why);
  }

  pause(ms) {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (ms < Infinity) setTimeout(resolve, ms);
    });
  }

  // Once a second: checks for silence, and whether the page is visible.
  check() {
    const now = performance.now();
    if (!document.hidden) {
      this.hiddenSince = 0;
      if (this.state === 'asleep') this.reconnect();
    } else if (!this.hiddenSince) this.hiddenSince = now;
    if (!['live', 'stale', 'connecting'].includes(this.state)) return;
    if (this.isAsleep || now - this.heard > DEAD_MS) this.abort.abort();
    else if (this.state === 'live' && now - this.heard > STALE_MS) {
      this.setState('stale', 'no frame for some seconds: a long step, or the connection hangs');
    }
  }

  async connect() {
    this.setState('connecting', '');
    this.abort = new AbortController();
    this.heard = performance.now();
    try {
      const response = await send('GET', '/v1/kv/watch', { signal: this.abort.signal });
      this.replica = response.headers.get('x-octavo-replica');
      await this.read(response.body.getReader());
    } finally {
      this.abort.abort(); // also after an error, so that the server stops sending
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
      this.onFrame(data.slice(at + 4, at + 4 + length).buffer);
      at += 4 + length;
      this.heard = performance.now();
      if (this.state !== 'live') this.setState('live', '');
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
