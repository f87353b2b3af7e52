// Talking to the server. The key is in a header, never in a URL, and is forgotten with the browser's tab.

const KEY = 'octavo-key';

export const readKey = () => sessionStorage.getItem(KEY) || '';

// Another key sees other things: the page begins anew, so that nothing of the old one's stays on it.
export function changeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  location.reload();
}

// Of a cluster: the replica whose pool the page shows, as its address names it.
const replica = new URLSearchParams(location.search).get('replica');
const ofPool = (path) =>
  replica && /^\/v1\/kv(\/watch)?$/.test(path) ? `${path}?replica=${encodeURIComponent(replica)}` : path;

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The response of one request. Throws Refused with the server's own words, or TypeError where none answers.
// `keepalive`: it is sent also while the page is left.
export async function send(method, path, { body, signal, keepalive } = {}) {
  const headers = { Accept: 'application/json' };
  if (readKey()) headers.Authorization = `Bearer ${readKey()}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const text = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(ofPool(path), { method, headers, body: text, signal, keepalive, cache: 'no-store' });
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // no JSON: the status has to do
  }
  throw new Refused(response.status, error.code || '', error.message || `the server answered ${response.status}`);
}

export const call = async (method, path, body) => (await send(method, path, { body })).json();

// Calls `take` with the JSON of each server-sent event, until the last one.
export async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      const data = event.slice(6);
      if (data === '[DONE]') return;
      take(JSON.parse(data));
    }
  }
}
