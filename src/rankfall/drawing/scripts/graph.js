// Tokens on a circle, an arrow where information flows.

function drawGraph(host, plot) {
  const width = host.room();
  const side = Math.min(width, plot.height);
  const middle = { x: width / 2, y: side / 2 };
  const reach = side / 2 - 16;
  const places = plot.tokens.map((_, k) => {
    const angle = (2 * Math.PI * k) / plot.tokens.length;
    return { x: middle.x + reach * Math.sin(angle), y: middle.y - reach * Math.cos(angle) };
  });
  const picture = svg("svg", { width, height: side, role: "img" });
  picture.setAttribute("aria-label", `${plot.title}: ${plot.tokens.length} tokens, ${plot.edges.length} arrows.`);
  let lines = "";
  let heads = "";
  for (const [source, target] of plot.edges) {
    const [from, to] = [places[source], places[target]];
    const length = Math.hypot(to.x - from.x, to.y - from.y);
    const [dx, dy] = [(to.x - from.x) / length, (to.y - from.y) / length];
    // Arrows end at the target's disc, so that their heads can be seen.
    const tip = { x: to.x - 12 * dx, y: to.y - 12 * dy };
    const back = { x: tip.x - 8 * dx, y: tip.y - 8 * dy };
    lines += `M${from.x.toFixed(1)} ${from.y.toFixed(1)}L${back.x.toFixed(1)} ${back.y.toFixed(1)}`;
    heads += `M${tip.x.toFixed(1)} ${tip.y.toFixed(1)}L${(back.x - 3 * dy).toFixed(1)} ${(back.y + 3 * dx).toFixed(1)}`;
    heads += `L${(back.x + 3 * dy).toFixed(1)} ${(back.y - 3 * dx).toFixed(1)}Z`;
  }
  picture.append(svg("path", { d: lines, class: "arrow" }), svg("path", { d: heads, class: "head" }));
  for (const [k, token] of plot.tokens.entries()) {
    const disc = svg("g", {}, svg("title", {}, token.says), svg("circle", { cx: places[k].x, cy: places[k].y, r: 10, fill: token.colour }));
    disc.append(svg("text", { x: places[k].x, y: places[k].y + 4, "text-anchor": "middle", class: "number" }, String(k)));
    picture.append(disc);
  }
  host.body.replaceChildren(picture);
}
