// Without this script everything is there; it only filters and unfolds.
(() => {
  const find = document.getElementById("find"), only = document.getElementById("only"), shown = document.getElementById("shown");
  const articles = [...document.querySelectorAll("article.scenario")];
  const text = new Map(articles.map((a) => [a, a.textContent.toLowerCase()]));
  const apply = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const a of articles) {
      const fits = (!only.value || a.dataset.status === only.value) && words.every((w) => text.get(a).includes(w));
      a.hidden = !fits;
      n += fits ? 1 : 0;
      const row = document.querySelector('tbody[data-scenario="' + a.id + '"]');
      if (row) row.hidden = !fits;
    }
    shown.textContent = n === articles.length ? "" : n + " of " + articles.length + " scenarios shown";
  };
  find.addEventListener("input", apply);
  only.addEventListener("change", apply);
  document.querySelector(".filter").addEventListener("submit", (e) => e.preventDefault());
  const details = () => document.querySelectorAll("details");
  const unfold = document.getElementById("unfold");
  unfold.addEventListener("click", () => {
    const open = unfold.textContent.startsWith("open");
    details().forEach((d) => { d.open = open; });
    unfold.textContent = open ? "close everything" : "open everything";
  });
  addEventListener("beforeprint", () => details().forEach((d) => { d.open = true; }));
})();
