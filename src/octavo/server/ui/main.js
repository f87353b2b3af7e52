// The page: one stream of frames, one state, and everything that is drawn from it.

import { html, render, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { keepKey, readKey } from './api.js';
import { Demo } from './demo.js';
import { PoolMap, keyOf } from './map.js';
import { BlockTable, Events, Kept, Requests, Speeds, Tenants, Tiers } from './panels.js';
import { Chats, Playground } from './playground.js';
import { Pool } from './pool.js';
import { Charts, History } from './series.js';
import { FrameStream } from './stream.js';

const pool = new Pool();
const speeds = new Speeds();
const history = new History();
const WORDS = { connecting: 'connecting', live: 'live', stale: 'no news', lost: 'not connected', refused: 'a key is needed' };

function App() {
  const [version, setVersion] = useState(0);
  const [state, setState] = useState({ word: 'connecting', why: '' });
  const [selected, setSelected] = useState(null);
  const [notice, setNotice] = useState('');
  const painter = useRef(null);
  const page = useRef(null);
  const refresh = () => setVersion((before) => before + 1);
  if (!page.current) page.current = { chats: new Chats(refresh), run: null, lostAt: 0, selected: null, tasks: [] };
  const select = (key) => {
    page.current.selected = key;
    setSelected(key);
    light(painter.current, key);
  };
  useEffect(() => {
    const take = (frame) => takeFrame(frame, painter.current, page.current, setNotice, refresh);
    const stream = new FrameStream(
      take,
      (word, why) => {
        if (word === 'lost' && !page.current.lostAt) page.current.lostAt = Date.now();
        setState((before) => (before.word === word && before.why === why ? before : { word, why }));
      },
    );
    page.current.stream = stream;
    window.octavo = { pool, select, take, painter: () => painter.current }; // for tests and the curious
    stream.run();
  }, []);
  const { chats } = page.current;
  const about = pool.parts.server;
  return html`
    <header class="top">
      <h1><img src="/ui/icon.svg" alt="" width="20" height="20" /> Octavo</h1>
      <span class="about">${about ? html`${about.model} <span class="quiet">${about.version}${about.tenant !== null ? html`, as <span class="tenant">${about.tenant}</span>` : ''}</span>` : ''}</span>
      <span class="state ${state.word}" role="status">${WORDS[state.word]}${state.why && state.word !== 'live' ? `: ${state.why}` : ''}</span>
      <nav aria-label="Parts of the page"><a href="#map">map</a> <a href="#playground">playground</a> <a href="#requests">requests</a> <a href="#kept">kept</a> <a href="#events">events</a> <a href="/ui?demo">demo</a></nav>
      <${Theme} /> <${Key} state=${state} again=${() => page.current.stream.again()} />
    </header>
    ${notice && html`<p class="notice" role="alert">${notice} <button class="small" onClick=${() => setNotice('')}>close</button></p>`}
    ${new URLSearchParams(location.search).has('demo') && html`<${Demo} pool=${pool} chats=${chats} select=${select} tell=${setNotice} page=${page.current} />`}
    <main class=${state.word === 'live' ? '' : 'dim'}>
      <div class="left">
        <section class="panel" id="map" aria-labelledby="map-title">
          <h2 id="map-title">The pool <small>${pool.blocks ? `${pool.blocks.toLocaleString('en')} blocks of ${pool.parts.pool.block_size} tokens` : 'not known yet'}</small></h2>
          <${PoolMap} pool=${pool} painterRef=${painter} selected=${selected} select=${select} version=${version} />
        </section>
        ${pool.blocks > 0 && html`<${BlockTable} pool=${pool} selected=${selected} select=${select} />
        <${Requests} pool=${pool} speeds=${speeds} selected=${selected} select=${select} />`}
      </div>
      <div class="side"><${Playground} chats=${chats} pool=${pool} select=${select} tell=${setNotice} /></div>
      ${pool.blocks > 0 && html`<div class="below"><${Charts} history=${history} pool=${pool} />
        <div class="pair"><${Kept} pool=${pool} select=${select} tell=${setNotice} /><${Tiers} pool=${pool} /></div>
        <${Tenants} pool=${pool} /><${Events} pool=${pool} /></div>`}
    </main>
    <footer class="quiet">Every cell is a block of KV memory, where it really lies. ${readKey() ? 'The routes' : html`<a href="/docs">The routes</a>`} behind this page serve any program.</footer>`;
}

function takeFrame(frame, painter, page, setNotice, refresh) {
  const running = pool.requests.size;
  const dirty = pool.apply(frame);
  const about = pool.parts.server;
  if (page.run !== null && about.run !== page.run) {
    const away = page.lostAt ? `, after ${Math.max(1, Math.round((Date.now() - page.lostAt) / 1000))} s away` : '';
    setNotice(`The server began again at ${new Date(about.begun * 1000).toLocaleTimeString()}${away}: ${running ? `${running} requests were cut off, and ` : ''}its memory began empty. Sessions on disk are still there.`);
    history.last = null;
    history.seen = [];
    page.select && page.select(null);
  }
  page.run = about.run;
  page.lostAt = 0;
  speeds.look(pool);
  history.look(pool);
  if (painter) {
    if (dirty === null) {
      painter.layOut(painter.canvas.parentElement.clientWidth);
      painter.drawAll();
    } else if (dirty.size) painter.draw(dirty);
    light(painter, page.selected);
  }
  refresh();
}

function light(painter, key) {
  if (painter && painter.columns) painter.choose(key ? pool.tablesWhere((row) => keyOf(row) === key) : []);
}

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem('octavo-theme') || 'auto');
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem('octavo-theme', theme);
    dispatchEvent(new Event('octavo-theme'));
  }, [theme]);
  const next = { auto: 'light', light: 'dark', dark: 'auto' };
  return html`<button class="small" aria-label=${`theme: ${theme}; change it`} onClick=${() => setTheme(next[theme])}>${theme}</button>`;
}

function Key({ state, again }) {
  const [text, setText] = useState('');
  const wanted = state.word === 'refused';
  if (!wanted) {
    return readKey() ? html`<button class="small" onClick=${() => { keepKey(''); again(); }}>forget the key</button>` : null;
  }
  return html`<form class="key" onSubmit=${(event) => { event.preventDefault(); keepKey(text.trim()); setText(''); again(); }}>
    <label>key <input type="password" autocomplete="off" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <button type="submit">use it</button></form>`;
}

render(html`<${App} />`, document.getElementById('app'));
document.querySelector('#app > .loading')?.remove();
