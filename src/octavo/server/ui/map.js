// The map: one cell per block, at a position that changes only when the pool is resized.
//
//   large cells   drawn one by one, each with a mark, so that no state depends on colour alone
//   small cells   one pixel each, scaled without smoothing; only changed ones are written
//
// Grey: normal. Blue: shared. Amber: selected, from lighter at the front of the table to darker at its end. A bar at
// the lower edge: an offload tier has the block as well.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { CACHED, FREE, MOVING, OFFLOADED, OUTSIDE, PINNED, SESSION, SHARED, keyOf, nameOf } from './pool.js';

const GAP_FROM = 3; // cell size in device pixels from which cells have gaps
const MARK_FROM = 13; // cell size in css pixels from which marks are drawn
const CELL_MAX = 40;
const VARIABLES = ['outside', 'free', 'cached', 'session', 'held', 'pinned', 'moving', 'shared'];

// Cells in a row: a multiple of 16, kept unless the pool's size changes much.
export function columnsFor(blocks, before) {
  const ideal = Math.max(16, 16 * Math.ceil(Math.sqrt(2.5 * blocks) / 16));
  return before && ideal < before * 1.5 && ideal > before / 1.5 ? before : ideal;
}

export class MapPainter {
  constructor(canvas, pool) {
    this.canvas = canvas;
    this.pool = pool;
    this.context = canvas.getContext('2d', { alpha: false });
    this.chosen = new Map(); // block -> position in its table, 0 to 1
    this.cursor = -1;
    this.columns = 0;
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(this.canvas);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colours = VARIABLES.map((name) => read(`cell-${name}`));
    this.ground = read('map-ground');
    this.ink = read('map-ink');
    this.mark = read('map-mark');
    this.amber = [read('chosen-first'), read('chosen-last')].map(rgbOf);
    this.pixels = this.colours.map(rgbOf);
  }

  // Computes sizes for this width in css pixels.
  layOut(width) {
    const blocks = Math.max(1, this.pool.blocks);
    const ratio = window.devicePixelRatio || 1;
    const pixels = Math.max(16, Math.floor(width * ratio));
    this.columns = Math.min(columnsFor(blocks, this.columns), pixels);
    this.rows = Math.ceil(blocks / this.columns);
    const cell = Math.min(CELL_MAX * ratio, Math.floor(pixels / this.columns)); // whole pixels, so none is dropped
    this.isFine = cell >= GAP_FROM;
    this.cell = this.isFine ? cell : 1;
    this.css = cell / ratio;
    const [w, h] = [this.columns * this.cell, this.rows * this.cell];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
    }
    this.canvas.style.width = `${this.css * this.columns}px`;
    this.canvas.style.height = `${this.css * this.rows}px`;
    this.gap = this.isFine ? Math.max(1, Math.round(this.cell / 12)) : 0;
    this.hasMarks = this.css >= MARK_FROM;
  }

  drawAll() {
    if (this.isFine) {
      this.context.fillStyle = this.ground;
      this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
      for (let block = 0; block < this.pool.blocks; block++) this.#drawCell(block);
    } else {
      this.image = this.context.createImageData(this.columns, this.rows);
      this.image.data.fill(255);
      const ground = rgbOf(this.ground);
      for (let i = 0; i < this.columns * this.rows; i++) this.#setPixel(i, ground);
      for (let block = 0; block < this.pool.blocks; block++) this.#drawPixel(block);
      this.context.putImageData(this.image, 0, 0);
    }
  }

  draw(blocks) {
    if (this.isFine) {
      for (const block of blocks) if (block < this.pool.blocks) this.#drawCell(block);
      return;
    }
    for (const block of blocks) if (block < this.pool.blocks) this.#drawPixel(block);
    this.context.putImageData(this.image, 0, 0);
  }

  // Highlights the blocks of these tables in order.
  choose(tables) {
    const before = this.chosen;
    this.chosen = new Map();
    for (const table of tables) {
      const last = Math.max(1, table.blocks.length - 1);
      table.blocks.forEach((block, i) => this.chosen.set(block, i / last));
    }
    const changed = [...before.keys()].filter((block) => this.chosen.get(block) !== before.get(block));
    for (const [block, place] of this.chosen) if (before.get(block) !== place) changed.push(block);
    if (changed.length) this.draw(changed);
  }

  point(block) {
    const before = this.cursor;
    this.cursor = block;
    if (before !== block) this.draw([before, block].filter((one) => one >= 0));
  }

  blockAt(x, y) {
    const [column, row] = [Math.floor(x / this.css), Math.floor(y / this.css)];
    const block = row * this.columns + column;
    return column >= 0 && column < this.columns && block >= 0 && block < this.pool.blocks ? block : -1;
  }

  #colourOf(block) {
    const place = this.chosen.get(block);
    return place === undefined ? this.colours[this.pool.states[block]] : cssOf(mix(this.amber, place));
  }

  #drawCell(block) {
    const { context, cell, gap } = this;
    const [x, y] = [(block % this.columns) * cell, Math.floor(block / this.columns) * cell];
    const size = cell - gap;
    context.fillStyle = this.ground;
    context.fillRect(x, y, cell, cell);
    context.fillStyle = this.#colourOf(block);
    context.fillRect(x, y, size, size);
    if (this.hasMarks) this.#drawMark(block, x, y, size);
    if (this.pool.cells[block] & OFFLOADED) {
      context.fillStyle = this.#isDark(block) ? this.mark : this.ink;
      const bar = this.hasMarks ? Math.max(1, size * 0.09) : 1;
      const inset = this.hasMarks ? size * 0.12 : 0;
      context.fillRect(x + inset, y + size - inset - bar, size - 2 * inset, bar);
    }
    if (this.hasMarks && this.chosen.has(block) && this.pool.states[block] === SHARED) {
      context.strokeStyle = this.colours[SHARED];
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, size - 2, size - 2);
    }
    if (block === this.cursor) {
      context.strokeStyle = this.ink;
      context.lineWidth = Math.max(1, gap);
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
  }

  #drawMark(block, x, y, size) {
    const { context, pool } = this;
    const state = pool.states[block];
    context.fillStyle = context.strokeStyle = this.#isDark(block) ? this.mark : this.ink;
    context.lineWidth = Math.max(1, size / 14);
    const [cx, cy] = [x + size / 2, y + size / 2];
    if (state === SHARED) {
      context.font = `600 ${Math.round(size * 0.62)}px system-ui, sans-serif`;
      context.textAlign = 'center';
      context.textBaseline = 'middle';
      context.fillText(String(Math.min(99, pool.numHolders(block))), cx, cy + size * 0.04);
    } else if (state === PINNED) {
      context.strokeRect(x + size * 0.28, y + size * 0.28, size * 0.44, size * 0.44);
    } else if (state === SESSION) {
      context.beginPath();
      context.arc(cx, cy, size * 0.13, 0, 7);
      context.fill();
    } else if (state === MOVING) {
      context.beginPath();
      context.moveTo(x + size * 0.25, cy);
      context.lineTo(cx, y + size * 0.75);
      context.lineTo(x + size * 0.75, cy);
      context.moveTo(cx, y + size * 0.2);
      context.lineTo(cx, y + size * 0.75);
      context.stroke();
    } else if (state === CACHED) {
      context.globalAlpha = 0.35;
      context.strokeRect(x + 1, y + 1, size - 2, size - 2);
      context.globalAlpha = 1;
    }
  }

  #isDark(block) {
    return this.chosen.has(block) || ![FREE, CACHED, OUTSIDE].includes(this.pool.states[block]);
  }

  #drawPixel(block) {
    const place = this.chosen.get(block);
    const isCursor = block === this.cursor;
    const rgb = isCursor ? rgbOf(this.ink) : place === undefined ? null : mix(this.amber, place);
    this.#setPixel(block, rgb || this.pixels[this.pool.states[block]]);
  }

  #setPixel(block, rgb) {
    const at = 4 * block;
    this.image.data[at] = rgb[0];
    this.image.data[at + 1] = rgb[1];
    this.image.data[at + 2] = rgb[2];
  }
}

function rgbOf(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

const mix = ([a, b], place) => a.map((x, i) => Math.round(x + (b[i] - x) * place));
const cssOf = (rgb) => `rgb(${rgb.join(' ')})`;

// The map with its legend and a description of the block under the pointer.
export function PoolMap({ pool, painterRef, select }) {
  const canvas = useRef(null);
  const frame = useRef(null);
  const [cursor, setCursor] = useState(-1);
  useEffect(() => {
    const painter = new MapPainter(canvas.current, pool);
    painterRef.current = painter;
    const fit = () => {
      painter.readColours();
      painter.layOut(frame.current.clientWidth);
      painter.drawAll();
    };
    const observer = new ResizeObserver(fit);
    observer.observe(frame.current);
    addEventListener('octavo-theme', fit);
    return () => {
      observer.disconnect();
      removeEventListener('octavo-theme', fit);
    };
  }, []);
  const point = (block) => {
    setCursor(block);
    painterRef.current.point(block);
  };
  const blockAt = (event) => painterRef.current.blockAt(event.offsetX, event.offsetY);
  const pick = (block) => {
    const owner = block < 0 ? null : pool.ownersOf(block)[0];
    select(owner ? keyOf(owner.row) : null);
  };
  // A touch pointer leaves after each tap; its block stays described.
  const leave = (event) => event.pointerType !== 'touch' && point(-1);
  const onKey = (event) => {
    const { columns } = painterRef.current;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (event.key === 'Enter' || event.key === ' ') pick(cursor);
    else if (step) {
      const next = cursor < 0 ? 0 : cursor + step;
      if (next >= 0 && next < pool.blocks) point(next);
    } else return;
    event.preventDefault();
  };
  return html`
    <div class="map-frame" ref=${frame}>
      <canvas ref=${canvas} tabindex="0" role="application"
        aria-label="Map of the pool's blocks. Arrow keys move from block to block, Enter selects its holder."
        onPointerMove=${(event) => point(blockAt(event))} onPointerLeave=${leave} onKeyDown=${onKey}
        onClick=${(event) => pick(blockAt(event))}></canvas>
    </div>
    <${BlockInfo} pool=${pool} block=${cursor} select=${select} />
    <${Legend} pool=${pool} />`;
}

function BlockInfo({ pool, block, select }) {
  if (block < 0 || !pool.parts.pool) {
    return html`<p class="block-words quiet">Point at a block, or move with the arrow keys, to see its
      holders. Select it to highlight its holder's table.</p>`;
  }
  const owners = pool.ownersOf(block);
  const name = nameOf(pool.cells[block]);
  const kind = pool.kinds.find(({ state }) => state === pool.states[block]) || pool.kinds[0];
  const used = pool.touched[block];
  return html`<div class="block-words">
    <span aria-live="polite"><strong>Block ${block}</strong>
    ${' '}${kind.word}${owners.length > 1 ? ` by ${owners.length}` : ''}
    ${name && html` · name <code>${name}</code>`}${pool.cells[block] & OFFLOADED ? ' · also offloaded' : ''}</span>
    ${' · '}${used ? `holders last changed ${ago(pool.now - used)}` : 'holders unchanged since this page was opened'}
    <div class="owners">${owners.map((owner) => html`<${Owner} owner=${owner} pool=${pool} select=${select} />`)}</div>
  </div>`;
}

function Owner({ owner, pool, select }) {
  const { row, index, length } = owner;
  const size = pool.parts.pool.block_size;
  return html`<div><button class="link" onClick=${() => select(keyOf(row))}>${row.label || row.kind}</button>
    ${row.tenant ? ` of ${row.tenant}` : ''}: block ${index + 1} of ${length},
    tokens ${index * size} to ${(index + 1) * size - 1}</div>`;
}

export const ago = (seconds) => {
  if (seconds < 1) return 'just now';
  return seconds < 90 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`;
};

const number = (value) => value.toLocaleString('en');

function Legend({ pool }) {
  const { tier } = pool.parts;
  return html`<ul class="legend" aria-label="Legend, with the number of blocks of each kind">
    ${pool.kinds.map(
      ({ state, word, meaning }) => html`<li title=${meaning}>
        <span class="swatch ${word.split(' ')[0]}"></span>${word} <b>${number(pool.counts[state])}</b></li>`,
    )}
    ${tier && html`<li title="blocks in offload tiers that can be found by name">
      <span class="swatch offloaded"></span>offloaded <b>${number(tier.found)}</b></li>`}
    <li title="your selection, its first block lightest"><span class="swatch chosen"></span>selected</li>
  </ul>`;
}
