// Charts of the last minutes, with a point per second since the page was opened.

import { html, useEffect, useRef } from './vendor/preact-htm.js';
import { CACHED, FREE } from './pool.js';

const SECONDS = 300;
const WINDOW = 10; // seconds of latencies per percentile

export class History {
  constructor() {
    this.times = [];
    this.lines = {}; // name -> values
    this.version = 0;
    this.last = null; // the counters a second ago
    this.seen = []; // latency counts of the last seconds
  }

  // After a restart the server's counters begin at zero.
  reset() {
    this.last = null;
    this.seen = [];
  }

  record(pool) {
    const at = Date.now() / 1000;
    if (this.last && at - this.last.at < 1) return;
    const { stats, latency } = pool.parts;
    const point = { cached: pool.counts[CACHED], held: pool.blocks - pool.counts[CACHED] - pool.counts[FREE] };
    const before = this.last && this.last.stats;
    const rate = (name) => (before ? Math.max(0, stats[name] - before[name]) / (at - this.last.at) : null);
    if (stats) {
      const prompt = rate('prompt_tokens');
      point.output = rate('output_tokens');
      point.prompt = prompt;
      point.hits = prompt ? (100 * rate('cached_tokens')) / prompt : null;
      point.preempted = rate('preemptions');
    }
    if (latency && latency.first) {
      this.seen.push(latency);
      if (this.seen.length > WINDOW) this.seen.shift();
      for (const kind of ['first', 'between']) {
        const [old, now] = [this.seen[0][kind], latency[kind]];
        const counts = now.counts.map((count, i) => count - old.counts[i]);
        point[`${kind}50`] = percentile(now.upto, counts, 0.5);
        point[`${kind}95`] = percentile(now.upto, counts, 0.95);
      }
    }
    for (const one of pool.parts.tenants || []) if (one.name) point[`tenant ${one.name}`] = one.held;
    this.last = { at, stats: stats && { ...stats } };
    this.#add(at, point);
  }

  #add(at, point) {
    this.times.push(at);
    for (const name of Object.keys(point)) {
      if (!this.lines[name]) this.lines[name] = new Array(this.times.length - 1).fill(null);
    }
    for (const name of Object.keys(this.lines)) this.lines[name].push(point[name] ?? null);
    if (this.times.length > SECONDS) {
      this.times.shift();
      for (const [name, values] of Object.entries(this.lines)) {
        values.shift();
        if (values.every((value) => value === null)) delete this.lines[name]; // a removed tenant
      }
    }
    this.version++;
  }
}

// In milliseconds, interpolated linearly in its bucket; null without values.
export function percentile(upto, counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let left = share * total;
  for (let i = 0; i < counts.length; i++) {
    if (left <= counts[i]) {
      const low = i ? upto[i - 1] : 0;
      const high = i < upto.length ? upto[i] : upto[upto.length - 1];
      return 1000 * (low + ((high - low) * left) / Math.max(1, counts[i]));
    }
    left -= counts[i];
  }
  return null;
}

const HEIGHT = 120;
const DASH = [5, 4];
const shortly = (tick) => (tick >= 10000 ? `${tick / 1000}k` : String(tick));
const timeOfDay = (tick) => new Date(tick * 1000).toTimeString().slice(0, 8);

// The range of times: for a chart with fewer than two points the last minutes, where uPlot would show years.
export function timesShown(low, high, now) {
  if (low !== null && low < high) return [low, high];
  const last = high ?? now;
  return [last - SECONDS, last];
}

// Labels of the time axis; none for an empty chart.
export const timeLabels = (ticks, isEmpty) => ticks.map((tick) => (isEmpty ? '' : timeOfDay(tick)));

function optionsOf(place, lines) {
  const style = getComputedStyle(place);
  const read = (name) => style.getPropertyValue(name).trim();
  const grid = { stroke: read('--rule'), width: 1 };
  const line = (dash, i) => ({ stroke: read(`--line-${i + 1}`), width: 1.5, dash, points: { size: 3 } });
  const axis = { stroke: style.color, ticks: { show: false } };
  return {
    width: Math.max(120, place.clientWidth),
    height: HEIGHT,
    cursor: { drag: { x: false, y: false } },
    legend: { show: false },
    series: [{}, ...lines.map(([, , dash], i) => line(dash, i))],
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 22,
        space: 70,
        values: (chart, ticks) => timeLabels(ticks, !chart.data[0].length),
      },
      { ...axis, grid, size: 44, values: (_, ticks) => ticks.map(shortly) },
    ],
    scales: {
      x: { range: (_, low, high) => timesShown(low, high, Date.now() / 1000) },
      y: { range: (_, low, high) => [0, Math.max(1, high || 1)] },
    },
  };
}

function Chart({ history, title, unit, lines, version }) {
  const place = useRef(null);
  const chart = useRef(null);
  const none = () => history.times.map(() => null);
  const data = () => [history.times, ...lines.map(([name]) => history.lines[name] || none())];
  useEffect(() => {
    const build = () => {
      if (chart.current) chart.current.destroy();
      chart.current = new uPlot(optionsOf(place.current, lines), data(), place.current);
    };
    build();
    const fit = () => chart.current.setSize({ width: Math.max(120, place.current.clientWidth), height: HEIGHT });
    const observer = new ResizeObserver(fit);
    observer.observe(place.current);
    addEventListener('octavo-theme', build);
    return () => {
      observer.disconnect();
      removeEventListener('octavo-theme', build);
      chart.current.destroy();
    };
  }, [lines.map(([name]) => name).join()]);
  useEffect(() => {
    if (chart.current && history.times.length) chart.current.setData(data());
  }, [version]);
  const last = ([name]) => lastOf(history.lines[name] || []);
  const words = lines.map((line) => `${line[1]} ${last(line)}`).join(', ');
  return html`<figure class="chart"><figcaption>${title} <small>${unit}</small>
      ${lines.map((line, i) => html` <span class="key">
        <span class="line-${i + 1}${line[2] ? ' dashed' : ''}"></span>${line[1]} <b>${last(line)}</b></span>`)}
    </figcaption><div ref=${place} role="img" aria-label=${`${title}: ${words} ${unit}`}></div></figure>`;
}

function lastOf(values) {
  const value = values[values.length - 1];
  if (value === null || value === undefined) return '–';
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : value.toFixed(1);
}

const CHARTS = [
  { title: 'Tokens', unit: 'a second', lines: [['output', 'output'], ['prompt', 'prompt', DASH]] },
  { title: 'To the first token', unit: 'ms', lines: [['first50', 'p50'], ['first95', 'p95', DASH]] },
  { title: 'Between tokens', unit: 'ms', lines: [['between50', 'p50'], ['between95', 'p95', DASH]] },
  { title: 'Blocks', unit: '', lines: [['held', 'held'], ['cached', 'cached', DASH]] },
  { title: 'Prompt tokens found', unit: '%', lines: [['hits', 'cached']] },
  { title: 'Preemptions', unit: 'a second', lines: [['preempted', 'preempted']] },
];
const TENANT_CHARTS = [{ title: 'Blocks', unit: '', lines: [['held', 'held']] }];

// The three tenants that hold most, without `shared`.
function chartOfTenants(history) {
  const last = (name) => history.lines[name][history.lines[name].length - 1] || 0;
  const names = Object.keys(history.lines).filter((name) => name.startsWith('tenant ') && !name.endsWith('shared'));
  const most = names.sort((a, b) => last(b) - last(a)).slice(0, 3).sort();
  const lines = most.map((name, i) => [name, name.slice(7), i ? DASH : undefined]);
  return lines.length ? [{ title: 'Held by tenant', unit: 'blocks', lines }] : [];
}

export function Charts({ history, pool }) {
  const charts = pool.tenant === null ? CHARTS.concat(chartOfTenants(history)) : TENANT_CHARTS;
  return html`<section class="panel" id="series" aria-labelledby="series-title"><h2 id="series-title">The last minutes
    <small>since this page was opened</small></h2><div class="charts">
    ${charts.map(
      (chart) => html`<${Chart} key=${chart.title} history=${history} version=${history.version} ...${chart} />`,
    )}
  </div></section>`;
}
