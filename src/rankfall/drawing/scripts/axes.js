// An axis: from numbers to places on the screen and back, and the numbers that are written beside it.

// A scale turns numbers into even steps: straight, decades, or straight up to `linear` and decades beyond it.
function scaleOf(options) {
  if (options.linear) {
    const edge = options.linear;
    const turn = (value) => (Math.abs(value) <= edge ? value / edge : Math.sign(value) * (1 + Math.log10(Math.abs(value) / edge)));
    return { turn, back: (step) => (Math.abs(step) <= 1 ? step * edge : Math.sign(step) * edge * 10 ** (Math.abs(step) - 1)) };
  }
  if (options.log) return { turn: (value) => (value > 0 ? Math.log10(value) : NaN), back: (step) => 10 ** step };
  return { turn: (value) => value, back: (step) => step };
}

function axisOf(values, options, from, to) {
  const { turn, back } = scaleOf(options);
  let [start, end] = (options.range ?? []).map(turn);
  if (!(Number.isFinite(start) && Number.isFinite(end) && start !== end)) {
    [start, end] = [Infinity, -Infinity];
    for (const value of values) {
      if (value === null || !Number.isFinite(turn(value))) continue;
      start = Math.min(start, turn(value));
      end = Math.max(end, turn(value));
    }
    if (start > end) [start, end] = [0, 1];
    if (options.zero && !options.log) start = Math.min(start, 0);
    if (start === end) [start, end] = [start - 0.5, end + 0.5];
    const room = (end - start) * (options.air ?? 0.04);
    start -= options.zero && start === 0 ? 0 : room;
    end += room;
  }
  const place = (value) => from + ((turn(value) - start) / (end - start)) * (to - from);
  const number = (at) => back(start + ((at - from) / (to - from)) * (end - start));
  const count = Math.max(2, Math.round(Math.abs(to - from) / (options.gap ?? 60)));
  const [low, high] = start < end ? [start, end] : [end, start];
  let ticks;
  if (options.ticks) ticks = options.ticks.filter(([value]) => turn(value) >= low - 1e-9 && turn(value) <= high + 1e-9);
  else if (options.linear) ticks = symmetricTicks(low, high, count, options.linear);
  else ticks = options.log ? logTicks(low, high, count) : linearTicks(low, high, count, options.whole);
  return { place, number, ticks: fitting(ticks, place, options.names) };
}

// Words side by side must not run into each other: where they would, every second, third ... is written.
function fitting(ticks, place, letters) {
  if (!letters || ticks.length < 2) return ticks;
  const long = Math.max(...ticks.map(([, label]) => label.length)) * letters + 8;
  const kept = [];
  for (const tick of ticks) {
    if (!kept.length || Math.abs(place(tick[0]) - place(kept.at(-1)[0])) >= Math.min(long, 160)) kept.push(tick);
  }
  return kept;
}

function linearTicks(start, end, count, whole) {
  const rough = (end - start) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((times) => times * unit >= rough * (1 - 1e-9)) * unit, whole ? 1 : 0);
  const ticks = [];
  for (let k = Math.ceil(start / step - 1e-9); k * step <= end + step * 1e-9; k += 1) {
    ticks.push([k * step, readable(Number((k * step).toPrecision(10)))]);
  }
  return ticks;
}

// Whole powers of ten; where fewer than two decades are seen, ones, twos and fives.
function logTicks(start, end, count) {
  if (end - start < 0.5) return linearTicks(10 ** start, 10 ** end, count);
  const ticks = [];
  const within = (value) => Math.log10(value) >= start - 1e-9 && Math.log10(value) <= end + 1e-9;
  const few = end - start < 3;
  const stride = Math.max(1, Math.ceil((end - start) / count));
  for (let power = Math.floor(start); power <= Math.ceil(end); power += 1) {
    if (!few && power % stride !== 0) continue;
    for (const times of few ? [1, 2, 5] : [1]) {
      const value = times * 10 ** power;
      if (!within(value)) continue;
      ticks.push([value, few && power > -4 && power < 5 ? readable(value) : `${times > 1 ? `${times}·` : ""}${powerOfTen(power)}`]);
    }
  }
  return ticks;
}

// Zero, and powers of ten on either side of it.
function symmetricTicks(start, end, count, edge) {
  const ticks = start <= 0 && end >= 0 ? [[0, "0"]] : [];
  const first = Math.ceil(Math.log10(edge) - 1e-9);
  const last = Math.floor(Math.log10(edge) + Math.max(Math.abs(start), Math.abs(end)) - 1 + 1e-9);
  const sides = (start < 0 ? 1 : 0) + (end > 0 ? 1 : 0);
  const stride = Math.max(1, Math.ceil((sides * (last - first + 1)) / count));
  const { turn } = scaleOf({ linear: edge });
  for (let power = first; power <= last; power += stride) {
    const label = power > -4 && power < 5 ? readable(10 ** power) : powerOfTen(power);
    if (turn(10 ** power) <= end) ticks.push([10 ** power, label]);
    if (turn(-(10 ** power)) >= start) ticks.push([-(10 ** power), `−${label}`]);
  }
  return ticks.sort((one, other) => one[0] - other[0]);
}
