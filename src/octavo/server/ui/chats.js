// Chats of the playground: their transcripts and requests. It has no markup.
//
// With one answer per turn, a chat is a session: its blocks stay between turns, and it can be forked, suspended,
// resumed and pinned. A turn with several answers is an ordinary request; the answer that the reader keeps
// continues as a new session. The server counts the turns of a session.

import { call, readEvents, send } from './api.js';

export const SETTINGS = {
  system: 'You are a helpful assistant.',
  temperature: 0.7,
  top_p: 0.95,
  max_tokens: 256,
  seed: '', // none
  n: 1,
  shade: false,
};
const BOUNDS = { temperature: [0, 2], top_p: [0, 1], max_tokens: [1, 1e6], n: [1, 4], seed: [0, 2 ** 31 - 1] };
const SESSION_LOST =
  'The server no longer has this session (it restarted, or the session expired): the chat continues as a new one.';

let numChats = 0;

export class Chat {
  // `extra`: more fields of the API for its requests.
  constructor(settings = {}, extra = {}) {
    this.id = ++numChats;
    this.settings = { ...SETTINGS, ...settings };
    this.extra = extra;
    this.transcript = []; // {role, text, tokens, finish, turn, choices}
    this.session = null;
    this.turns = 0; // that the session has completed
    this.draft = ''; // the text in the input
    this.usage = null;
    this.error = '';
    this.note = '';
    this.abort = null;
    this.resetPlacement();
  }

  // Request and block numbers are those of one run of the server.
  resetPlacement() {
    this.request = null; // the engine's id of the running or the last turn
    this.lastBlocks = null; // its blocks and their names when it last held some
  }

  get isBusy() {
    return this.abort !== null;
  }

  get title() {
    const first = this.transcript.find((one) => one.role === 'user');
    return first ? first.text.slice(0, 40) : `chat ${this.id}`;
  }

  get messages() {
    const system = this.settings.system.trim();
    const before = system ? [{ role: 'system', content: system }] : [];
    return before.concat(this.transcript.map((one) => ({ role: one.role, content: one.text })));
  }

  // Stores a setting as typed, clamped to its bounds; text that is no number becomes the default.
  set(name, value) {
    if (name in BOUNDS) {
      const [low, high] = BOUNDS[name];
      if (value === '' || Number.isNaN(Number(value))) value = name === 'seed' ? '' : SETTINGS[name];
      else value = Math.min(high, Math.max(low, Number(value)));
    }
    this.settings[name] = value;
  }

  // Sends a turn, and calls `changed` whenever there is something to draw. Never throws: errors go to `error`.
  async submit(text, changed) {
    const settings = { ...this.settings };
    this.error = this.note = '';
    this.transcript.push({ role: 'user', text });
    const messages = this.messages;
    const choices = Array.from({ length: settings.n }, () => ({ text: '', tokens: [], finish: '' }));
    const answer = { role: 'assistant', text: '', tokens: [], finish: '', turn: null, choices };
    this.transcript.push(answer);
    this.abort = new AbortController();
    changed();
    try {
      const response = await this.post(messages, settings);
      this.request = Number(response.headers.get('X-Octavo-Request').split(',')[0]);
      this.session = response.headers.get('X-Octavo-Session') || this.session;
      await readEvents(response, (event) => {
        this.addEvent(event, choices);
        changed();
      });
    } catch (error) {
      this.error = error.name === 'AbortError' ? 'stopped' : error.message;
    }
    if (!choices.some((choice) => choice.text)) {
      this.transcript.splice(-2); // no answer: the text goes back to the input
      this.draft = text;
    } else if (settings.n === 1) Object.assign(answer, choices[0], { choices: null });
    if (settings.n === 1 && this.session) await this.countTurns(answer);
    this.abort = null;
    changed();
  }

  async post(messages, settings) {
    const body = {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature: settings.temperature,
      top_p: settings.top_p,
      max_tokens: settings.max_tokens,
      n: settings.n,
      ...this.extra,
    };
    if (settings.seed !== '') body.seed = settings.seed;
    if (settings.shade) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    const postWith = (more) =>
      send('POST', '/v1/chat/completions', { body: { ...body, ...more }, signal: this.abort.signal });
    if (settings.n > 1) return postWith({});
    try {
      return await postWith({ session: this.session || 'new' });
    } catch (error) {
      if (error.status !== 404 || !this.session) throw error;
      this.note = SESSION_LOST;
      this.leaveSession();
      return postWith({ session: 'new' });
    }
  }

  addEvent(event, choices) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    for (const part of event.choices || []) {
      const choice = choices[part.index];
      choice.text += (part.delta && part.delta.content) || '';
      if (part.logprobs && part.logprobs.content) choice.tokens.push(...part.logprobs.content);
      if (part.finish_reason) choice.finish = part.finish_reason;
    }
  }

  // The server counts completed turns; a stopped one does not count.
  async countTurns(answer) {
    try {
      const { turns } = await call('GET', `/v1/sessions/${this.session}`);
      if (turns > this.turns) answer.turn = turns;
      this.turns = turns;
    } catch {
      // the session or the server is gone: the next turn handles it
    }
  }

  leaveSession() {
    this.session = null;
    this.turns = 0;
    for (const one of this.transcript) one.turn = null;
  }

  stop() {
    if (this.abort) this.abort.abort();
  }

  // Continues with one of several answers.
  keep(answer, index) {
    Object.assign(answer, answer.choices[index], { choices: null });
    this.leaveSession();
    this.settings.n = 1;
  }

  // A new chat that continues from the end of that turn, with the same blocks.
  async fork(answer) {
    const forked = await call('POST', `/v1/sessions/${this.session}/fork`, { turn: answer.turn });
    const chat = new Chat(this.settings);
    chat.transcript = this.transcript.slice(0, this.transcript.indexOf(answer) + 1).map((one) => ({ ...one }));
    chat.session = forked.id;
    chat.turns = forked.turn;
    chat.note = 'Forked: it holds the same blocks. New turns get blocks of their own.';
    return chat;
  }

  act(verb) {
    return call('POST', `/v1/sessions/${this.session}/${verb}`);
  }

  delete() {
    return this.session ? call('DELETE', `/v1/sessions/${this.session}`) : null;
  }

  pin() {
    const name = `chat-${this.session.slice(0, 6)}`;
    return call('POST', '/v1/kv/pins', { name, session: this.session, ttl: 3600 });
  }
}
