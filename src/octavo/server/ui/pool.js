// The state of the pool, from the frames of the stream (format in src/octavo/server/frames.py). The holders of a
// block are counted from the block tables.

const SNAPSHOT = 1;
const ENDED_MAX = 1000; // ended requests whose rows are kept
export const NAMED = 1;
export const OFFLOADED = 2;

// States of a block; on the map, a higher one is darker.
export const OUTSIDE = 0;
export const FREE = 1;
export const CACHED = 2;
export const SESSION = 3;
export const HELD = 4;
export const PINNED = 5;
export const MOVING = 6;
export const SHARED = 7;

export const KINDS = [
  { state: FREE, word: 'free', meaning: 'no holder and no name' },
  { state: CACHED, word: 'cached', meaning: 'no holder; prompts with the same prefix find it by its name' },
  { state: SESSION, word: 'session', meaning: 'kept for a chat between two turns' },
  { state: HELD, word: 'held', meaning: 'one running sequence holds it' },
  { state: PINNED, word: 'pinned', meaning: 'a pin holds it, so it is not evicted' },
  { state: MOVING, word: 'moving', meaning: 'in transfer to or from an offload tier' },
  { state: SHARED, word: 'shared', meaning: 'several holders share it' },
];

const NOT_YOURS = {
  state: FREE,
  word: 'not yours',
  meaning: 'free, or used by other tenants',
};
const KIND_OF = { sequence: 0, session: 1, pin: 2, fetch: 3, store: 3 };

export class Pool {
  constructor() {
    this.number = 0;
    this.clear(0);
    this.events = [];
  }

  clear(capacity) {
    this.capacity = capacity;
    this.cells = new Uint32Array(capacity);
    this.holders = [0, 1, 2, 3].map(() => new Uint16Array(capacity)); // by kind: sequence, session, pin, moving
    this.states = new Uint8Array(capacity);
    this.touched = new Float64Array(capacity); // engine time when holders last changed; 0: not since the page opened
    this.counts = new Uint32Array(8); // blocks by state
    this.tables = new Map();
    this.requests = new Map();
    this.ended = new Map(); // the last rows of requests that have ended
    this.parts = {};
  }

  // The tenant of the key, which does not see other tenants' blocks; null for an operator.
  get tenant() {
    return this.parts.server ? this.parts.server.tenant : null;
  }

  // The kinds of blocks that the key may see.
  get kinds() {
    if (this.tenant === null) return KINDS;
    return [NOT_YOURS, ...KINDS.filter(({ state }) => state !== FREE && state !== CACHED)];
  }

  get blocks() {
    return this.parts.pool ? this.parts.pool.blocks : 0;
  }

  // Applies a frame, an ArrayBuffer without its length field. Returns the blocks that changed, or null for all.
  apply(frame) {
    const head = new DataView(frame);
    const [number, kind, length] = [0, 4, 8].map((at) => head.getUint32(at, true));
    const json = JSON.parse(new TextDecoder().decode(new Uint8Array(frame, 12, length)));
    const rest = new Uint32Array(frame, 12 + length);
    const { server, pool } = this.parts;
    if (kind === SNAPSHOT) {
      const isSame = server && json.server.run === server.run && json.pool.capacity === this.capacity;
      const { touched, ended } = this;
      this.clear(json.pool.capacity);
      if (isSame) [this.touched, this.ended] = [touched, ended];
    } else if (number !== this.number + 1) {
      throw new Error(`frame ${number} came after ${this.number}`);
    }
    this.number = number;
    this.now = json.now;
    this.isSnapshot = kind === SNAPSHOT;
    const dirty = new Set();
    this.#applyJson(json);
    this.#applyNumbers(rest, dirty);
    if (this.isSnapshot || pool.blocks !== this.blocks) {
      this.#updateAllStates();
      return null;
    }
    for (const block of dirty) this.#updateState(block);
    return dirty;
  }

  #end(id) {
    if (this.requests.has(id)) this.ended.set(id, this.requests.get(id));
    if (this.ended.size > ENDED_MAX) this.ended.delete(this.ended.keys().next().value);
    this.requests.delete(id);
  }

  #applyJson(json) {
    for (const row of json.holders || []) {
      const table = this.tables.get(row.number);
      if (table) table.row = row;
      else this.tables.set(row.number, { row, blocks: [] });
    }
    for (const row of json.requests || []) this.requests.set(row.id, row);
    for (const id of json.requests_gone || []) this.#end(id);
    for (const name of Object.keys(json)) {
      if (!['holders', 'requests', 'requests_gone', 'events', 'now'].includes(name)) this.parts[name] = json[name];
    }
    if (json.events && json.events.length) {
      const oldest = json.events[json.events.length - 1].at;
      const isOld = ({ at, text }) =>
        at < oldest || (at === oldest && !json.events.some((other) => other.at === at && other.text === text));
      this.events = json.events.concat(this.events.filter(isOld)).slice(0, 500);
    }
  }

  #applyNumbers(rest, dirty) {
    let at = 1;
    for (; at < 1 + rest[0]; at++) {
      const table = this.tables.get(rest[at]);
      this.#applyTable(table, 0, [], dirty);
      this.tables.delete(rest[at]);
    }
    const changed = rest[at++];
    for (let i = 0; i < changed; i++) {
      const [number, kept, further] = [rest[at], rest[at + 1], rest[at + 2]];
      this.#applyTable(this.tables.get(number), kept, rest.subarray(at + 3, at + 3 + further), dirty);
      at += 3 + further;
    }
    const count = rest[at++];
    if (this.isSnapshot) {
      this.cells.set(rest.subarray(at, at + count));
      return;
    }
    for (let i = at; i < at + 2 * count; i += 2) {
      this.cells[rest[i]] = rest[i + 1];
      dirty.add(rest[i]);
    }
  }

  #applyTable(table, kept, further, dirty) {
    const counts = this.holders[KIND_OF[table.row.kind] ?? 2];
    const change = (block, by) => {
      counts[block] += by;
      if (!this.isSnapshot) this.touched[block] = this.now;
      dirty.add(block);
    };
    for (let i = kept; i < table.blocks.length; i++) change(table.blocks[i], -1);
    table.blocks.length = kept;
    for (const block of further) {
      table.blocks.push(block);
      change(block, 1);
    }
  }

  #updateAllStates() {
    this.counts.fill(0);
    this.states.fill(OUTSIDE);
    this.counts[OUTSIDE] = this.capacity;
    for (let block = 0; block < this.capacity; block++) this.#updateState(block);
  }

  #updateState(block) {
    const state = this.#stateOf(block);
    this.counts[this.states[block]]--;
    this.counts[state]++;
    this.states[block] = state;
  }

  #stateOf(block) {
    const [sequences, sessions, pins, moving] = this.holders.map((counts) => counts[block]);
    if (moving) return MOVING;
    if (sequences + sessions + pins > 1) return SHARED;
    if (pins) return PINNED;
    if (sessions) return SESSION;
    if (sequences) return HELD;
    if (block >= this.blocks) return OUTSIDE;
    return this.cells[block] & NAMED ? CACHED : FREE;
  }

  numHolders(block) {
    return this.holders[0][block] + this.holders[1][block] + this.holders[2][block];
  }

  // All owners of a block, and its position in their tables. O(blocks held).
  ownersOf(block) {
    const owners = [];
    for (const table of this.tables.values()) {
      const index = table.blocks.indexOf(block);
      if (index < 0) continue;
      const cold = this.coldOf(table.row);
      owners.push({ row: table.row, index: cold + index, length: cold + table.blocks.length });
    }
    return owners;
  }

  // Number of blocks before those of the table: attention reads them in an offload tier.
  coldOf(row) {
    const choice = this.#choiceOf(row);
    return choice ? choice.cold : 0;
  }

  // Computed tokens in the blocks of a table.
  computedOf({ row, blocks }) {
    const [choice, size] = [this.#choiceOf(row), this.parts.pool.block_size];
    return choice ? choice.computed - choice.cold * size : blocks.length * size;
  }

  #choiceOf(row) {
    const request = this.requests.get(row.request);
    return request && request.choices.find((one) => one.choice === row.choice);
  }

  tablesWhere(test) {
    return [...this.tables.values()].filter((table) => test(table.row));
  }

  // By running table, with how many other holders it shares blocks. Computed once a frame, for few requests.
  get sharers() {
    if (this.sharersOf !== this.number) {
      const byBlock = new Map();
      for (const table of this.tables.values()) {
        for (const block of table.blocks) {
          if (this.numHolders(block) < 2) continue;
          if (!byBlock.has(block)) byBlock.set(block, []);
          byBlock.get(block).push(table);
        }
      }
      const others = new Map();
      for (const tables of byBlock.values()) {
        for (const table of tables) {
          if (table.row.request === undefined) continue;
          if (!others.has(table)) others.set(table, new Set());
          for (const other of tables) if (other !== table) others.get(table).add(other);
        }
      }
      this.sharersNow = new Map([...others].map(([table, found]) => [table, found.size]));
      this.sharersOf = this.number;
    }
    return this.sharersNow;
  }
}

// The key of a selection: a holder keeps it when the stream reconnects.
export const keyOf = (row) =>
  row.request === undefined
    ? `holder:${JSON.stringify([row.kind, row.tenant, row.label])}`
    : `request:${row.request}`;

export const nameOf = (cell) => (cell & NAMED ? (cell >>> 2).toString(16).padStart(8, '0') : '');
