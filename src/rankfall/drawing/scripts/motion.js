// Tokens on the circle or the sphere, layer by layer: all places come at once, and the browser plays them.

function drawMotion(host, plot, memory) {
  const width = host.room();
  const side = Math.min(width, plot.height - 56);
  const axes = plot.axes;
  const count = plot.tokens;
  const places = unpacked(plot.places, Int16Array);
  const layers = plot.layers;
  memory.turn ??= { yaw: -0.78, pitch: 0.4 };
  memory.row = plot.row;
  clearInterval(memory.timer);
  const canvas = host.keep("canvas", { class: "motion", tabindex: axes === 3 ? 0 : null });
  canvas.setAttribute("role", "img");
  const shades = Array.from({ length: count }, (_, k) => rgb(shade(null, count > 1 ? k / (count - 1) : 0)));
  let dots = [];

  const paint = () => {
    const pen = sharpCanvas(canvas, width, side);
    const ink = getComputedStyle(canvas).color;
    const scene = { pen, middle: { x: width / 2, y: side / 2 }, reach: side / 2 - 12, turn: memory.turn, axes };
    outline(scene, ink);
    const start = memory.row * count * axes;
    dots = Array.from({ length: count }, (_, k) => onScreen(scene, places, start + k * axes, k));
    if (axes === 3) dots.sort((one, other) => one.depth - other.depth);
    for (const dot of dots) {
      pen.beginPath();
      pen.arc(dot.x, dot.y, dot.r, 0, 2 * Math.PI);
      pen.globalAlpha = dot.alpha;
      pen.fillStyle = shades[dot.token];
      pen.fill();
      pen.lineWidth = 0.5;
      pen.strokeStyle = ink;
      pen.stroke();
    }
    pen.globalAlpha = 1;
    canvas.setAttribute("aria-label", `${plot.title}: ${count} tokens at layer ${layers[memory.row]}.`);
    host.dataset.layer = layers[memory.row];
  };

  host.body.replaceChildren(canvas, player(host, layers, memory, paint));
  canvas.style.cursor = axes === 3 ? "grab" : "default";
  handling(host, canvas, memory, paint, () => dots, axes);
  paint();
}

function onScreen(scene, places, start, token) {
  const [x, y] = [places[start] / 32767, places[start + 1] / 32767];
  if (scene.axes === 2) return { x: scene.middle.x + x * scene.reach, y: scene.middle.y - y * scene.reach, r: 4.5, alpha: 1, token };
  const [right, up, near] = turned([x, y, places[start + 2] / 32767], scene.turn);
  const r = 3.5 + 1.2 * near;
  return { x: scene.middle.x + right * scene.reach, y: scene.middle.y - up * scene.reach, r, alpha: 0.7 + 0.3 * near, depth: near, token };
}

// Round the upright axis first, then towards the reader.
function turned([x, y, z], { yaw, pitch }) {
  const right = x * Math.cos(yaw) - y * Math.sin(yaw);
  const away = x * Math.sin(yaw) + y * Math.cos(yaw);
  return [right, z * Math.cos(pitch) + away * Math.sin(pitch), z * Math.sin(pitch) - away * Math.cos(pitch)];
}

// The unit circle; in space three of them, which the eye takes for a sphere, and its rim.
function outline(scene, ink) {
  const { pen, middle, reach, axes, turn } = scene;
  pen.strokeStyle = ink;
  pen.globalAlpha = 0.35;
  pen.lineWidth = 1.2;
  pen.beginPath();
  pen.arc(middle.x, middle.y, reach, 0, 2 * Math.PI);
  pen.stroke();
  if (axes === 3) {
    for (const plane of [[0, 1], [0, 2], [1, 2]]) {
      pen.beginPath();
      for (let step = 0; step <= 60; step += 1) {
        const point = [0, 0, 0];
        point[plane[0]] = Math.cos((2 * Math.PI * step) / 60);
        point[plane[1]] = Math.sin((2 * Math.PI * step) / 60);
        const [right, up] = turned(point, turn);
        pen.lineTo(middle.x + right * reach, middle.y - up * reach);
      }
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

function player(host, layers, memory, paint) {
  const play = html("button", { type: "button", class: "play", "aria-label": "play" }, "▶");
  const scrub = html("input", { type: "range", min: 0, max: layers.length - 1, step: 1, "aria-label": "layer of the picture" });
  const label = html("output", {});
  const goTo = (row) => {
    memory.row = row;
    scrub.value = row;
    scrub.setAttribute("aria-valuetext", `layer ${layers[row]}`);
    label.textContent = `layer ${layers[row]}`;
  };
  const halt = () => {
    clearInterval(memory.timer);
    memory.timer = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", "play");
  };
  play.addEventListener("click", () => {
    if (memory.timer) return halt();
    if (memory.row === layers.length - 1) goTo(0);
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "pause");
    memory.timer = setInterval(() => {
      if (memory.row === layers.length - 1 || !host.isConnected) return halt();
      goTo(memory.row + 1);
      return paint();
    }, 120);
    return undefined;
  });
  scrub.addEventListener("input", () => {
    halt();
    goTo(Number(scrub.value));
    paint();
  });
  goTo(memory.row);
  memory.timer = null;
  return html("div", { class: "player" }, play, scrub, label);
}

// Dragging or arrow keys turn the sphere; pointing at a token names it.
function handling(host, canvas, memory, paint, dots, axes) {
  const turnBy = (right, up) => {
    memory.turn = { yaw: memory.turn.yaw + right, pitch: Math.min(1.5, Math.max(-1.5, memory.turn.pitch + up)) };
    paint();
  };
  let held = null;
  canvas.onpointerdown = (event) => {
    if (axes !== 3) return;
    held = { x: event.clientX, y: event.clientY };
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointerup = () => {
    held = null;
  };
  canvas.onpointermove = (event) => {
    if (held) {
      turnBy((event.clientX - held.x) / 120, (event.clientY - held.y) / 120);
      held = { x: event.clientX, y: event.clientY };
      return;
    }
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const under = dots().filter((dot) => Math.hypot(dot.x - x, dot.y - y) <= dot.r + 2).map((dot) => dot.token);
    if (!under.length) return void host.hush();
    under.sort((one, other) => one - other);
    const named = under.length > 12 ? `${under.slice(0, 12).join(", ")} and ${under.length - 12} more` : under.join(", ");
    host.say(under.length > 1 ? "tokens" : "token", [[null, named]], x, y);
  };
  canvas.onpointerleave = () => host.hush();
  canvas.onkeydown = (event) => {
    const [right, up] = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key] ?? [0, 0];
    if (axes !== 3 || (!right && !up)) return;
    event.preventDefault();
    turnBy(right, up);
  };
}
