"use strict";
(() => {
  const root = document.documentElement;

  function sort(head) {
    const row = head.parentElement;
    const body = row.closest("table").tBodies[0];
    const column = [...row.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of row.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (line) => line.children[column].dataset.value;
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      const order = x !== "" && y !== "" && !isNaN(x) && !isNaN(y) ? Number(x) - Number(y) : x.localeCompare(y);
      return down ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  }

  function define(button) {
    const box = document.getElementById("definition");
    const again = !box.hidden && box.textContent === button.dataset.text;
    box.hidden = again;
    if (again) return;
    box.textContent = button.dataset.text;
    const at = button.getBoundingClientRect();
    box.style.top = `${at.bottom + window.scrollY + 4}px`;
    box.style.left = `${Math.max(8, Math.min(at.left + window.scrollX, document.body.clientWidth - box.offsetWidth - 8))}px`;
  }

  root.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });
  document.addEventListener("click", (event) => {
    const target = event.target;
    if (target.matches(".define")) { event.stopPropagation(); define(target); return; }
    document.getElementById("definition").hidden = true;
    if (target.matches("th")) sort(target);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("th")) sort(event.target);
  });

  // On paper: light, whole, and as wide as the paper, which is narrower than most screens.
  let chosen = null;
  function onPaper(printing) {
    if (printing) chosen = root.dataset.theme;
    root.dataset.theme = printing ? "light" : chosen;
    root.classList.toggle("paper", printing);
    document.querySelectorAll("rankfall-plot").forEach((plot) => plot.fit());
    // A table of many columns is set smaller, so that none is cut off.
    document.querySelectorAll("table").forEach((table) => {
      table.style.zoom = "";
      if (printing) table.style.zoom = Math.min(1, table.parentElement.clientWidth / table.scrollWidth);
    });
  }
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));
})();
