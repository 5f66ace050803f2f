// What stands inside a panel: curves with their points, areas, bars, and maps of cells.

const DASHES = { solid: null, dash: "7 4", dot: "2 4", dashdot: "7 3 2 3" };
const THIN = new Set(["x", "plus", "upright", "flat"]);

const SYMBOLS = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  square: (x, y, r) => `M${x - 0.9 * r} ${y - 0.9 * r}h${1.8 * r}v${1.8 * r}h${-1.8 * r}Z`,
  up: (x, y, r) => `M${x} ${y - 1.1 * r}l${r} ${1.9 * r}h${-2 * r}Z`,
  down: (x, y, r) => `M${x} ${y + 1.1 * r}l${r} ${-1.9 * r}h${-2 * r}Z`,
  diamond: (x, y, r) => `M${x} ${y - 1.2 * r}l${1.2 * r} ${1.2 * r}l${-1.2 * r} ${1.2 * r}l${-1.2 * r} ${-1.2 * r}Z`,
  cross: (x, y, r) => `M${x - r / 3} ${y - r}h${(2 * r) / 3}v${(2 * r) / 3}h${(2 * r) / 3}v${(2 * r) / 3}h${(-2 * r) / 3}v${(2 * r) / 3}h${(-2 * r) / 3}v${(-2 * r) / 3}h${(-2 * r) / 3}v${(-2 * r) / 3}h${(2 * r) / 3}Z`,
  star: (x, y, r) => `${Array.from({ length: 10 }, (_, k) => {
    const [reach, angle] = [k % 2 ? 0.5 * r : 1.25 * r, (Math.PI * k) / 5];
    return `${k ? "L" : "M"}${x + reach * Math.sin(angle)} ${y - reach * Math.cos(angle)}`;
  }).join("")}Z`,
  x: (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`,
  plus: (x, y, r) => `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`,
  upright: (x, y, r) => `M${x} ${y - r}v${2 * r}`,
  flat: (x, y, r) => `M${x - r} ${y}h${2 * r}`,
};

function lineStyle(one) {
  return { stroke: one.colour, "stroke-width": one.width ?? 2, "stroke-dasharray": DASHES[one.dash ?? "solid"], opacity: one.opacity };
}

function dotStyle(one, colour) {
  if (THIN.has(one.symbol)) return { stroke: colour, fill: "none", "stroke-width": 1.6, opacity: one.opacity };
  if (one.hollow) return { stroke: colour, class: one.hollow, "stroke-width": 1.5, opacity: one.opacity };
  return { fill: colour, opacity: one.opacity };
}

// A path has no place for numbers with an exponent; so far outside nobody sees the difference.
const within = (place) => Math.min(1e6, Math.max(-1e6, place));

function drawCurve(picture, one, panel) {
  const { left, right, top, bottom } = panel.box;
  // A line at one value reaches from edge to edge, whatever the axis shows.
  if (one.aside === "x") return drawAcross(picture, one, { x1: left, x2: right, y1: panel.up.place(one.y[0]), y2: panel.up.place(one.y[1]) });
  if (one.aside === "y") return drawAcross(picture, one, { x1: panel.across.place(one.x[0]), x2: panel.across.place(one.x[1]), y1: top, y2: bottom });
  const points = one.x.map((x, k) => [x === null ? NaN : within(panel.across.place(x)), one.y[k] === null ? NaN : within(panel.up.place(one.y[k]))]);
  const seen = points.map(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (one.line !== false) {
    // A gap in the numbers is a gap in the curve.
    const path = points.map(([x, y], k) => (seen[k] ? `${seen[k - 1] ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}` : "")).join("");
    picture.append(svg("path", { d: path, ...lineStyle(one), fill: "none", "stroke-linejoin": "round", "data-name": one.name }));
  }
  if (!one.dots) return undefined;
  const byColour = new Map();
  for (const [k, [x, y]] of points.entries()) {
    if (!seen[k]) continue;
    const colour = one.colours?.[k] ?? one.colour;
    const r = Array.isArray(one.dots) ? one.dots[k] : one.dots;
    byColour.set(colour, (byColour.get(colour) ?? "") + SYMBOLS[one.symbol ?? "circle"](Number(x.toFixed(2)), Number(y.toFixed(2)), r));
  }
  for (const [colour, d] of byColour) picture.append(svg("path", { d, ...dotStyle(one, colour), "data-dots": one.name }));
  return undefined;
}

function drawAcross(picture, one, ends) {
  if (Object.values(ends).every(Number.isFinite)) picture.append(svg("line", { ...ends, ...lineStyle(one) }));
}

// A corner that a logarithmic axis has no place for lies outside the panel.
function drawArea(picture, one, panel) {
  const { left, bottom } = panel.box;
  const placed = (at, outside) => (Number.isFinite(at) ? within(at) : outside).toFixed(2);
  const corner = (x, k) => `${placed(panel.across.place(x), left - 20)} ${placed(panel.up.place(one.y[k]), bottom + 20)}`;
  picture.append(svg("path", { d: `M${one.x.map(corner).join("L")}Z`, fill: one.colour, opacity: one.opacity }));
}

function drawBars(picture, one, panel) {
  const [along, lengths] = one.lying ? [panel.up, panel.across] : [panel.across, panel.up];
  for (const [k, place] of one.places.entries()) {
    const sides = [along.place(place - one.widths[k] / 2), along.place(place + one.widths[k] / 2)].sort((a, b) => a - b);
    const low = lengths.place(one.base[k]);
    const zero = one.lying ? panel.box.left : panel.box.bottom;
    const ends = [Number.isFinite(low) ? low : zero, lengths.place(one.base[k] + one.lengths[k])].sort((a, b) => a - b);
    const [x, y] = one.lying ? [ends, sides] : [sides, ends];
    const size = { x: x[0], y: y[0], width: x[1] - x[0], height: y[1] - y[0] };
    if (Object.values(size).every(Number.isFinite)) picture.append(svg("rect", { ...size, fill: one.colours[k], opacity: one.opacity }));
  }
}

const FORBIDDEN = 65535;

// The numbers of a map, row by row: as they are, or packed into 16 bits; what is not there is null.
function cellsOf(one) {
  if (!one.packed) return one.values;
  const top = one.top / (FORBIDDEN - 1);
  return Array.from(unpacked(one.packed, Uint16Array), (value) => (value === FORBIDDEN ? null : value * top));
}

function drawHeat(picture, one, panel) {
  const [rows, columns] = one.size;
  const values = cellsOf(one);
  const shades = Array.from({ length: 256 }, (_, k) => shade(one.scale.colours, k / 255));
  const canvas = html("canvas", { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  // The first row of the numbers is the lowest of the axis; of the picture it is the highest, unless the axis is turned.
  const [left, right] = one.x.map(panel.across.place);
  const [bottom, top] = one.y.map(panel.up.place);
  for (let k = 0; k < values.length; k += 1) {
    if (values[k] === null) continue;
    const row = Math.floor(k / columns);
    const at = 4 * ((bottom > top ? rows - 1 - row : row) * columns + (k % columns));
    const parts = shades[Math.round(255 * Math.min(1, Math.max(0, (values[k] - one.scale.low) / (one.scale.high - one.scale.low || 1))))];
    image.data.set([...parts, 255], at);
  }
  pen.putImageData(image, 0, 0);
  const size = { x: Math.min(left, right), y: Math.min(bottom, top), width: Math.abs(right - left), height: Math.abs(top - bottom) };
  picture.append(svg("image", { ...size, href: canvas.toDataURL(), preserveAspectRatio: "none", class: "heat" }));
}

const MARKS = { line: drawCurve, area: drawArea, bars: drawBars, heat: drawHeat };

// A sample of a series for the legend.
function sampleOf(one) {
  if (one.type === "note") return "";
  const sample = svg("svg", { width: 26, height: 12, "aria-hidden": "true" });
  if (one.type === "area" || one.type === "bars") {
    sample.append(svg("rect", { x: 4, y: 1, width: 18, height: 10, fill: one.colour, opacity: one.opacity }));
    return sample;
  }
  if (one.line !== false) sample.append(svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, ...lineStyle(one) }));
  const r = Math.min(Array.isArray(one.dots) ? 4 : one.dots, 4.5);
  if (one.dots) sample.append(svg("path", { d: SYMBOLS[one.symbol ?? "circle"](13, 6, r), ...dotStyle(one, one.colour) }));
  return sample;
}
