// Encode and decode texts with the vocabularies of a JSON file and print the results.
const fs = require("fs");
const { Vocabulary } = require(process.argv[2]);

const results = JSON.parse(fs.readFileSync(process.argv[3], "utf8")).map(({ spec, texts }) => {
  const vocabulary = new Vocabulary(spec);
  return texts.map((text) => {
    try {
      const ids = vocabulary.encode(text), decode = vocabulary.decoder();
      return { ids, decoded: ids.map((id) => decode(id)).join("") };
    } catch (error) {
      return { error: error.message };
    }
  });
});
process.stdout.write(JSON.stringify(results));
