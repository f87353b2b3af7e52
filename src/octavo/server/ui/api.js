// HTTP requests to the server. The key is sent as a header, never in a URL, and kept only for the browser's tab.

const KEY = 'octavo-key';

export const readKey = () => sessionStorage.getItem(KEY) || '';

// Another key may see other data: the page reloads, so that no data of the old key stays on it.
export function changeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  location.reload();
}

// In a cluster: the replica whose pool the page shows, from the page's URL.
const replica = new URLSearchParams(location.search).get('replica');
const ofPool = (path) =>
  replica && /^\/v1\/kv(\/watch)?$/.test(path) ? `${path}?replica=${encodeURIComponent(replica)}` : path;

export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Sends a request. Throws Refusal with the server's message, or TypeError if the server does not answer.
// `keepalive`: it is sent even while the page unloads.
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
    // no JSON: the message is made from the status
  }
  throw new Refusal(response.status, error.code || '', error.message || `the server answered ${response.status}`);
}

export const call = async (method, path, body) => (await send(method, path, { body })).json();

// Calls `onEvent` with the JSON of each server-sent event, until the last one.
export async function readEvents(response, onEvent) {
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
      onEvent(JSON.parse(data));
    }
  }
}
