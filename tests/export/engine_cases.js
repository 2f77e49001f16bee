// Run the engine on cases (a packed model and a stream each) from a JSON file and print the results.
const fs = require("fs");
const { Engine, decodeParameters } = require(process.argv[2]);

const results = JSON.parse(fs.readFileSync(process.argv[3], "utf8")).map(({ header, block, tokens, start }) => {
  const engine = new Engine(header, decodeParameters(block));
  const steps = tokens.map((token, t) => {
    if (start[t]) engine.reset();
    const { logits, attention } = engine.step(token, true);
    return { logits: [...logits], attention: attention.map((layer) => layer.weights.map((row) => [...row])) };
  });
  // Recording attention must not change the logits.
  engine.reset();
  const withoutAttention = tokens.slice(0, 7).map((token) => [...engine.step(token).logits]);
  const layerWeights = engine.layerWeights ? engine.layerWeights.map((row) => [...row]) : null;
  return { steps, withoutAttention, layerWeights };
});
process.stdout.write(JSON.stringify(results));
