// Curves in one or more panels over a common axis: a legend that switches them, and their values where one points.

const MARGIN = { left: 58, right: 12, top: 6, bottom: 40 };
const DASHES = { solid: null, dash: "7 4", dot: "2 4" };

function drawLines(host, plot, memory) {
  memory.hidden ??= new Set();
  const { width, height } = host.room(plot.height);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0 });
  const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const shown = plot.panels.map((panel) => panel.series.filter((one) => !memory.hidden.has(one.name)));
  const xs = plot.panels.flatMap((panel) => panel.series.flatMap((one) => one.x));
  const across = axisOf(xs, { ...plot.x, air: 0.02, gap: 64 }, inner.left, inner.right);
  const panels = plot.panels.map((panel, k) => ({ ...panel, shown: shown[k], ...bandOf(plot.panels, k, inner) }));
  for (const panel of panels) {
    const options = { log: panel.log, zero: panel.zero, gap: 30 };
    panel.axis = axisOf(panel.shown.flatMap((one) => one.y), options, panel.bottom, panel.top);
    frame(picture, panel, inner, across);
    for (const one of panel.shown) curve(picture, one, across, panel);
  }
  for (const [value, label] of across.ticks) {
    picture.append(svg("text", { x: across.place(value), y: inner.bottom + 16, "text-anchor": "middle" }, label));
  }
  const middle = (inner.left + inner.right) / 2;
  picture.append(svg("text", { x: middle, y: height - 6, "text-anchor": "middle", class: "name" }, plot.x.label));
  if (plot.mark !== null && plot.mark !== undefined) {
    const x = across.place(plot.mark);
    picture.append(svg("line", { x1: x, x2: x, y1: inner.top, y2: inner.bottom, class: "mark" }));
  }
  picture.setAttribute("aria-label", spoken(plot));
  host.body.replaceChildren(picture, legend(host, plot, memory));
  pointing(host, picture, plot, panels, across, inner);
}

// Panels stand above each other, each with its share of the height.
function bandOf(panels, which, inner) {
  const gap = 14;
  const whole = inner.bottom - inner.top - gap * (panels.length - 1);
  const shares = panels.map((panel) => panel.share ?? 1);
  const total = shares.reduce((sum, share) => sum + share, 0);
  const before = shares.slice(0, which).reduce((sum, share) => sum + share, 0);
  const top = inner.top + (whole * before) / total + gap * which;
  return { top, bottom: top + (whole * shares[which]) / total };
}

function frame(picture, panel, inner, across) {
  for (const [value] of across.ticks) {
    const x = across.place(value);
    picture.append(svg("line", { x1: x, x2: x, y1: panel.top, y2: panel.bottom, class: "grid" }));
  }
  for (const [value, label] of panel.axis.ticks) {
    const y = panel.axis.place(value);
    picture.append(svg("line", { x1: inner.left, x2: inner.right, y1: y, y2: y, class: "grid" }));
    picture.append(svg("text", { x: inner.left - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  const middle = (panel.top + panel.bottom) / 2;
  const turned = `rotate(-90 12 ${middle})`;
  picture.append(svg("text", { x: 12, y: middle, transform: turned, "text-anchor": "middle", class: "name" }, panel.label));
}

function curve(picture, one, across, panel) {
  const points = one.x.map((x, k) => [across.place(x), one.y[k] === null ? NaN : panel.axis.place(one.y[k])]);
  const seen = points.map(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (one.line !== false) {
    // A gap in the numbers is a gap in the curve.
    const path = points.map(([x, y], k) => (seen[k] ? `${seen[k - 1] ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}` : "")).join("");
    const style = { d: path, stroke: one.colour, "stroke-width": one.width ?? 2, "stroke-dasharray": DASHES[one.dash ?? "solid"] };
    picture.append(svg("path", { ...style, fill: "none", "stroke-linejoin": "round", "data-name": one.name }));
  }
  if (one.dots) {
    for (const [k, [x, y]] of points.entries()) {
      if (seen[k]) picture.append(svg("circle", { cx: x, cy: y, r: one.dots, fill: one.colour, class: "dot" }));
    }
  }
}

function legend(host, plot, memory) {
  const row = html("div", { class: "legend" });
  for (const one of plot.panels.flatMap((panel) => panel.series)) {
    const off = memory.hidden.has(one.name);
    const sample = svg("svg", { width: 24, height: 10, "aria-hidden": "true" });
    const style = { stroke: one.colour, "stroke-width": one.width ?? 2, "stroke-dasharray": DASHES[one.dash ?? "solid"] };
    if (one.line !== false) sample.append(svg("line", { x1: 0, x2: 24, y1: 5, y2: 5, ...style }));
    if (one.dots) sample.append(svg("circle", { cx: 12, cy: 5, r: Math.min(one.dots, 4), fill: one.colour }));
    const button = html("button", { type: "button", "aria-pressed": String(!off) }, sample, one.name);
    button.addEventListener("click", () => {
      if (off) memory.hidden.delete(one.name);
      else memory.hidden.add(one.name);
      host.draw();
      host.body.querySelectorAll(".legend button")[[...row.children].indexOf(button)]?.focus();
    });
    row.append(button);
  }
  return row;
}

function spoken(plot) {
  const ends = plot.panels.flatMap((panel) => panel.series).map((one) => {
    const numbers = one.y.filter((value) => value !== null);
    return `${one.name} from ${readable(numbers[0])} to ${readable(numbers.at(-1))}`;
  });
  return `${plot.title}. Against ${plot.x.label}: ${ends.join("; ")}.`;
}

// The values of all curves at the place nearest to the pointer; arrow keys move it too.
function pointing(host, picture, plot, panels, across, inner) {
  const stops = [...new Set(panels.flatMap((panel) => panel.shown.flatMap((one) => one.x)))].sort((a, b) => a - b);
  if (!stops.length) return;
  const line = svg("line", { y1: inner.top, y2: inner.bottom, class: "pointer" });
  let at = null;
  const show = (stop, left, top) => {
    at = stop;
    const x = across.place(stops[stop]);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    picture.append(line);
    const said = panels.flatMap((panel) =>
      panel.shown.flatMap((one) =>
        one.x.flatMap((value, k) => (value === stops[stop] ? [[one, one.y[k], one.notes?.[k]]] : [])),
      ),
    );
    const rows = said.map(([one, y, note]) => [one.colour, `${one.name}: ${readable(y)}${note ? `, ${note}` : ""}`]);
    host.say(`${plot.x.label} ${readable(stops[stop])}`, rows, left ?? x, top ?? inner.top + 20);
  };
  const hide = () => {
    line.remove();
    host.hush();
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = event.clientX - box.left;
    if (x < inner.left - 4 || x > inner.right + 4) return hide();
    const distances = stops.map((stop) => Math.abs(across.place(stop) - x));
    return show(distances.indexOf(Math.min(...distances)), x, event.clientY - box.top);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(at === null ? (step > 0 ? 0 : stops.length - 1) : Math.min(Math.max(at + step, 0), stops.length - 1));
  });
}
