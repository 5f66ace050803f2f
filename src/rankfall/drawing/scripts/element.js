// <rankfall-plot data-plot='{"kind": ...}'>: draws what it is given, and again when it is given something else.

// A report brings only the scripts that it needs.
const KINDS = {
  panels: () => drawPanels, graph: () => drawGraph, motion: () => drawMotion, table: () => drawTable,
};
// What a reader chose (hidden curves, the sphere's turn) outlives a redraw, even one into a new element.
const MEMORIES = new Map();

class RankfallPlot extends HTMLElement {
  // As data-*: what has the name of a field of ours, marimo would set as that field, and nothing be told.
  static observedAttributes = ["data-plot"];

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    this.heading = html("h4");
    this.body = html("div", { class: "body" });
    this.bubble = html("div", { class: "bubble", role: "status" });
    this.kept = new Map();
    root.append(html("style", {}, STYLE), this.heading, this.body, this.bubble);
    // The width is remembered: asking for it while the plots beside this one change would lay out the page each time.
    this.watch = new ResizeObserver(([seen]) => {
      const width = Math.round(seen.contentRect.width);
      if (!width || width === this.width) return;
      this.width = width;
      if (this.plot) this.draw();
    });
  }

  connectedCallback() {
    this.width = this.clientWidth;
    this.watch.observe(this);
    this.take();
  }

  disconnectedCallback() {
    this.watch.disconnect();
    if (this.plot) clearInterval(this.memory().timer);
  }

  // An element that stood there before its scripts hears of its attribute before it is connected, and has no width yet.
  attributeChangedCallback() {
    if (this.width !== undefined) this.take();
  }

  take() {
    const given = this.dataset.plot;
    if (!given || given === this.given) return;
    this.given = given;
    this.plot = JSON.parse(given);
    this.draw();
  }

  draw() {
    this.heading.textContent = this.plot.title;
    this.heading.hidden = !this.plot.title;
    this.hush();
    KINDS[this.plot.kind]()(this, this.plot, this.memory());
    this.dataset.drawn = "yes";
    this.dispatchEvent(new CustomEvent("rankfall-drawn", { bubbles: true, composed: true }));
  }

  memory() {
    const name = this.plot.name;
    if (!MEMORIES.has(name)) MEMORIES.set(name, {});
    return MEMORIES.get(name);
  }

  room() {
    return Math.max(240, this.width);
  }

  // Paper has another width than the screen, and is printed before anybody is told.
  fit() {
    this.width = this.clientWidth;
    this.draw();
  }

  // A canvas is made once: to clear it is cheaper.
  keep(tag, attributes) {
    if (!this.kept.has(tag)) this.kept.set(tag, html(tag));
    return filled(this.kept.get(tag), attributes, []);
  }

  say(title, rows, x, y) {
    const lines = rows.map(([colour, text]) => {
      const mark = html("i");
      if (colour) mark.style.background = colour;
      return html("div", {}, ...(colour ? [mark] : []), text);
    });
    this.bubble.replaceChildren(html("b", {}, title), ...lines);
    this.bubble.style.display = "block";
    const left = x + this.bubble.offsetWidth + 16 > this.width ? x - this.bubble.offsetWidth - 12 : x + 14;
    this.bubble.style.left = `${Math.max(0, left)}px`;
    this.bubble.style.top = `${y + this.heading.offsetHeight}px`;
  }

  hush() {
    this.bubble.style.display = "none";
  }
}

customElements.define("rankfall-plot", RankfallPlot);
