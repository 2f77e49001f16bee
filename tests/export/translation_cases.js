// Run translators on the cases of a JSON file: each has a packed model, and sources and targets (token ids) to read, or a
// task with texts to translate and token ids to decode. Arguments: the folder of the scripts, and the file.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [, , folder, file] = process.argv;
for (const name of ["engine", "vocabulary", "seq2seq_engine", "translator"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, `${name}.js`), "utf8"), name);
}
const [Engine, Translator, unpack, finish] = ["Seq2SeqEngine", "Translator", "unpackParameters", "finish"].map((name) => vm.runInThisContext(name));

// Logits and attention to the source of each target.
const read = (engine, source, target) => {
  finish(engine.encode(source));
  const state = engine.start();
  return target.map((token, t) => {
    // Steps on a copy must not change the state.
    if (t === 2) engine.step(token, engine.copy(state));
    const { logits, attention } = engine.step(token, state, true);
    return { logits: [...logits], attention: attention.map((heads) => heads.map((weights) => [...weights])) };
  });
};

const results = JSON.parse(fs.readFileSync(file, "utf8")).map(({ header, block, sources = [], targets = [], task, texts = [], searches = [], decoded = [], values: wanted = false }) => {
  const values = unpack(header, block), engine = new Engine(header, values);
  const steps = sources.map((source, i) => read(engine, source, targets[i]));
  const translator = task && new Translator(engine, task);
  const encoded = texts.map((text) => ({ normalized: translator.normalize(text), ...translator.encode(text) }));
  const translations = searches.map((search) => texts.map((text) => finish(translator.translate(text, search))));
  const attention = translations.map((results) => results.map(({ sourceIds, hypotheses }) => {
    if (!hypotheses.length) return [];
    finish(engine.encode(sourceIds));
    return translator.attention(hypotheses[0].tokens).map((layers) => layers.map((heads) => heads.map((weights) => [...weights])));
  }));
  return { steps, encoded, translations, attention, decoded: decoded.map((ids) => translator.decode(ids)), values: wanted ? [...values] : [] };
});
process.stdout.write(JSON.stringify(results));
