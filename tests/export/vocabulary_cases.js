// Reads vocabularies with texts from the file that is named, and writes the ids of each text and how they are spelled.
const fs = require("fs");
const { Vocabulary } = require(process.argv[2]);

const results = JSON.parse(fs.readFileSync(process.argv[3], "utf8")).map(({ spec, texts }) => {
  const vocabulary = new Vocabulary(spec);
  return texts.map((text) => {
    try {
      const ids = vocabulary.encode(text), spell = vocabulary.speller();
      return { ids, spelled: ids.map((id) => spell(id)).join("") };
    } catch (error) {
      return { error: error.message };
    }
  });
});
process.stdout.write(JSON.stringify(results));
