// Chats of the playground: what was said, and how a turn is asked for. No markup in here.
//
// With one answer a chat is a session of the server's: its blocks stay between the turns, and it can be forked,
// suspended, resumed and pinned. Several answers side by side are an ordinary request; the one that is kept goes
// on as a new session.

import { call, readEvents, send } from './api.js';

export const SETTINGS = { system: 'You are a helpful assistant.', temperature: 0.7, top_p: 0.95, max_tokens: 256, seed: '', n: 1, shade: false };
// Further fields of the API may be given to a chat as `extra`.

let numChats = 0;

export class Chat {
  constructor(settings = {}, extra = {}) {
    this.extra = extra;
    this.id = ++numChats;
    this.settings = { ...SETTINGS, ...settings };
    this.said = []; // {role, text, tokens, finish, turn, choices}
    this.session = null;
    this.turns = 0; // of the session, that have ended
    this.request = null; // the engine's id of the turn that runs, or ran last
    this.usage = null;
    this.error = '';
    this.note = '';
    this.abort = null;
  }

  get isBusy() {
    return this.abort !== null;
  }

  get title() {
    const first = this.said.find((one) => one.role === 'user');
    return first ? first.text.slice(0, 40) : `chat ${this.id}`;
  }

  get messages() {
    const system = this.settings.system.trim();
    const before = system ? [{ role: 'system', content: system }] : [];
    return before.concat(this.said.map((one) => ({ role: one.role, content: one.text })));
  }

  // Says it, and calls `changed` whenever there is something to show. Throws nothing: what went wrong is `error`.
  async say(text, changed) {
    const { settings } = this;
    this.error = this.note = '';
    this.said.push({ role: 'user', text });
    const messages = this.messages;
    const choices = Array.from({ length: settings.n }, () => ({ text: '', tokens: [], finish: '' }));
    const answer = { role: 'assistant', text: '', tokens: [], finish: '', turn: null, choices };
    this.said.push(answer);
    this.abort = new AbortController();
    changed();
    try {
      const response = await this.#ask(messages);
      this.request = Number(response.headers.get('X-Octavo-Request').split(',')[0]);
      this.session = response.headers.get('X-Octavo-Session') || this.session;
      await readEvents(response, (event) => {
        this.#take(event, choices);
        changed();
      });
    } catch (error) {
      this.error = error.name === 'AbortError' ? 'stopped' : error.message;
    }
    this.abort = null;
    if (settings.n === 1) {
      Object.assign(answer, choices[0], { choices: null });
      if (answer.finish === 'stop' || answer.finish === 'length') answer.turn = ++this.turns;
      else if (!answer.text) this.said.splice(-2); // nothing was said: the turn can be tried again
    }
    changed();
  }

  async #ask(messages) {
    const { settings } = this;
    const body = {
      messages, stream: true, stream_options: { include_usage: true }, temperature: settings.temperature,
      top_p: settings.top_p, max_tokens: settings.max_tokens, n: settings.n, ...this.extra,
    };
    if (settings.seed !== '') body.seed = Number(settings.seed);
    if (settings.shade) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    if (settings.n > 1) return send('POST', '/v1/chat/completions', body, this.abort.signal);
    try {
      return await send('POST', '/v1/chat/completions', { ...body, session: this.session || 'new' }, this.abort.signal);
    } catch (error) {
      if (error.status !== 404 || !this.session) throw error;
      this.note = 'The server does not know this chat any more (it began again, or the chat expired): it goes on as a new session.';
      this.session = null;
      this.turns = 0;
      for (const one of this.said) one.turn = null;
      return send('POST', '/v1/chat/completions', { ...body, session: 'new' }, this.abort.signal);
    }
  }

  #take(event, choices) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    for (const part of event.choices || []) {
      const choice = choices[part.index];
      choice.text += (part.delta && part.delta.content) || '';
      if (part.logprobs && part.logprobs.content) choice.tokens.push(...part.logprobs.content);
      if (part.finish_reason) choice.finish = part.finish_reason;
    }
  }

  stop() {
    if (this.abort) this.abort.abort();
  }

  // Of several answers, go on with this one.
  keep(answer, index) {
    Object.assign(answer, answer.choices[index], { choices: null });
    this.session = null;
    this.turns = 0;
    for (const one of this.said) one.turn = null;
    this.settings.n = 1;
  }

  // Another chat that goes on from the end of that turn, with the same blocks.
  async fork(answer) {
    const forked = await call('POST', `/v1/sessions/${this.session}/fork`, { turn: answer.turn });
    const chat = new Chat(this.settings);
    chat.said = this.said.slice(0, this.said.indexOf(answer) + 1).map((one) => ({ ...one }));
    chat.session = forked.id;
    chat.turns = answer.turn;
    chat.note = `Forked: it holds the same blocks, and copies none until it is written to.`;
    return chat;
  }

  act(verb) {
    return call('POST', `/v1/sessions/${this.session}/${verb}`);
  }

  pin() {
    return call('POST', '/v1/kv/pins', { name: `chat-${this.session.slice(0, 6)}`, session: this.session, ttl: 3600 });
  }
}
