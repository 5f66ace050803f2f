// A table that is sorted by the column whose head is pressed; pressed again, the other way round.

function drawTable(host, plot, memory) {
  const order = memory.order;
  const rows = [...plot.rows];
  if (order) {
    const column = plot.columns.indexOf(order.column);
    rows.sort((one, other) => order.way * compared(one[column], other[column]));
  }
  const heads = plot.columns.map((name) => {
    const way = order?.column === name ? order.way : 0;
    const button = html("button", { type: "button" }, name, { 1: " ▲", "-1": " ▼", 0: "" }[way]);
    button.addEventListener("click", () => {
      memory.order = { column: name, way: way === 1 ? -1 : 1 };
      host.draw();
      host.body.querySelectorAll("th button")[plot.columns.indexOf(name)].focus();
    });
    return html("th", { scope: "col", "aria-sort": { 1: "ascending", "-1": "descending", 0: "none" }[way] }, button);
  });
  const lines = rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", { class: typeof cell }, String(cell ?? "–")))));
  const table = html("table", {}, html("thead", {}, html("tr", {}, ...heads)), html("tbody", {}, ...lines));
  host.body.replaceChildren(html("div", { class: "wide", tabindex: 0, role: "region", "aria-label": plot.title }, table));
}

function compared(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
}
