// Wakes the models and opens the page that fits what they were trained for.
const { subject, models: described } = JSON.parse(document.getElementById("data").textContent);
const models = described.map(({ name, header }, i) => {
  const block = document.getElementById(`parameters-${i}`);
  const engine = new Engine(header, decodeParameters(block.textContent));
  block.remove();
  return { name, header, engine, color: i };
});
const page = new (subject.kind === "text" ? WritePage : TrackPage)(document.getElementById("page"), models, subject);
