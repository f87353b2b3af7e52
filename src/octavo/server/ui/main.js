// The page: one stream of frames, one state, and the components that render it.

import { Component, html, render, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { changeKey, readKey } from './api.js';
import { Demo } from './demo.js';
import { PoolMap } from './map.js';
import { Events, PinsAndSessions, Replicas, Tenants, Tiers } from './panels.js';
import { Chats, Playground } from './playground.js';
import { Pool, keyOf } from './pool.js';
import { BlockTable, ColdBlocks, Requests, Speeds } from './requests.js';
import { Charts, History } from './series.js';
import { FrameStream } from './stream.js';

const pool = new Pool();
const STATES = {
  connecting: 'connecting',
  live: 'live',
  stale: 'no frames',
  lost: 'not connected',
  asleep: 'asleep',
  refused: 'a key is needed',
};

// The state of the page; `changed` renders it.
class Page {
  constructor(changed) {
    this.changed = changed;
    this.chats = new Chats(changed);
    this.history = new History();
    this.speeds = new Speeds();
    this.painter = { current: null };
    this.selected = null;
    this.state = { name: 'connecting', why: '' };
    this.notice = '';
    this.lostAt = 0;
    this.stream = new FrameStream(
      (frame) => this.take(frame),
      (name, why) => this.setState(name, why),
    );
  }

  select(key) {
    this.selected = key;
    this.highlight();
    this.changed();
  }

  notify(notice) {
    this.notice = notice;
    this.changed();
  }

  setState(name, why) {
    if (name === 'lost' && !this.lostAt) this.lostAt = Date.now();
    if (this.state.name === name && this.state.why === why) return;
    this.state = { name, why };
    this.changed();
  }

  // Applies a frame: draws the map at once, and the rest in the browser's next frame.
  take(frame) {
    const before = pool.parts.server;
    const numRequests = pool.requests.size;
    const dirty = pool.apply(frame);
    if (before && before.run !== pool.parts.server.run) this.reset(numRequests);
    this.lostAt = 0;
    this.speeds.record(pool);
    this.history.record(pool);
    this.draw(dirty);
    this.changed();
  }

  // After a restart of the server its numbers mean other requests.
  reset(numRequests) {
    const at = new Date(pool.parts.server.begun * 1000).toLocaleTimeString();
    const away = this.lostAt ? `, after ${Math.max(1, Math.round((Date.now() - this.lostAt) / 1000))} s` : '';
    const cut = numRequests === 1 ? 'one request was cut off, and ' : `${numRequests} requests were cut off, and `;
    const disk = pool.parts.tier ? ' Blocks on disk are still there.' : '';
    this.notice = `The server restarted at ${at}${away}: ${numRequests ? cut : ''}its memory is empty.${disk}`;
    this.selected = null;
    this.history.reset();
    this.speeds = new Speeds();
    for (const chat of this.chats.all) chat.resetPlacement();
  }

  draw(dirty) {
    const painter = this.painter.current;
    if (!painter) return;
    if (dirty === null) {
      painter.layOut(painter.canvas.parentElement.clientWidth);
      painter.drawAll();
    } else if (dirty.size) painter.draw(dirty);
    this.highlight();
  }

  highlight() {
    const painter = this.painter.current;
    if (!painter || !painter.columns) return;
    painter.choose(this.selected ? pool.tablesWhere((row) => keyOf(row) === this.selected) : []);
  }
}

function App() {
  const [, setVersion] = useState(0);
  const ref = useRef(null);
  if (!ref.current) ref.current = new Page(oncePerFrame(() => setVersion((version) => version + 1)));
  const page = ref.current;
  useEffect(() => {
    page.stream.run();
    window.octavo = { pool, page }; // for tests and the console
  }, []);
  const select = (key) => page.select(key);
  const notify = (notice) => page.notify(notice);
  const { chats, notice, selected, speeds, state } = page;
  const wantsDemo = new URLSearchParams(location.search).has('demo');
  return html`
    <${Top} page=${page} />
    ${notice && html`<p class="notice" role="alert">${notice}
      ${' '}<button class="small" onClick=${() => notify('')}>close</button></p>`}
    ${wantsDemo && html`<${Demo} pool=${pool} chats=${chats} select=${select} notify=${notify} />`}
    <main class=${state.name === 'live' ? '' : 'dim'}>
      <div class="left">
        ${page.stream.replica && html`<${Replicas} shown=${page.stream.replica} />`}
        <section class="panel" id="map" aria-labelledby="map-title">
          <h2 id="map-title">The pool <small>${describeSize()}</small></h2>
          <${PoolMap} pool=${pool} painterRef=${page.painter} select=${select} />
          <${ColdBlocks} pool=${pool} select=${select} />
        </section>
        ${pool.blocks > 0 && html`<${BlockTable} pool=${pool} selected=${selected} select=${select} />
          <${Requests} pool=${pool} speeds=${speeds} selected=${selected} select=${select} />`}
      </div>
      <div class="side"><${Playground} chats=${chats} pool=${pool} select=${select} notify=${notify} /></div>
      ${pool.blocks > 0 && html`<${LowerPanels} page=${page} select=${select} notify=${notify} />`}
    </main>
    <footer class="quiet">Every cell is a block of KV memory. The routes of this page are open to any
      program${readKey() ? '' : html`: see <a href="/docs">the API</a>`}.</footer>`;
}

// The panels under the map are rendered when their data change, or once a second: not with every frame.
function LowerPanels({ page, select, notify }) {
  const { pins, sessions, tenants, tier } = pool.parts;
  const second = Math.floor(pool.now);
  return html`<div class="lower">
    <${Memo} deps=${[page.history.version]}><${Charts} history=${page.history} pool=${pool} /><//>
    <div class="pair">
      <${Memo} deps=${[pins, sessions, second]}>
        <${PinsAndSessions} pool=${pool} select=${select} notify=${notify} /><//>
      <${Memo} deps=${[tier, second]}><${Tiers} pool=${pool} /><//>
    </div>
    <${Memo} deps=${[tenants]}><${Tenants} pool=${pool} /><//>
    <${Memo} deps=${[pool.events, second]}><${Events} pool=${pool} /><//></div>`;
}

// Renders its children only when one of `deps` changes.
class Memo extends Component {
  shouldComponentUpdate({ deps }) {
    return deps.some((dep, i) => dep !== this.props.deps[i]);
  }

  render({ children }) {
    return children;
  }
}

const describeSize = () =>
  pool.blocks
    ? `${pool.blocks.toLocaleString('en')} blocks of ${pool.parts.pool.block_size} tokens, ${pool.parts.pool.device}`
    : 'not known yet';

// However often the result is called, `act` runs once, before the browser's next frame.
function oncePerFrame(act) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      act();
    });
  };
}

function Top({ page }) {
  const { state } = page;
  const about = pool.parts.server;
  const whose = about && about.tenant !== null ? html`, as <span class="tenant">${about.tenant}</span>` : '';
  const why = state.why && state.name !== 'live' ? `: ${state.why}` : '';
  return html`<header class="top">
    <h1><img src="/ui/icon.svg" alt="" width="20" height="20" /> Octavo</h1>
    ${about && html`<span>${about.model} <span class="quiet">${about.version}${whose}</span></span>`}
    <span class="state ${state.name}" role="status">${STATES[state.name]}${why}</span>
    <nav aria-label="Parts of the page"><a href="#map">map</a> <a href="#playground">playground</a>
      ${' '}<a href="#requests">requests</a> <a href="#pins">pins</a> <a href="#events">events</a>
      ${' '}<a href="/ui?demo">demo</a></nav>
    <${Theme} /><${Key} isNeeded=${state.name === 'refused'} />
  </header>`;
}

const NEXT_THEME = { auto: 'light', light: 'dark', dark: 'auto' };

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem('octavo-theme') || 'auto');
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const apply = () => {
      const isDark = theme === 'dark' || (theme === 'auto' && dark.matches);
      document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
      dispatchEvent(new Event('octavo-theme'));
    };
    localStorage.setItem('octavo-theme', theme);
    apply();
    dark.addEventListener('change', apply);
    return () => dark.removeEventListener('change', apply);
  }, [theme]);
  return html`<button class="small" aria-label=${`theme: ${theme}; change it`}
    onClick=${() => setTheme(NEXT_THEME[theme] || 'auto')}>${theme}</button>`;
}

function Key({ isNeeded }) {
  const [text, setText] = useState('');
  if (!isNeeded) {
    return readKey() ? html`<button class="small" onClick=${() => changeKey('')}>forget the key</button>` : null;
  }
  const use = (event) => {
    event.preventDefault();
    changeKey(text.trim());
  };
  return html`<form class="key" onSubmit=${use}>
    <label>key <input type="password" autocomplete="off" value=${text}
      onInput=${(event) => setText(event.target.value)} /></label>
    <button type="submit">use it</button></form>`;
}

render(html`<${App} />`, document.getElementById('app'));
document.querySelector('#app > .loading')?.remove();
