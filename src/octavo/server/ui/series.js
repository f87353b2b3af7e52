// The last minutes, a point for each second since the page was opened: nothing is recorded while nobody looks.

import { html, useEffect, useRef } from './vendor/preact-htm.js';
import { CACHED, FREE } from './pool.js';

const SECONDS = 300;
const WINDOW = 10; // seconds of latencies that a percentile is taken over

export class History {
  constructor() {
    this.times = [];
    this.lines = {}; // name -> values
    this.version = 0;
    this.last = null; // what the counters said a second ago
    this.seen = []; // latency counts of the last seconds
  }

  look(pool) {
    const at = Date.now() / 1000;
    if (this.last && at - this.last.at < 1) return;
    const { stats, latency } = pool.parts;
    const point = { cached: pool.counts[CACHED], held: pool.blocks - pool.counts[CACHED] - pool.counts[FREE] };
    const rate = (name) => (this.last && this.last.stats ? Math.max(0, stats[name] - this.last.stats[name]) / (at - this.last.at) : null);
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
      for (const values of Object.values(this.lines)) values.shift();
    }
    this.version++;
  }
}

// In milliseconds, inside its bucket as if values lay evenly in it; null where there are none.
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

function Chart({ history, title, unit, lines, version }) {
  const place = useRef(null);
  const chart = useRef(null);
  const colours = () => {
    const style = getComputedStyle(place.current);
    return ['--line-1', '--line-2', '--line-3'].map((name) => style.getPropertyValue(name).trim());
  };
  const data = () => [history.times, ...lines.map(([name]) => history.lines[name] || history.times.map(() => null))];
  useEffect(() => {
    const build = () => {
      if (chart.current) chart.current.destroy();
      const [one, two, three] = colours();
      const ink = getComputedStyle(place.current).color;
      const grid = { stroke: getComputedStyle(place.current).getPropertyValue('--rule').trim(), width: 1 };
      chart.current = new uPlot(
        {
          width: Math.max(120, place.current.clientWidth),
          height: 120,
          cursor: { drag: { x: false, y: false } },
          legend: { show: false },
          series: [{}, ...lines.map(([, , dash], i) => ({ stroke: [one, two, three][i], width: 1.5, dash, points: { size: 3 } }))],
          axes: [
            { stroke: ink, grid: { show: false }, ticks: { show: false }, size: 22, space: 60 },
            { stroke: ink, grid, ticks: { show: false }, size: 44, values: (_, ticks) => ticks.map((tick) => (tick >= 10000 ? `${tick / 1000}k` : String(tick))) },
          ],
          scales: { y: { range: (_, low, high) => [0, Math.max(1, high || 1)] } },
        },
        data(),
        place.current,
      );
    };
    build();
    const observer = new ResizeObserver(() => chart.current.setSize({ width: Math.max(120, place.current.clientWidth), height: 120 }));
    observer.observe(place.current);
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', build);
    addEventListener('octavo-theme', build);
    return () => {
      observer.disconnect();
      scheme.removeEventListener('change', build);
      removeEventListener('octavo-theme', build);
      chart.current.destroy();
    };
  }, [lines.map(([name]) => name).join()]);
  useEffect(() => {
    if (chart.current && history.times.length) chart.current.setData(data());
  }, [version]);
  const last = (name) => {
    const values = history.lines[name] || [];
    const value = values[values.length - 1];
    return value === null || value === undefined ? '–' : value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : value.toFixed(1);
  };
  return html`<figure class="chart"><figcaption>${title} <small>${unit}</small>
      ${lines.map(([name, word, dash], i) => html` <span class="key"><span class="line-${i + 1}${dash ? ' dashed' : ''}"></span>${word} <b>${last(name)}</b></span>`)}
    </figcaption><div ref=${place} role="img" aria-label=${`${title}: ${lines.map(([name, word]) => `${word} ${last(name)}`).join(', ')} ${unit}`}></div></figure>`;
}

const DASH = [5, 4];

export function Charts({ history, pool }) {
  const { version } = history;
  const tenants = Object.keys(history.lines).filter((name) => name.startsWith('tenant ') && name !== 'tenant shared' && name !== 'tenant once shared').slice(0, 3);
  const all = !!pool.parts.stats;
  return html`<section class="panel" id="series" aria-labelledby="series-title"><h2 id="series-title">The last minutes
    <small>since this page was opened</small></h2><div class="charts">
    ${all && html`<${Chart} history=${history} version=${version} title="Tokens" unit="a second" lines=${[['output', 'output'], ['prompt', 'prompt', DASH]]} />`}
    ${all && html`<${Chart} history=${history} version=${version} title="To the first token" unit="ms" lines=${[['first50', 'p50'], ['first95', 'p95', DASH]]} />`}
    ${all && html`<${Chart} history=${history} version=${version} title="Between tokens" unit="ms" lines=${[['between50', 'p50'], ['between95', 'p95', DASH]]} />`}
    <${Chart} history=${history} version=${version} title="Blocks" unit="" lines=${[['held', 'held'], ['cached', 'cached', DASH]]} />
    ${all && html`<${Chart} history=${history} version=${version} title="Prompt tokens found" unit="%" lines=${[['hits', 'cached']]} />`}
    ${all && html`<${Chart} history=${history} version=${version} title="Preemptions" unit="a second" lines=${[['preempted', 'preempted']]} />`}
    ${tenants.length > 0 && html`<${Chart} history=${history} version=${version} title="Held by tenant" unit="blocks"
      lines=${tenants.map((name, i) => [name, name.slice(7), i ? DASH : undefined])} />`}
  </div></section>`;
}
