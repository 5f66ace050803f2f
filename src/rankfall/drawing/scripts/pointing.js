// Values where one points, and a rectangle that zooms.

const MOST_SAID = 12;

// Whether a reader compares curves at one place of the axis below, or looks for single points.
function readAcross(panel) {
  let [along, single] = [0, 0];
  for (const one of panel.shown) {
    if (one.type !== "line" || one.aside) continue;
    const rises = one.line !== false && one.x.every((x, k) => k === 0 || x >= one.x[k - 1]);
    if (rises) along += one.x.length;
    else single += one.x.length;
  }
  return along > 0 && along * 2 >= single;
}

const axisText = (axis, value) => (axis.words && axis.ticks?.find(([at]) => at === value)?.[1]) || readable(value);

// The values of all curves at the place nearest to the pointer, or the point or cell below it; arrow keys move it too.
function pointing(host, picture, plot, panels) {
  const line = svg("line", { class: "pointer" });
  const stopsOf = (panel) => {
    const together = plot.x ? panels : [panel];
    const xs = together.flatMap((one) => one.shown.flatMap((series) => (series.type === "line" && !series.aside ? series.x : [])));
    const kept = [...new Set(xs)].filter((x) => x !== null && Number.isFinite(panel.across.place(x)));
    return kept.sort((a, b) => a - b);
  };
  let at = null;
  const hide = () => {
    line.remove();
    host.hush();
  };
  const showStop = (panel, stops, stop, left, top) => {
    at = stop;
    const x = panel.across.place(stops[stop]);
    const together = plot.x ? panels : [panel];
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: together[0].box.top, y2: together.at(-1).box.bottom })) line.setAttribute(name, value);
    picture.append(line);
    let said = together.flatMap((one) =>
      one.shown.flatMap((series) =>
        series.type !== "line" || series.aside ? [] : series.x.flatMap((value, k) => (value === stops[stop] && series.y[k] !== null ? [[series, k, one.up.place(series.y[k])]] : [])),
      ),
    );
    const more = said.length - MOST_SAID;
    if (more > 0 && top !== undefined) said = said.sort((a, b) => Math.abs(a[2] - top) - Math.abs(b[2] - top)).slice(0, MOST_SAID).sort((a, b) => a[2] - b[2]);
    const rows = said.map(([one, k]) => [one.colour, `${nameOf(one) ? `${nameOf(one)}: ` : ""}${readable(one.y[k])}${one.notes?.[k] ? `, ${one.notes[k]}` : ""}`]);
    if (more > 0) rows.push([null, `and ${more} more`]);
    host.say(`${panel.x.label ?? ""} ${axisText(panel.x, stops[stop])}`, rows, left ?? x, top ?? panel.box.top + 20);
  };
  const showPoint = (panel, x, y) => {
    let [nearest, best] = [24, null];
    for (const one of panel.shown) {
      if (one.type === "bars") {
        one.places.forEach((place, k) => {
          const [along, where] = one.lying ? [panel.up, y] : [panel.across, x];
          if (Math.abs(along.number(where) - place) <= one.widths[k] / 2) best = [one, k, axisText(one.lying ? panel.y : panel.x, place), one.base[k] + one.lengths[k]];
        });
      }
      if (one.type !== "line" || one.aside) continue;
      one.x.forEach((value, k) => {
        const away = Math.hypot(panel.across.place(value) - x, panel.up.place(one.y[k]) - y);
        if (away < nearest) [nearest, best] = [away, [one, k, axisText(panel.x, value), one.y[k]]];
      });
    }
    if (!best) return hide();
    const [one, k, where, value] = best;
    const note = one.notes?.[k] ? [[null, one.notes[k]]] : [];
    return host.say(nameOf(one) || plot.title, [[null, `${panel.x.label || "x"}: ${where}`], [null, `${panel.y.label || "y"}: ${readable(value)}`], ...note], x, y);
  };
  const showCell = (panel, heat, x, y) => {
    const [rows, columns] = heat.size;
    const index = ([low, high], count, value) => Math.floor(((value - low) / (high - low)) * count);
    const [column, row] = [index(heat.x, columns, panel.across.number(x)), index(heat.y, rows, panel.up.number(y))];
    if (column < 0 || row < 0 || column >= columns || row >= rows) return hide();
    heat.cells ??= cellsOf(heat);
    const value = heat.cells[row * columns + column];
    const middle = ([low, high], count, place) => readable(Number((low + ((high - low) * (place + 0.5)) / count).toPrecision(6)));
    const [along, upwards] = [middle(heat.x, columns, column), middle(heat.y, rows, row)];
    const title = heat.says ? heat.says.replace("{row}", upwards).replace("{column}", along) : `${panel.x.label || "x"} ${along}, ${panel.y.label || "y"} ${upwards}`;
    return host.say(title, [[null, value === null ? (heat.empty ?? "–") : readable(value)]], x, y);
  };
  picture.addEventListener("pointermove", (event) => {
    const frame = picture.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const panel = panelAt(panels, x, y);
    if (!panel) return hide();
    const heat = panel.shown.find((one) => one.type === "heat");
    if (heat) return showCell(panel, heat, x, y);
    if (!readAcross(panel)) return showPoint(panel, x, y);
    const stops = stopsOf(panel);
    const distances = stops.map((stop) => Math.abs(panel.across.place(stop) - x));
    return showStop(panel, stops, distances.indexOf(Math.min(...distances)), x, y);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const panel = panels.find(readAcross);
    if (!step || !panel) return;
    event.preventDefault();
    const stops = stopsOf(panel);
    showStop(panel, stops, at === null ? (step > 0 ? 0 : stops.length - 1) : Math.min(Math.max(at + step, 0), stops.length - 1));
  });
}

const panelAt = (panels, x, y) =>
  panels.find(({ box }) => x >= box.left - 4 && x <= box.right + 4 && y >= box.top - 4 && y <= box.bottom + GAP);

// A rectangle that is drawn with the pointer fills its panel; a double click shows everything again.
function zooming(host, picture, panels, plot, memory) {
  let held = null;
  const box = svg("rect", { class: "zoom" });
  const reset = () => {
    held = null;
    box.remove();
  };
  const spot = (event) => {
    const frame = picture.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const inPanel = ([x, y], { box: b }) => [Math.min(Math.max(x, b.left), b.right), Math.min(Math.max(y, b.top), b.bottom)];
  picture.addEventListener("pointerdown", (event) => {
    const panel = event.pointerType === "mouse" && event.button === 0 ? panelAt(panels, ...spot(event)) : null;
    if (panel) held = { panel, from: inPanel(spot(event), panel) };
  });
  picture.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = inPanel(spot(event), held.panel);
    const [left, top] = held.from;
    const size = { x: Math.min(left, x), y: Math.min(top, y), width: Math.abs(x - left), height: Math.abs(y - top) };
    picture.append(filled(box, size, []));
  });
  picture.addEventListener("pointerup", (event) => {
    if (!held) return;
    const { panel, from } = held;
    const to = inPanel(spot(event), panel);
    reset();
    if (Math.abs(to[0] - from[0]) < 8 || Math.abs(to[1] - from[1]) < 8) return;
    const ends = (axis, a, b, given) => {
      const found = [axis.number(a), axis.number(b)].sort((one, other) => one - other);
      return given && given[0] > given[1] ? found.reverse() : found;
    };
    const zoom = { x: ends(panel.across, from[0], to[0], panel.x.range), y: ends(panel.up, from[1], to[1], panel.y.range) };
    memory.zoomed = { ...memory.zoomed, [panel.index]: zoom };
    // Panels over a common axis stay over each other.
    if (plot.x) for (const other of panels) memory.zoomed[other.index] = { ...memory.zoomed[other.index], x: zoom.x };
    host.draw();
  });
  picture.addEventListener("pointerleave", reset);
  picture.addEventListener("dblclick", () => {
    memory.zoomed = {};
    host.draw();
  });
}
