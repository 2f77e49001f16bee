// Translate or summarize as stairwell/train/translator.py and stairwell/decode/beam.py do.
//
//   const translator = new Translator(engine, task);
//   const { sourceIds, hypotheses, cut, looped } = finish(translator.translate(text, { beam: 5, length_penalty: 1 }));
//
// A hypothesis has `tokens` (with the end token, unless it has the maximum length), `logProbability`, `score`, and `text`.
// Letters: W beam size, V vocabulary size, t tokens so far.
const LOOP_NGRAM_SIZE = 3, MIN_LOOP = 6;
const SPACES = new RegExp(`[${SPACE}]+`, "gu");
const NAME_PARTS = /(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+/gu;
const PROGRAM_WORDS = new RegExp(`[\\p{L}\\p{N}_]+|[^\\p{L}\\p{N}_${SPACE}]+`, "gu");

const splitSpaces = (text) => text.split(SPACES).filter((word) => word);

// The indices of the `count` largest values, largest first; the first of equal ones first.
function largest(values, count) {
  const top = [];
  let smallest = -Infinity;
  for (let i = 0; i < values.length; i++) {
    if (top.length === count && !(values[i] > smallest)) continue;
    let place = top.length;
    while (place > 0 && values[i] > values[top[place - 1]]) place--;
    top.splice(place, 0, i);
    if (top.length > count) top.pop();
    smallest = values[top[top.length - 1]];
  }
  return top;
}

function logSumExp(scores) {
  let highest = -Infinity, total = 0;
  for (let i = 0; i < scores.length; i++) if (scores[i] > highest) highest = scores[i];
  for (let i = 0; i < scores.length; i++) total += Math.exp(scores[i] - highest);
  return Math.log(total) + highest;
}

// Whether an n-gram repeats back to back over at least MIN_LOOP tokens.
function hasLoop(tokens) {
  for (let period = 1; period <= Math.floor(tokens.length / 2); period++) {
    const needed = Math.max(2 * period, MIN_LOOP) - period;
    let stretch = 0;
    for (let i = period; i < tokens.length; i++) {
      stretch = tokens[i] === tokens[i - period] ? stretch + 1 : 0;
      if (stretch >= needed) return true;
    }
  }
  return false;
}

// The tokens that would repeat an n-gram.
function repeating(tokens, n) {
  const last = tokens.slice(tokens.length - n + 1), repeated = new Set();
  for (let i = 0; i + n <= tokens.length; i++) {
    if (last.every((token, k) => tokens[i + k] === token)) repeated.add(tokens[i + n - 1]);
  }
  return repeated;
}

// Beam search (stairwell/decode/beam.py). Returns the `nbest` best hypotheses, best first. Yields after each token.
class BeamSearch {
  constructor(engine, { end, width, nbest, lengthPenalty, minLength, maxLength, noRepeat }) {
    Object.assign(this, { engine, end, width, nbest, lengthPenalty, minLength, maxLength, noRepeat });
    this.finished = [];
  }

  *run() {
    const { engine, width, end } = this, state = engine.start();
    let open = [{ tokens: [], total: 0, state, logits: engine.step(end, state).logits }];
    for (let t = 0; t < this.maxLength; t++) {
      yield t;
      const continued = this.advance(open, t);
      if (t + 1 === this.maxLength) {
        for (const { tokens, total } of continued) this.add(tokens, total);
        break;
      }
      if (this.isDone(continued, t + 1)) break;
      const used = new Set();
      for (const hypothesis of continued) {
        // The first child continues with the state of its parent, the others with a copy of it.
        const { parent } = hypothesis;
        hypothesis.state = used.has(parent) ? engine.copy(parent.before) : parent.state;
        if (!used.has(parent) && continued.filter((other) => other.parent === parent).length > 1) parent.before = engine.copy(parent.state);
        used.add(parent);
        hypothesis.logits = engine.step(hypothesis.tokens[t], hypothesis.state).logits;
        hypothesis.parent = null;
        if (continued.length > 1) yield t;
      }
      open = continued;
    }
    return this.best();
  }

  // Extend every hypothesis by one token. Returns the best `width` that do not end.
  advance(open, t) {
    const continuations = [];
    for (const parent of open) {
      // Normalize before masking, so that forbidden tokens keep their share of the probability.
      const { logits, total } = parent, normalizer = logSumExp(logits);
      for (const token of this.forbidden(parent.tokens, t, logits.length)) logits[token] = -Infinity;
      for (const token of largest(logits, 2 * this.width)) {
        continuations.push({ parent, token, total: total + (logits[token] - normalizer) });
      }
    }
    const best = largest(continuations.map(({ total }) => total), 2 * this.width).map((i) => continuations[i]);
    const continued = [];
    best.filter(({ total }) => total > -Infinity).forEach(({ parent, token, total }, rank) => {
      const tokens = [...parent.tokens, token];
      if (token !== this.end) continued.push({ parent, tokens, total });
      else if (rank < this.width) this.add(tokens, total);
    });
    return continued.slice(0, this.width);
  }

  forbidden(tokens, t, V) {
    const blocking = this.noRepeat > 0 && t >= this.noRepeat;
    const forbidden = blocking ? repeating(tokens, this.noRepeat) : new Set();
    if (t < this.minLength) forbidden.add(this.end);
    // A hypothesis that cannot be continued ends.
    if (blocking && forbidden.size === V) forbidden.delete(this.end);
    return forbidden;
  }

  score(logProbability, length) { return logProbability / length ** this.lengthPenalty; }

  add(tokens, logProbability) {
    this.finished.push({ tokens, logProbability, score: this.score(logProbability, tokens.length) });
  }

  best() { return [...this.finished].sort((a, b) => b.score - a.score).slice(0, this.nbest); }

  // Whether no open hypothesis of `length` tokens can enter the n best.
  isDone(open, length) {
    if (!open.length) return true;
    if (this.finished.length < this.nbest) return false;
    const favorable = this.lengthPenalty > 0 ? this.maxLength : length + 1;
    return this.best().at(-1).score >= this.score(open[0].total, favorable);
  }
}

class Translator {
  constructor(engine, task) {
    const { joint, source, target } = task.vocabularies;
    this.source = new Vocabulary(joint ?? source);
    this.target = joint ? this.source : new Vocabulary(target);
    Object.assign(this, { engine, task, end: this.target.tokens.length });
  }

  // The text that is encoded: single spaces, and one before the first word.
  normalize(text) {
    const { words, split_names: splitNames, lowercase } = this.task;
    let parts = splitNames ? text.replace(NAME_PARTS, " ").match(PROGRAM_WORDS) ?? [] : splitSpaces(text);
    if (words) parts = parts.slice(0, words);
    const line = splitSpaces(parts.join(" ")).join(" ");
    return line && ` ${lowercase ? line.toLowerCase() : line}`;
  }

  encode(text) {
    const ids = this.source.encode(this.normalize(text)), longest = this.task.max_source_length;
    return { ids: [...ids.slice(0, longest), this.source.tokens.length], cut: ids.length > longest };
  }

  decode(tokens) {
    const bytes = tokens.filter((id) => id !== this.end).flatMap((id) => this.target.bytesOf(id));
    return splitSpaces(new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes))).join(" ");
  }

  // The minimum and the maximum number of target tokens, without the end token.
  lengths(sourceTokens, search) {
    const limit = this.task.max_target_length;
    let longest = Math.min(search.max_length || limit, limit);
    if (search.max_length_ratio) longest = Math.min(longest, Math.trunc(search.max_length_ratio * sourceTokens) + 10);
    longest = Math.max(longest, 1);
    return [Math.min(Math.max(search.min_length, Math.trunc(search.min_length_ratio * sourceTokens)), longest), longest];
  }

  // A generator: the caller may pause between its steps. `options` replace the defaults of the search.
  *translate(text, options = {}) {
    const search = { ...this.task.search, ...options }, { ids, cut } = this.encode(text);
    // A source of only its end token is empty.
    if (ids.length === 1) return { sourceIds: ids, hypotheses: [], cut, looped: false };
    yield* this.engine.encode(ids);
    let hypotheses = yield* this.search(ids, search, search.no_repeat_ngram_size);
    const breaks = search.break_loops && !(search.no_repeat_ngram_size > 0 && search.no_repeat_ngram_size <= LOOP_NGRAM_SIZE);
    const looped = breaks && hasLoop(hypotheses[0].tokens) && !hasLoop(ids);
    if (looped) hypotheses = yield* this.search(ids, search, LOOP_NGRAM_SIZE);
    // The last token is the end token, or the one at the maximum length.
    for (const hypothesis of hypotheses) hypothesis.text = this.decode(hypothesis.tokens.slice(0, -1));
    return { sourceIds: ids, hypotheses, cut, looped };
  }

  *search(ids, { beam, nbest = 1, length_penalty: lengthPenalty, ...search }, noRepeat) {
    const [minLength, longest] = this.lengths(ids.length - 1, search);
    const options = { end: this.end, width: beam, nbest, lengthPenalty, minLength, maxLength: longest + 1, noRepeat };
    return yield* new BeamSearch(this.engine, options).run();
  }

  // The attention to the source when each token of a hypothesis was predicted: one entry per token, with one per layer
  // and pass, with the weights of each head.
  attention(tokens) {
    const state = this.engine.start();
    return tokens.map((_, t) => this.engine.step(t ? tokens[t - 1] : this.end, state, true).attention);
  }
}
