// Encode and decode text as stairwell/text.py does: bytes, characters, words, separated tokens, byte-level BPE.
//
//   const vocabulary = new Vocabulary({ type: "characters", tokens: [...] });
//   vocabulary.encode("to be")                ids; an unknown token is an error, or <unk> in a vocabulary of words
//   const decode = vocabulary.decoder();      decode(id) is the text that an id adds to that of the ids before

// White space as Python defines it.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORDS = new RegExp(`[^${SPACE}]+`, "gu");
const WORDS_AND_LINE_ENDS = new RegExp(`\\n|[^${SPACE}]+`, "gu");
// The pre-tokenizer of byte-level BPE (Radford et al., 2019).
const PRE_TOKENS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

// The characters that represent the 256 bytes in byte-level BPE: printable bytes themselves, the others from U+0100 on.
const BYTE_CHARACTERS = (() => {
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    return String.fromCodePoint(printable ? byte : 256 + others++);
  });
})();

class Vocabulary {
  constructor(spec) {
    Object.assign(this, spec);
    this.ids = new Map(spec.tokens.map((token, id) => [token, id]));
    if (spec.type === "bpe") {
      this.ranks = new Map(spec.merges.map((pair, rank) => [pair.join(" "), rank]));
      this.bytes = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));
    }
  }

  encode(text) {
    if (this.type === "bytes") return [...new TextEncoder().encode(text)];
    if (this.type === "bpe") return (text.match(/[^\n]*\n|[^\n]+/g) ?? []).flatMap((line) => this.encodeLine(line));
    if (this.type === "characters") return Array.from(text, (character) => this.id(character));
    const words = text.match(this.type === "words" && !this.end_of_line ? WORDS : WORDS_AND_LINE_ENDS) ?? [];
    return words.map((word) => (this.type === "words" ? this.ids.get(word) ?? this.ids.get("<unk>") : this.id(word)));
  }

  id(token) {
    const id = this.ids.get(token);
    if (id === undefined) throw new Error(`“${token}” is not in the vocabulary of the model.`);
    return id;
  }

  encodeLine(line) {
    return line.match(PRE_TOKENS).flatMap((word) => {
      const ids = Array.from(new TextEncoder().encode(word), (byte) => this.ids.get(BYTE_CHARACTERS[byte]));
      for (;;) {
        // Merge the pair of the lowest rank, the leftmost of equal ones.
        let lowest = Infinity, position = -1;
        for (let i = 0; i + 1 < ids.length; i++) {
          const rank = this.ranks.get(`${ids[i]} ${ids[i + 1]}`) ?? Infinity;
          if (rank < lowest) [lowest, position] = [rank, i];
        }
        if (position < 0) return ids;
        ids.splice(position, 2, this.ids.get(this.tokens[ids[position]] + this.tokens[ids[position + 1]]));
      }
    });
  }

  decoder() {
    if (this.type === "bytes" || this.type === "bpe") {
      // A token may end inside a character, which is returned when it is complete.
      const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
      return (id) => decoder.decode(Uint8Array.from(this.bytesOf(id)), { stream: true });
    }
    if (this.type === "characters") return (id) => this.tokens[id];
    let previous = "\n";
    return (id) => {
      const token = this.tokens[id], separated = previous !== "\n" && token !== "\n";
      previous = token;
      return (separated ? " " : "") + token;
    };
  }

  bytesOf(id) {
    return this.type === "bytes" ? [id] : Array.from(this.tokens[id], (character) => this.bytes.get(character));
  }

  // A single token with visible white space.
  name(id) {
    if (this.type === "bytes" && (id < 32 || id > 126) && id !== 10 && id !== 9) return `byte ${id}`;
    const text = this.type === "bytes" || this.type === "bpe" ? new TextDecoder().decode(Uint8Array.from(this.bytesOf(id))) : this.tokens[id];
    return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  }
}

if (typeof module !== "undefined") module.exports = { Vocabulary };
