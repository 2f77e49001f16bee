// Reads cases (a packed model and a stream each) from the file that is named, and writes what the engine makes of them.
const fs = require("fs");
const { Engine, decodeParameters } = require(process.argv[2]);

const results = JSON.parse(fs.readFileSync(process.argv[3], "utf8")).map(({ header, block, tokens, start }) => {
  const engine = new Engine(header, decodeParameters(block));
  const steps = tokens.map((token, t) => {
    if (start[t]) engine.reset();
    const { logits, attention } = engine.step(token, true);
    return { logits: [...logits], attention: attention.map((layer) => layer.weights.map((row) => [...row])) };
  });
  // Not looking must change nothing.
  engine.reset();
  const again = tokens.slice(0, 7).map((token) => [...engine.step(token).logits]);
  const weights = engine.layerWeights ? engine.layerWeights.map((row) => [...row]) : null;
  return { steps, again, weights };
});
process.stdout.write(JSON.stringify(results));
