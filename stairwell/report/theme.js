// Set the theme before anything is drawn: from the URL (#dark, #light), the last choice, or the system.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  let chosen = location.hash === "#dark" || location.hash === "#light" ? location.hash.slice(1) : null;
  const stored = (value) => {
    // Some browsers have no storage for local files.
    try {
      if (value) localStorage.setItem("stairwell-theme", value);
      return localStorage.getItem("stairwell-theme");
    } catch {
      return null;
    }
  };
  chosen = chosen || stored();
  const apply = () => { root.dataset.theme = chosen || (system.matches ? "dark" : "light"); };
  apply();
  system.addEventListener("change", apply);
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      stored(chosen);
      apply();
    });
  });
})();
