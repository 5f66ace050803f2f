// A matrix of shares as a picture: what is forbidden stays empty. Row 0 is at the top.

const FORBIDDEN = 65535;
const SHADES = Array.from({ length: 256 }, (_, k) => viridis(k / 255));

function drawHeat(host, plot) {
  const { width } = host.room(plot.height);
  const side = Math.max(120, Math.min(width - MARGIN.left - 70, plot.height - 50));
  const values = unpacked(plot.values, Uint16Array);
  const size = plot.size;
  let most = 1;
  for (const value of values) if (value !== FORBIDDEN && value > most) most = value;
  const canvas = host.keep("canvas", { role: "img", class: "heat" });
  canvas.width = size;
  canvas.height = size;
  canvas.style.cssText = `width:${side}px;height:${side}px;left:${MARGIN.left}px;top:0`;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(size, size);
  for (let k = 0; k < values.length; k += 1) {
    if (values[k] === FORBIDDEN) continue;
    const shade = SHADES[Math.round((255 * values[k]) / most)];
    image.data[4 * k] = shade[0];
    image.data[4 * k + 1] = shade[1];
    image.data[4 * k + 2] = shade[2];
    image.data[4 * k + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  const share = (value) => (value / (FORBIDDEN - 1)) * plot.top;
  canvas.setAttribute("aria-label", `${plot.title}: ${size} by ${size}, the largest ${readable(share(most))}.`);
  host.body.replaceChildren(canvas, heatFrame(side, size, plot, share(most), width));
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.min(size - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * size)));
    const row = Math.min(size - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * size)));
    const value = values[row * size + column];
    const said = value === FORBIDDEN ? "forbidden by the mask" : readable(share(value));
    host.say(`token ${row} attends to ${column}`, [[null, said]], event.clientX - box.left + MARGIN.left, event.clientY - box.top);
  };
  canvas.onpointerleave = () => host.hush();
}

// Numbers beside the matrix, and the colours with their values at its right.
function heatFrame(side, size, plot, most, width) {
  const left = MARGIN.left;
  const picture = svg("svg", { width, height: side + 46, "aria-hidden": "true" });
  const middle = side / 2;
  picture.append(
    svg("rect", { x: left, y: 0, width: side, height: side, class: "edge" }),
    svg("text", { x: left + middle, y: side + 36, "text-anchor": "middle", class: "name" }, plot.x),
    svg("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle", class: "name" }, plot.y),
  );
  for (const [value, label] of linearTicks(0, size - 1, Math.min(size - 1, side / 50))) {
    if (value !== Math.round(value)) continue;
    const place = ((value + 0.5) / size) * side;
    picture.append(svg("text", { x: left + place, y: side + 16, "text-anchor": "middle" }, label));
    picture.append(svg("text", { x: left - 6, y: place + 4, "text-anchor": "end" }, label));
  }
  const bar = left + side + 14;
  for (let k = 0; k < 40; k += 1) {
    const style = { x: bar, y: side * (1 - (k + 1) / 40), width: 10, height: side / 40 + 0.5, fill: rgb(viridis(k / 39)) };
    picture.append(svg("rect", style));
  }
  for (const [value, label] of linearTicks(0, most, 4)) {
    picture.append(svg("text", { x: bar + 14, y: side * (1 - value / most) + (value === 0 ? 0 : 4) }, label));
  }
  return picture;
}
