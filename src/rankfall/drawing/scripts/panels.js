// Panels of curves, areas, bars and maps side by side, with a legend that switches series, and the numbers as a file.

const GAP = 14;
// A panel narrower than this says little.
const NARROWEST = 280;
// Letters of the axes are about this wide.
const LETTER = 6.4;

function drawPanels(host, plot, memory) {
  memory.hidden ??= new Set();
  memory.flipped ??= {};
  memory.zoomed ??= {};
  const width = host.room();
  const panels = plot.panels.map((panel, k) => ({
    ...panel,
    index: k,
    x: chosen(panel.x ?? plot.x, memory.flipped.x && !isMap(panel), memory.zoomed[k]?.x),
    y: chosen(panel.y, memory.flipped.y && !isMap(panel), memory.zoomed[k]?.y),
    // Curves stay in place when others are switched off across the page; up and down they make use of the room.
    all: panel.series,
    shown: panel.series.filter((one) => !memory.hidden.has(one.group ?? one.name)),
  }));
  const height = layOut(plot, panels, width);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0 });
  for (const panel of panels) drawPanel(picture, panel, plot);
  picture.setAttribute("aria-label", spoken(plot));
  host.body.replaceChildren(picture, html("div", { class: "below" }, legend(host, plot, memory), tools(host, plot, memory)));
  pointing(host, picture, plot, panels);
  zooming(host, picture, panels, plot, memory);
}

// Cells of a map are even: logarithms would tear them apart.
const isMap = (panel) => panel.series.some((one) => one.type === "heat");

// The axis as it was given, or as the reader wants it: the other scale starts from the numbers themselves.
function chosen(axis, flipped, range) {
  const turned = flipped ? { ...axis, log: !(axis.log || axis.linear), linear: null, range: null, ticks: axis.words ? axis.ticks : null } : axis;
  return range ? { ...turned, range } : turned;
}

function numbersAlong(series, which) {
  return series.flatMap((one) => {
    if (one.aside) return [];
    if (one.type === "bars") {
      const lies = (which === "y") === Boolean(one.lying);
      return lies
        ? one.places.flatMap((place, k) => [place - one.widths[k] / 2, place + one.widths[k] / 2])
        : one.lengths.flatMap((length, k) => [one.base[k], one.base[k] + length]);
    }
    return one[which];
  });
}

// Places of all panels: rows by their shares, columns of one width; where the screen is narrow, in fewer columns.
function layOut(plot, panels, width) {
  for (const panel of panels) {
    const [row, column, down, along] = panel.cell ?? [panel.index, 0, 1, 1];
    Object.assign(panel, { row, column, down, along });
  }
  const wanted = Math.max(...panels.map((panel) => panel.column + panel.along));
  let columns = wanted;
  while (columns > 1 && (width / columns < NARROWEST || wanted % columns)) columns -= 1;
  let rows = Math.max(...panels.map((panel) => panel.row + panel.down));
  let height = plot.height;
  if (columns < wanted) {
    const each = Math.max(260, height / rows);
    panels.forEach((panel, k) => Object.assign(panel, { row: Math.floor(k / columns), column: k % columns, down: 1, along: 1 }));
    rows = Math.ceil(panels.length / columns);
    height = each * rows;
  }
  const shares = Array.from({ length: rows }, (_, row) => panels.find((panel) => panel.row === row)?.share ?? 1);
  const whole = shares.reduce((sum, share) => sum + share, 0);
  const bottomLabels = 40;
  // Over a common axis only the lowest panel has its numbers below.
  const free = plot.x ? height - bottomLabels - GAP * (rows - 1) : height;
  const start = (row) => (shares.slice(0, row).reduce((sum, share) => sum + share, 0) / whole) * free + (plot.x ? GAP * row : 0);
  for (const panel of panels) {
    const top = start(panel.row) + (panel.title ? 24 : 6);
    const end = start(panel.row + panel.down) - (plot.x && panel.row + panel.down < rows ? GAP : 0);
    const bottom = (plot.x ? Math.min(end, height - bottomLabels) : end - bottomLabels);
    panel.box = { top, bottom };
    panel.up = axisOf(numbersAlong(panel.shown, "y"), { gap: 30, ...panel.y }, bottom, top);
    panel.margin = 14 + LETTER * Math.max(3, ...panel.up.ticks.map(([, label]) => label.length)) + (panel.y.label ? 18 : 0);
  }
  for (const panel of panels) {
    const margin = Math.max(...panels.filter((one) => one.column === panel.column).map((one) => one.margin));
    panel.box.left = (width * panel.column) / columns + margin;
    panel.box.right = (width * (panel.column + panel.along)) / columns - (panel.scale ? 70 : 14);
    panel.box.edge = (width * panel.column) / columns;
    if (panel.equal) evenly(panel);
    const across = { air: 0.02, gap: 64, names: LETTER, ...panel.x };
    panel.across = axisOf(numbersAlong(panel.all, "x"), across, panel.box.left, panel.box.right);
    if (panel.equal) panel.up = axisOf(numbersAlong(panel.shown, "y"), { gap: 30, ...panel.y }, panel.box.bottom, panel.box.top);
  }
  return height;
}

// One unit is as long across as it is upwards.
function evenly(panel) {
  const [x, y] = [panel.x.range, panel.y.range];
  if (!x || !y) return;
  const ratio = Math.abs((x[1] - x[0]) / (y[1] - y[0]));
  const { box } = panel;
  const [width, height] = [box.right - box.left, box.bottom - box.top];
  if (width > height * ratio) {
    const spare = (width - height * ratio) / 2;
    Object.assign(box, { left: box.left + spare, right: box.right - spare, edge: box.edge + spare });
  } else {
    const spare = (height - width / ratio) / 2;
    Object.assign(box, { top: box.top + spare, bottom: box.bottom - spare });
  }
}

function drawPanel(picture, panel, plot) {
  const { box, across, up } = panel;
  const middle = { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2 };
  const map = isMap(panel);
  const lowest = !plot.x || panel.index === plot.panels.length - 1;
  for (const [value, label] of across.ticks) {
    const x = across.place(value);
    if (!map) picture.append(svg("line", { x1: x, x2: x, y1: box.top, y2: box.bottom, class: "grid" }));
    if (lowest) picture.append(svg("text", { x, y: box.bottom + 16, "text-anchor": "middle" }, label));
  }
  for (const [value, label] of up.ticks) {
    const y = up.place(value);
    if (!map) picture.append(svg("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: "grid" }));
    picture.append(svg("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  picture.append(svg("path", { d: `M${box.left} ${box.top}V${box.bottom}H${box.right}`, class: "edge" }));
  if (lowest) picture.append(svg("text", { x: middle.x, y: box.bottom + 34, "text-anchor": "middle", class: "name" }, panel.x.label ?? ""));
  const turned = { x: box.edge + 12, y: middle.y, transform: `rotate(-90 ${box.edge + 12} ${middle.y})`, "text-anchor": "middle", class: "name" };
  picture.append(svg("text", turned, panel.y.label ?? ""));
  if (panel.title) picture.append(svg("text", { x: middle.x, y: box.top - 9, "text-anchor": "middle", class: "name" }, panel.title));
  const clip = svg("clipPath", { id: `panel-${panel.index}` });
  clip.append(svg("rect", { x: box.left - 4, y: box.top - 4, width: Math.max(0, box.right - box.left + 8), height: Math.max(0, box.bottom - box.top + 8) }));
  const inside = svg("g", { "clip-path": `url(#panel-${panel.index})` });
  picture.append(clip, inside);
  for (const one of panel.shown) MARKS[one.type](inside, one, panel);
  for (const text of panel.texts ?? []) drawText(picture, text, panel);
  if (plot.mark !== null && plot.mark !== undefined) {
    const x = across.place(plot.mark);
    picture.append(svg("line", { x1: x, x2: x, y1: box.top, y2: box.bottom, class: "mark" }));
  }
  if (panel.scale) drawScale(picture, panel);
}

function drawText(picture, text, panel) {
  const { box } = panel;
  const x = text.inside ? box.left + text.x * (box.right - box.left) : panel.across.place(text.x);
  const y = text.inside ? box.bottom - text.y * (box.bottom - box.top) : panel.up.place(text.y);
  if (!(x >= box.left - 2 && x <= box.right + 2 && y >= box.top - 2 && y <= box.bottom + 2)) return;
  const [right, upwards] = text.off ?? [0, 0];
  const style = { x: x + right, y: y - upwards + (text.sinks ?? 0), "text-anchor": text.anchor, fill: text.colour, opacity: text.opacity };
  picture.append(svg("text", { ...style, class: "remark" }, text.text));
}

// Colours with their values, at the right of a panel.
function drawScale(picture, panel) {
  const { box, scale } = panel;
  const [left, height] = [box.right + 12, box.bottom - box.top];
  for (let k = 0; k < 40; k += 1) {
    const size = { x: left, y: box.bottom - (height * (k + 1)) / 40, width: 10, height: height / 40 + 0.5 };
    picture.append(svg("rect", { ...size, fill: rgb(shade(scale.colours, k / 39)) }));
  }
  const axis = axisOf([], { range: [scale.low, scale.high], gap: 40 }, box.bottom, box.top);
  for (const [value, label] of axis.ticks) picture.append(svg("text", { x: left + 14, y: axis.place(value) + 4 }, label));
  if (!scale.label) return;
  const [x, y] = [left + 54, (box.top + box.bottom) / 2];
  picture.append(svg("text", { x, y, transform: `rotate(-90 ${x} ${y})`, "text-anchor": "middle", class: "name" }, scale.label));
}

// One button for all series of a name, whatever their panels; what only explains a style is no button.
function legend(host, plot, memory) {
  const row = html("div", { class: "legend" });
  const named = new Map();
  for (const one of plot.panels.flatMap((panel) => panel.series)) {
    if (one.legend !== false && one.type !== "heat" && !named.has(one.group ?? one.name)) named.set(one.group ?? one.name, one);
  }
  if (named.size > 40) return row;
  for (const [name, one] of named) {
    const off = memory.hidden.has(name);
    const button = html("button", { type: "button", "aria-pressed": String(!off) }, sampleOf(one), name);
    button.addEventListener("click", () => {
      if (off) memory.hidden.delete(name);
      else memory.hidden.add(name);
      host.draw();
      host.body.querySelectorAll(".legend button")[[...row.children].indexOf(button)]?.focus();
    });
    row.append(button);
  }
  for (const one of plot.keys ?? []) row.append(html("span", {}, sampleOf(one), one.name));
  return row;
}

function tools(host, plot, memory) {
  const row = html("div", { class: "tools" });
  const add = (label, what, act) => {
    const button = html("button", { type: "button", ...what }, label);
    button.addEventListener("click", act);
    row.append(button);
  };
  if (plot.panels.every(isMap)) {
    add("numbers (csv)", { class: "data" }, () => saveNumbers(plot));
    return row;
  }
  for (const axis of ["x", "y"]) {
    add(`${axis}: log/linear`, { class: "scale", "data-axis": axis }, () => {
      memory.flipped[axis] = !memory.flipped[axis];
      memory.zoomed = {};
      host.draw();
    });
  }
  add("numbers (csv)", { class: "data" }, () => saveNumbers(plot));
  if (Object.keys(memory.zoomed).length) {
    add("whole range", { class: "whole" }, () => {
      memory.zoomed = {};
      host.draw();
    });
  }
  return row;
}

function spoken(plot) {
  const ends = plot.panels.flatMap((panel) => panel.series).filter((one) => one.type === "line" && one.legend !== false).map((one) => {
    const numbers = one.y.filter((value) => value !== null);
    return numbers.length ? `${one.name} from ${readable(numbers[0])} to ${readable(numbers.at(-1))}` : one.name;
  });
  const against = plot.x?.label ?? plot.panels[0]?.x.label;
  return `${plot.says ?? plot.title}.${against ? ` Against ${against}:` : ""} ${ends.slice(0, 20).join("; ")}.`;
}

const nameOf = (one) => (one.group && one.group !== one.name ? [one.group, one.name].filter(Boolean).join(", ") : (one.name ?? ""));

// What a figure draws, as a table: one line for each point of each series, or each cell of a map.
function numbersOf(plot) {
  const lines = [["series", "panel", "x", "y", "value"]];
  for (const [k, panel] of plot.panels.entries()) {
    for (const one of panel.series) {
      const start = [nameOf(one), k + 1];
      if (one.type === "heat") {
        const [rows, columns] = one.size;
        const middle = ([low, high], count, at) => low + ((high - low) * (at + 0.5)) / count;
        cellsOf(one).forEach((value, at) => {
          lines.push([...start, middle(one.x, columns, at % columns), middle(one.y, rows, Math.floor(at / columns)), value]);
        });
      } else if (one.type === "bars") one.places.forEach((place, at) => lines.push([...start, place, one.base[at] + one.lengths[at], ""]));
      else one.x.forEach((x, at) => lines.push([...start, x, one.y[at], ""]));
    }
  }
  return `${lines.map((line) => line.map(quoted).join(",")).join("\n")}\n`;
}

function quoted(value) {
  const text = String(value ?? "");
  // A spreadsheet would compute what starts like a formula; names come from outside, numbers do not.
  const safe = typeof value === "string" && /^[=+\-@\t]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function saveNumbers(plot) {
  const link = html("a", { download: `${plot.name}-drawn.csv` });
  link.href = URL.createObjectURL(new Blob([numbersOf(plot)], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
