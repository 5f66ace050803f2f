"use strict";
(() => {
  const root = document.documentElement;
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const drawn = [];

  const dark = () => root.dataset.theme === "dark";
  const ink = () => getComputedStyle(root).getPropertyValue("--fore").trim();
  const line = () => getComputedStyle(root).getPropertyValue("--line").trim();

  function themed(layout) {
    const out = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink() }, modebar: { bgcolor: "rgba(0,0,0,0)", color: line() } };
    for (const key of Object.keys(out)) {
      if (/^[xy]axis/.test(key)) out[key] = { ...out[key], gridcolor: line(), linecolor: line(), zeroline: false, automargin: true, exponentformat: "power", title: { ...out[key].title, standoff: 6 } };
    }
    return out;
  }

  function visible(data) {
    // Black is the last of the colours; on a dark page it must turn light.
    if (!dark()) return data;
    const swap = (colour) => (colour === "#000000" ? "#f0f0f0" : colour);
    return data.map((trace) => ({
      ...trace,
      ...(trace.line && { line: { ...trace.line, color: swap(trace.line.color) } }),
      ...(trace.marker && { marker: { ...trace.marker, color: Array.isArray(trace.marker.color) ? trace.marker.color.map(swap) : swap(trace.marker.color) } }),
    }));
  }

  // On a phone the panels of one figure stand below each other.
  function stacked(layout) {
    const suffixes = Object.keys(layout).filter((key) => key.startsWith("xaxis")).map((key) => key.slice(5));
    const out = { ...layout };
    suffixes.forEach((suffix, row) => {
      const bottom = (suffixes.length - 1 - row) / suffixes.length;
      out[`xaxis${suffix}`] = { ...layout[`xaxis${suffix}`], domain: [0, 1] };
      out[`yaxis${suffix}`] = { ...layout[`yaxis${suffix}`], domain: [bottom + 0.24 / suffixes.length, bottom + 0.88 / suffixes.length] };
    });
    return [out, suffixes.length];
  }

  // Labels stand at the left of a panel and below it: where the panel before comes too near, this one starts later.
  function spaced(layout, width, height) {
    const out = { ...layout };
    for (const [which, size] of [["x", width], ["y", height]]) {
      const names = Object.keys(layout).filter((key) => key.startsWith(`${which}axis`));
      for (const name of names) {
        const [start, end] = layout[name].domain;
        const before = names.map((other) => layout[other].domain[1]).filter((edge) => edge <= start + 1e-6);
        if (!before.length) continue;
        // Across, it is the name of the other axis that needs room.
        const named = which === "x" ? layout[name.replace("x", "y")].title.text : layout[name].title.text;
        const needed = (which === "x" ? 44 : 46) + (named ? 26 : 0);
        const gap = start - Math.max(...before);
        const later = Math.min(Math.max(0, needed / size - gap), 0.6 * (end - start));
        out[name] = { ...layout[name], domain: [start + later, end] };
      }
    }
    return out;
  }

  function draw(place) {
    const plot = plots[place.dataset.name];
    const narrow = window.innerWidth < 640 && !root.classList.contains("paper");
    const [panels, rows] = narrow ? stacked(plot.layout) : [spaced(plot.layout, place.clientWidth - 80, place.dataset.height - 130), 1];
    // The width is said, not guessed: Plotly keeps an older one when a page turns into paper and back.
    const layout = themed({
      ...panels, width: place.clientWidth, height: narrow ? 320 * rows : Number(place.dataset.height), margin: { l: 60, r: 20, t: 30, b: 50 }, hovermode: "closest",
      legend: { orientation: "h", y: -0.18, yanchor: "top", font: { size: narrow ? 10 : 12 } },
    });
    return Plotly.react(place, visible(plot.data), layout, { displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] })
      .then(() => { place.dataset.drawn = "yes"; });
  }

  function flip(place, axis) {
    const layout = plots[place.dataset.name].layout;
    for (const key of Object.keys(layout)) {
      if (!key.startsWith(`${axis}axis`)) continue;
      const next = layout[key].type === "log" ? "linear" : "log";
      layout[key] = { ...layout[key], type: next, autorange: true };
      delete layout[key].range;
    }
    draw(place);
  }

  // What a figure draws, as a table: one line for each point of each series, or each cell of a map.
  function numbersOf(plot) {
    const lines = [["series", "panel", "x", "y", "value"]];
    for (const trace of plot.data) {
      const start = [plain(trace.name ?? ""), trace.xaxis.slice(1) || "1"];
      if (trace.z) trace.z.forEach((row, j) => row.forEach((value, i) => lines.push([...start, trace.x[i], trace.y[j], value])));
      else trace.x.forEach((x, k) => lines.push([...start, x, trace.y[k], ""]));
    }
    return lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
  }

  // Names are written for Plotly, which reads markup.
  const plain = (name) => name.replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  function quoted(value) {
    const text = String(value ?? "");
    // A spreadsheet would compute what starts like a formula; names come from outside, numbers do not.
    const safe = typeof value === "string" && /^[=+\-@\t]/.test(text) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function download(place) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([numbersOf(plots[place.dataset.name])], { type: "text/csv" }));
    link.download = `${place.dataset.name}-drawn.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

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
    root.dataset.theme = dark() ? "light" : "dark";
    drawn.forEach(draw);
  });
  document.addEventListener("click", (event) => {
    const target = event.target;
    if (target.matches(".define")) { event.stopPropagation(); define(target); return; }
    document.getElementById("definition").hidden = true;
    if (target.matches(".scale")) flip(target.closest(".picture").querySelector(".plot"), target.dataset.axis);
    else if (target.matches(".data")) download(target.closest(".picture").querySelector(".plot"));
    else if (target.matches("th")) sort(target);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("th")) sort(event.target);
  });

  // What is near the screen is drawn at once, so that a long report opens fast; the rest follows while the reader reads.
  const waiting = new Set(document.querySelectorAll(".plot"));
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) first(entry.target);
  }, { rootMargin: "400px" });
  function first(place) {
    near.unobserve(place);
    if (!waiting.delete(place)) return;
    drawn.push(place);
    draw(place);
  }
  const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  function next() {
    const [place] = waiting;
    if (!place) return;
    first(place);
    later(next, { timeout: 500 });
  }
  for (const place of waiting) {
    place.style.minHeight = `${place.dataset.height}px`;
    near.observe(place);
  }
  later(next, { timeout: 500 });

  // On paper: light, whole, and as wide as the paper, which is narrower than most screens.
  let chosen = null;
  function onPaper(printing) {
    if (printing) chosen = root.dataset.theme;
    root.dataset.theme = printing ? "light" : chosen;
    root.classList.toggle("paper", printing);
    [...waiting].forEach(first);
    drawn.forEach(draw);
    // A table of many columns is set smaller, so that none is cut off.
    document.querySelectorAll("table").forEach((table) => {
      table.style.zoom = "";
      if (printing) table.style.zoom = Math.min(1, table.parentElement.clientWidth / table.scrollWidth);
    });
  }
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));

  let settling = null;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width || root.classList.contains("paper")) return;
    width = window.innerWidth;
    clearTimeout(settling);
    settling = setTimeout(() => drawn.forEach(draw), 150);
  });
})();
