// The page: one stream of frames, one state, and everything that is drawn from it.

import { Component, html, render, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { changeKey, readKey } from './api.js';
import { Demo } from './demo.js';
import { PoolMap } from './map.js';
import { Events, Kept, Tenants, Tiers } from './panels.js';
import { Chats, Playground } from './playground.js';
import { Pool, keyOf } from './pool.js';
import { BlockTable, ColdBlocks, Requests, Speeds } from './requests.js';
import { Replicas } from './replicas.js';
import { Charts, History } from './series.js';
import { FrameStream } from './stream.js';

const pool = new Pool();
const WORDS = {
  connecting: 'connecting',
  live: 'live',
  stale: 'no news',
  lost: 'not connected',
  asleep: 'asleep',
  refused: 'a key is needed',
};

// What lives as long as the page does. `changed` draws it again.
class Page {
  constructor(changed) {
    this.changed = changed;
    this.chats = new Chats(changed);
    this.history = new History();
    this.speeds = new Speeds();
    this.painter = { current: null };
    this.selected = null;
    this.state = { word: 'connecting', why: '' };
    this.notice = '';
    this.lostAt = 0;
    this.stream = new FrameStream(
      (frame) => this.take(frame),
      (word, why) => this.tellState(word, why),
    );
  }

  select(key) {
    this.selected = key;
    this.light();
    this.changed();
  }

  tell(notice) {
    this.notice = notice;
    this.changed();
  }

  tellState(word, why) {
    if (word === 'lost' && !this.lostAt) this.lostAt = Date.now();
    if (this.state.word === word && this.state.why === why) return;
    this.state = { word, why };
    this.changed();
  }

  // One frame: the state, then the map at once, the rest with the browser's next picture.
  take(frame) {
    const before = pool.parts.server;
    const numRequests = pool.requests.size;
    const dirty = pool.apply(frame);
    if (before && before.run !== pool.parts.server.run) this.beginAgain(numRequests);
    this.lostAt = 0;
    this.speeds.look(pool);
    this.history.look(pool);
    this.draw(dirty);
    this.changed();
  }

  // Another server, or the same one begun again: its numbers mean other requests.
  beginAgain(numRequests) {
    const at = new Date(pool.parts.server.begun * 1000).toLocaleTimeString();
    const away = this.lostAt ? `, after ${Math.max(1, Math.round((Date.now() - this.lostAt) / 1000))} s away` : '';
    const cut = numRequests === 1 ? 'one request was cut off, and ' : `${numRequests} requests were cut off, and `;
    const disk = pool.parts.tier ? ' What was on disk is still there.' : '';
    this.notice = `The server began again at ${at}${away}: ${numRequests ? cut : ''}its memory began empty.${disk}`;
    this.selected = null;
    this.history.beginAgain();
    this.speeds = new Speeds();
    for (const chat of this.chats.all) chat.forgetPlace();
  }

  draw(dirty) {
    const painter = this.painter.current;
    if (!painter) return;
    if (dirty === null) {
      painter.layOut(painter.canvas.parentElement.clientWidth);
      painter.drawAll();
    } else if (dirty.size) painter.draw(dirty);
    this.light();
  }

  light() {
    const painter = this.painter.current;
    if (!painter || !painter.columns) return;
    painter.choose(this.selected ? pool.tablesWhere((row) => keyOf(row) === this.selected) : []);
  }
}

function App() {
  const [, setVersion] = useState(0);
  const ref = useRef(null);
  if (!ref.current) ref.current = new Page(oncePerPicture(() => setVersion((version) => version + 1)));
  const page = ref.current;
  useEffect(() => {
    page.stream.run();
    window.octavo = { pool, page }; // for tests and the curious
  }, []);
  const select = (key) => page.select(key);
  const tell = (notice) => page.tell(notice);
  const { chats, notice, selected, speeds, state } = page;
  const wantsDemo = new URLSearchParams(location.search).has('demo');
  return html`
    <${Top} page=${page} />
    ${notice && html`<p class="notice" role="alert">${notice}
      ${' '}<button class="small" onClick=${() => tell('')}>close</button></p>`}
    ${wantsDemo && html`<${Demo} pool=${pool} chats=${chats} select=${select} tell=${tell} />`}
    <main class=${state.word === 'live' ? '' : 'dim'}>
      <div class="left">
        ${page.stream.replica && html`<${Replicas} shown=${page.stream.replica} />`}
        <section class="panel" id="map" aria-labelledby="map-title">
          <h2 id="map-title">The pool <small>${sizeInWords()}</small></h2>
          <${PoolMap} pool=${pool} painterRef=${page.painter} select=${select} />
          <${ColdBlocks} pool=${pool} select=${select} />
        </section>
        ${pool.blocks > 0 && html`<${BlockTable} pool=${pool} selected=${selected} select=${select} />
          <${Requests} pool=${pool} speeds=${speeds} selected=${selected} select=${select} />`}
      </div>
      <div class="side"><${Playground} chats=${chats} pool=${pool} select=${select} tell=${tell} /></div>
      ${pool.blocks > 0 && html`<${Below} page=${page} select=${select} tell=${tell} />`}
    </main>
    <footer class="quiet">Every cell is a block of KV memory, where it really lies. The routes behind this page serve
      any program${readKey() ? '' : html`: <a href="/docs">which they are</a>`}.</footer>`;
}

// What stands below is drawn again when it says something new, or a second later: not with every frame.
function Below({ page, select, tell }) {
  const { pins, sessions, tenants, tier } = pool.parts;
  const second = Math.floor(pool.now);
  return html`<div class="below">
    <${Still} deps=${[page.history.version]}><${Charts} history=${page.history} pool=${pool} /><//>
    <div class="pair">
      <${Still} deps=${[pins, sessions, second]}><${Kept} pool=${pool} select=${select} tell=${tell} /><//>
      <${Still} deps=${[tier, second]}><${Tiers} pool=${pool} /><//>
    </div>
    <${Still} deps=${[tenants]}><${Tenants} pool=${pool} /><//>
    <${Still} deps=${[pool.events, second]}><${Events} pool=${pool} /><//></div>`;
}

// Its children are drawn again when one of `deps` is another; their own state is theirs.
class Still extends Component {
  shouldComponentUpdate({ deps }) {
    return deps.some((dep, i) => dep !== this.props.deps[i]);
  }

  render({ children }) {
    return children;
  }
}

const sizeInWords = () =>
  pool.blocks
    ? `${pool.blocks.toLocaleString('en')} blocks of ${pool.parts.pool.block_size} tokens, ${pool.parts.pool.device}`
    : 'not known yet';

// However often it is called, `act` follows once, before the browser draws.
function oncePerPicture(act) {
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
  const why = state.why && state.word !== 'live' ? `: ${state.why}` : '';
  return html`<header class="top">
    <h1><img src="/ui/icon.svg" alt="" width="20" height="20" /> Octavo</h1>
    ${about && html`<span>${about.model} <span class="quiet">${about.version}${whose}</span></span>`}
    <span class="state ${state.word}" role="status">${WORDS[state.word]}${why}</span>
    <nav aria-label="Parts of the page"><a href="#map">map</a> <a href="#playground">playground</a>
      ${' '}<a href="#requests">requests</a> <a href="#kept">kept</a> <a href="#events">events</a>
      ${' '}<a href="/ui?demo">demo</a></nav>
    <${Theme} /><${Key} isWanted=${state.word === 'refused'} />
  </header>`;
}

const THEMES = { auto: 'light', light: 'dark', dark: 'auto' }; // and which follows

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
    onClick=${() => setTheme(THEMES[theme] || 'auto')}>${theme}</button>`;
}

function Key({ isWanted }) {
  const [text, setText] = useState('');
  if (!isWanted) {
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
