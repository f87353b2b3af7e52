// Chats of the playground: what was said, and how a turn is asked for. No markup in here.
//
// With one answer a chat is a session of the server's: its blocks stay between the turns, and it can be forked,
// suspended, resumed and pinned. Several answers side by side are an ordinary request; the one that is kept goes
// on as a new session. Which turn of the session an answer was, the server tells.

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
const FORGOTTEN =
  'The server does not know this chat any more (it began again, or the chat expired): it goes on as a new session.';

let numChats = 0;

export class Chat {
  // `extra`: further fields of the API for its requests.
  constructor(settings = {}, extra = {}) {
    this.id = ++numChats;
    this.settings = { ...SETTINGS, ...settings };
    this.extra = extra;
    this.said = []; // {role, text, tokens, finish, turn, choices}
    this.session = null;
    this.turns = 0; // of the session, that have ended
    this.draft = ''; // what is being written
    this.usage = null;
    this.error = '';
    this.note = '';
    this.abort = null;
    this.forgetPlace();
  }

  // The engine's numbers mean something else now, or nothing.
  forgetPlace() {
    this.request = null; // the engine's id of the turn that runs, or ran last
    this.remembered = null; // where its blocks were when it last had some
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

  // A setting as it was typed; what is no number in its bounds is put right.
  set(name, value) {
    if (name in BOUNDS) {
      const [low, high] = BOUNDS[name];
      if (value === '' || Number.isNaN(Number(value))) value = name === 'seed' ? '' : SETTINGS[name];
      else value = Math.min(high, Math.max(low, Number(value)));
    }
    this.settings[name] = value;
  }

  // Says it, and calls `changed` whenever there is something to show. Throws nothing: what went wrong is `error`.
  async say(text, changed) {
    const settings = { ...this.settings };
    this.error = this.note = '';
    this.said.push({ role: 'user', text });
    const messages = this.messages;
    const choices = Array.from({ length: settings.n }, () => ({ text: '', tokens: [], finish: '' }));
    const answer = { role: 'assistant', text: '', tokens: [], finish: '', turn: null, choices };
    this.said.push(answer);
    this.abort = new AbortController();
    changed();
    try {
      const response = await this.ask(messages, settings);
      this.request = Number(response.headers.get('X-Octavo-Request').split(',')[0]);
      this.session = response.headers.get('X-Octavo-Session') || this.session;
      await readEvents(response, (event) => {
        this.take(event, choices);
        changed();
      });
    } catch (error) {
      this.error = error.name === 'AbortError' ? 'stopped' : error.message;
    }
    if (!choices.some((choice) => choice.text)) {
      this.said.splice(-2); // nothing was answered: it can be tried again
      this.draft = text;
    } else if (settings.n === 1) Object.assign(answer, choices[0], { choices: null });
    if (settings.n === 1 && this.session) await this.countTurns(answer);
    this.abort = null;
    changed();
  }

  async ask(messages, settings) {
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
    const post = (more) =>
      send('POST', '/v1/chat/completions', { body: { ...body, ...more }, signal: this.abort.signal });
    if (settings.n > 1) return post({});
    try {
      return await post({ session: this.session || 'new' });
    } catch (error) {
      if (error.status !== 404 || !this.session) throw error;
      this.note = FORGOTTEN;
      this.leaveSession();
      return post({ session: 'new' });
    }
  }

  take(event, choices) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) this.usage = event.usage;
    for (const part of event.choices || []) {
      const choice = choices[part.index];
      choice.text += (part.delta && part.delta.content) || '';
      if (part.logprobs && part.logprobs.content) choice.tokens.push(...part.logprobs.content);
      if (part.finish_reason) choice.finish = part.finish_reason;
    }
  }

  // The server counts the turns that ended well; one that was stopped in time is none.
  async countTurns(answer) {
    try {
      const { turns } = await call('GET', `/v1/sessions/${this.session}`);
      if (turns > this.turns) answer.turn = turns;
      this.turns = turns;
    } catch {
      // it is gone, or the server is: the next turn will find out
    }
  }

  leaveSession() {
    this.session = null;
    this.turns = 0;
    for (const one of this.said) one.turn = null;
  }

  stop() {
    if (this.abort) this.abort.abort();
  }

  // Of several answers, go on with this one.
  keep(answer, index) {
    Object.assign(answer, answer.choices[index], { choices: null });
    this.leaveSession();
    this.settings.n = 1;
  }

  // Another chat that goes on from the end of that turn, with the same blocks.
  async fork(answer) {
    const forked = await call('POST', `/v1/sessions/${this.session}/fork`, { turn: answer.turn });
    const chat = new Chat(this.settings);
    chat.said = this.said.slice(0, this.said.indexOf(answer) + 1).map((one) => ({ ...one }));
    chat.session = forked.id;
    chat.turns = forked.turn;
    chat.note = 'Forked: it holds the same blocks. What is said from here on is its own.';
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
