// An axis: from numbers to places on the screen, and the numbers that are written beside it.

function axisOf(values, options, from, to) {
  const seen = values.filter((value) => value !== null && Number.isFinite(value) && (!options.log || value > 0));
  let [low, high] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, 1];
  if (options.zero && !options.log) low = Math.min(low, 0);
  const turn = options.log ? Math.log10 : (value) => value;
  let [start, end] = [turn(low), turn(high)];
  if (start === end) [start, end] = [start - 0.5, end + 0.5];
  const air = options.air ?? 0.04;
  const room = (end - start) * air;
  start -= options.zero && low === 0 ? 0 : room;
  end += room;
  const place = (value) => (options.log && !(value > 0) ? NaN : from + ((turn(value) - start) / (end - start)) * (to - from));
  const count = Math.max(2, Math.round(Math.abs(to - from) / (options.gap ?? 60)));
  return { place, ticks: options.log ? logTicks(start, end, count) : linearTicks(start, end, count) };
}

function linearTicks(start, end, count) {
  const rough = (end - start) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((times) => times * unit >= rough) * unit;
  const ticks = [];
  for (let k = Math.ceil(start / step - 1e-9); k * step <= end + step * 1e-9; k += 1) {
    ticks.push([k * step, readable(Number((k * step).toPrecision(10)))]);
  }
  return ticks;
}

// Whole powers of ten; where fewer than two decades are seen, ones, twos and fives.
function logTicks(start, end, count) {
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
