// What every picture needs: elements, numbers as people read them, colours, and packed numbers.

const SVG = "http://www.w3.org/2000/svg";

function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Text is only ever put in as text: names come from folders and files.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function powerOfTen(exponent) {
  const digits = String(Math.abs(exponent)).replace(/\d/g, (digit) => RAISED[digit]);
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
}

function readable(number, digits = 4) {
  if (number === null || number === undefined) return "–";
  if (number !== 0 && (Math.abs(number) < 1e-3 || Math.abs(number) >= 1e6)) {
    return number.toExponential(digits - 2).replace("e", " · 10^").replace("^+", "^");
  }
  return String(Number(number.toPrecision(digits)));
}

function unpacked(text, kind) {
  return new kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

// Viridis, by stops: from dark to light it can be read without colours too.
const VIRIDIS = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
];

function shade(colours, share) {
  const stops = colours ?? VIRIDIS;
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const stop = Math.min(Math.floor(place), stops.length - 2);
  return stops[stop].map((part, k) => Math.round(part + (place - stop) * (stops[stop + 1][k] - part)));
}

const rgb = (parts) => `rgb(${parts.join(",")})`;

// A canvas whose dots are the screen's own.
function sharpCanvas(canvas, width, height) {
  const dots = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * dots)) canvas.width = Math.round(width * dots);
  if (canvas.height !== Math.round(height * dots)) canvas.height = Math.round(height * dots);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(dots, 0, 0, dots, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}
