// Recorded episodes, each of all agents side by side.
const root = document.getElementById("page");
data.episodes.forEach((episodes, i) => {
  const section = html(root, "section");
  html(section, "h2", {}, `Episode ${i + 1}`);
  new Episodes(section, episodes);
});
if (data.episodes[0].some(({ layers }) => layers.length)) {
  html(root, "p", { class: "note" }, "Each layer has a strip with one mark per frame. A stronger color means more attention to that frame at the current step; the largest weight is on the right. The outline marks the frames in memory.");
}
