// Text and ids, as stairwell/text.py has them: bytes, characters, words, separated symbols, byte pairs.
//
//   const vocabulary = new Vocabulary({ kind: "characters", symbols: [...] });
//   vocabulary.encode("to be")               ids; a symbol that is not known is an error, or <unk> among words
//   const spell = vocabulary.speller();      spell(id) is the text that the id adds to what was spelled before

// What Python takes for white space.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORDS = new RegExp(`[^${SPACE}]+`, "gu");
const WORDS_AND_ENDS = new RegExp(`\\n|[^${SPACE}]+`, "gu");
// How byte-level BPE cuts a line before it merges (Radford et al., 2019).
const PIECES = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

// The letters in which byte-level BPE writes the 256 bytes: printable ones as themselves, the others from U+0100 on.
const BYTE_LETTERS = (() => {
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return String.fromCodePoint(printable ? byte : 256 + others++);
  });
})();

class Vocabulary {
  constructor(spec) {
    Object.assign(this, spec);
    this.ids = new Map(spec.symbols.map((symbol, id) => [symbol, id]));
    if (spec.kind === "bpe") {
      this.ranks = new Map(spec.merges.map((pair, rank) => [pair.join(" "), rank]));
      this.bytes = new Map(BYTE_LETTERS.map((letter, byte) => [letter, byte]));
    }
  }

  encode(text) {
    if (this.kind === "bytes") return [...new TextEncoder().encode(text)];
    if (this.kind === "bpe") return (text.match(/[^\n]*\n|[^\n]+/g) ?? []).flatMap((line) => this.encodeLine(line));
    if (this.kind === "characters") return Array.from(text, (symbol) => this.id(symbol));
    const words = text.match(this.kind === "words" && !this.end_of_line ? WORDS : WORDS_AND_ENDS) ?? [];
    return words.map((word) => (this.kind === "words" ? this.ids.get(word) ?? this.ids.get("<unk>") : this.id(word)));
  }

  id(symbol) {
    const id = this.ids.get(symbol);
    if (id === undefined) throw new Error(`The model has never seen “${symbol}”.`);
    return id;
  }

  encodeLine(line) {
    return line.match(PIECES).flatMap((piece) => {
      const parts = Array.from(new TextEncoder().encode(piece), (byte) => this.ids.get(BYTE_LETTERS[byte]));
      for (;;) {
        // The pair that was learned first is merged first, the leftmost of equals.
        let best = Infinity, where = -1;
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
          if (rank < best) [best, where] = [rank, i];
        }
        if (where < 0) return parts;
        parts.splice(where, 2, this.ids.get(this.symbols[parts[where]] + this.symbols[parts[where + 1]]));
      }
    });
  }

  speller() {
    if (this.kind === "bytes" || this.kind === "bpe") {
      // A token may end inside a character, which appears once it is whole.
      const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
      return (id) => decoder.decode(Uint8Array.from(this.bytesOf(id)), { stream: true });
    }
    if (this.kind === "characters") return (id) => this.symbols[id];
    let before = "\n";
    return (id) => {
      const symbol = this.symbols[id], apart = before !== "\n" && symbol !== "\n";
      before = symbol;
      return (apart ? " " : "") + symbol;
    };
  }

  bytesOf(id) {
    return this.kind === "bytes" ? [id] : Array.from(this.symbols[id], (letter) => this.bytes.get(letter));
  }

  // One token by itself, as people can read it.
  name(id) {
    if (this.kind === "bytes" && (id < 32 || id > 126) && id !== 10 && id !== 9) return `byte ${id}`;
    const text = this.kind === "bytes" || this.kind === "bpe" ? new TextDecoder().decode(Uint8Array.from(this.bytesOf(id))) : this.symbols[id];
    return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  }
}

if (typeof module !== "undefined") module.exports = { Vocabulary };
