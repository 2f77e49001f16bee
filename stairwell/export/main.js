// Build the engines and open the page of the task.
const { task, models: specs } = data;
const models = specs.map(({ name, color: index, header }, i) => {
  const block = document.getElementById(`parameters-${i}`);
  const engine = new Engine(header, decodeParameters(block.textContent));
  block.remove();
  // A page of one tracker speaks of "the model".
  const single = specs.length === 1 && task.type !== "text";
  return { name: single ? `The model (${name})` : name, color: index, header, engine };
});
const page = new (task.type === "text" ? TextPage : TrackingPage)(document.getElementById("page"), models, task);
