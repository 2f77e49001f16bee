// The tooltip of charts and strips.
const tip = html(document.body, "div", { id: "tip", role: "status", hidden: "" });

function showTip(event, title, rows) {
  tip.replaceChildren();
  html(tip, "b", {}, title);
  for (const [name, value, index] of rows) {
    const row = html(tip, "div");
    const label = html(row, "span");
    if (index !== undefined) html(label, "span", { class: "swatch", style: color(index) });
    label.append(name);
    html(row, "span", {}, value);
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
  const top = Math.min(event.clientY + 12, innerHeight - box.height - 8);
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true });
