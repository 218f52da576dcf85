// Lines over steps, as SVG: the pages of runs need nothing else, so they open without plotly, whose
// unpacking took most of the time until a page was drawn.
function niceTicks(from, to, count = 4) {
  const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= rough), ticks = [];
  for (let n = Math.ceil(from / step); n * step <= to + 1e-9; n++) ticks.push(Number((n * step).toPrecision(6)));
  return ticks;
}

// Where a value stands between 0 and 1, and its ticks; on a log axis what is not above 0 has no place.
function valueAxis(values, log) {
  if (log) {
    const { range: [low, high], tickvals } = logAxis(values);
    const share = (value) => (value > 0 ? (Math.log10(value) - low) / (high - low) : null);
    return { share, ticks: tickvals.filter((value) => share(value) >= 0 && share(value) <= 1) };
  }
  const least = values.reduce((a, b) => Math.min(a, b)), most = values.reduce((a, b) => Math.max(a, b));
  const room = 0.05 * (most - least) || 0.05 * Math.abs(most) || 1, low = least - room, high = most + room;
  return { share: (value) => (value - low) / (high - low), ticks: niceTicks(low, high, 7) };
}

// "M..L..", broken where a value is missing.
function linePath(xs, ys) {
  let path = "", pen = "M";
  ys.forEach((y, n) => {
    if (y === null) { pen = "M"; return; }
    path += `${pen}${xs[n].toFixed(1)},${y.toFixed(1)}`; pen = "L";
  });
  return path;
}

// The area between two lines, in pieces where a value is missing.
function bandPath(xs, lows, highs) {
  const pieces = [[]];
  xs.forEach((_, n) => (lows[n] === null || highs[n] === null ? pieces.push([]) : pieces.at(-1).push(n)));
  return pieces.filter((piece) => piece.length).map((piece) => {
    const corner = (ys) => (n) => `${xs[n].toFixed(1)},${ys[n].toFixed(1)}`;
    return `M${[...piece.map(corner(highs)), ...piece.reverse().map(corner(lows))].join("L")}Z`;
  }).join("");
}

const stepText = (step) => Number(step).toLocaleString("en-US");

// Lines, bands and marks over steps, with one cursor that tells every series.
//   { label, yTitle, unit, digits, log, height, floors: [{ y, label, color, dash }], series }
//   series: [{ label, words, color, glyph, x, y, low, high, marks }]; marks are points without a line
function lineChart(place, spec) {
  const width = Math.max(150, Math.floor(place.clientWidth)), left = 62, right = 10, top = 10;
  const height = spec.height ?? 340, bottom = top + height, inner = width - left - right;
  const chart = newChart(width, bottom + 40, spec.label), series = spec.series.filter((one) => one.x.length);
  const known = series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]).concat(spec.floors.map(({ y }) => y));
  const axis = valueAxis(known.filter((value) => value !== null && (!spec.log || value > 0)), spec.log);
  const steps = series.flatMap((one) => one.x), first = steps.reduce((a, b) => Math.min(a, b)), last = steps.reduce((a, b) => Math.max(a, b));
  const atX = (step) => left + (last > first ? (inner * (step - first)) / (last - first) : inner / 2);
  const atY = (value) => { const share = value === null ? null : axis.share(value); return share === null ? null : bottom - height * share; };
  drawLineAxes(chart, { spec, axis, atX, atY, left, top, bottom, inner, first, last });
  for (const one of series) {
    const xs = one.x.map(atX), ys = one.y.map(atY);
    if (one.low) chart.append(svg("path", { class: "band", d: bandPath(xs, one.low.map(atY), one.high.map(atY)), fill: one.color, "fill-opacity": 0.18 }));
    if (!one.marks) chart.append(svg("path", { class: "line", d: linePath(xs, ys), fill: "none", stroke: one.color, "stroke-width": 1.6, "stroke-linejoin": "round" }));
    else one.x.forEach((step, n) => ys[n] !== null && chart.append(svgText(one.glyph, xs[n], ys[n], {
      class: "mark", "data-step": step, fill: one.color, "font-size": 13, "text-anchor": "middle", "dominant-baseline": "central", stroke: paperColor(), "stroke-width": 0.6,
    })));
  }
  const box = document.createElement("div");
  box.className = "readout"; box.hidden = true;
  place.replaceChildren(chart, box);
  place.series = series;
  followCursor(place, { chart, box, spec, series, atX, top, bottom, left, inner, width, first, last });
}

function drawLineAxes(chart, { spec, axis, atX, atY, left, top, bottom, inner, first, last }) {
  const line = (x1, x2, y1, y2, more) => chart.append(svg("line", { x1, x2, y1, y2, stroke: lineColor(), ...more }));
  for (const tick of axis.ticks) {
    line(left, left + inner, atY(tick), atY(tick));
    chart.append(svgText(shortNumber(tick), left - 6, atY(tick) + 4, { "text-anchor": "end" }));
  }
  for (const tick of last > first ? niceTicks(first, last, inner < 500 ? 4 : 8).filter(Number.isInteger) : [first]) {
    line(atX(tick), atX(tick), top, bottom);
    chart.append(svgText(stepText(tick), atX(tick), bottom + 15, { "text-anchor": atX(tick) > left + inner - 20 ? "end" : "middle" }));
  }
  chart.append(svgText("step", left + inner / 2, bottom + 33, { "text-anchor": "middle", fill: inkColor() }));
  const middle = (top + bottom) / 2;
  chart.append(svgText(spec.yTitle, 12, middle, { "text-anchor": "middle", fill: inkColor(), transform: `rotate(-90 12 ${middle})` }));
  for (const { y, label, color, dash } of spec.floors) {
    line(left, left + inner, atY(y), atY(y), { class: "floor", stroke: color, "stroke-width": 1.2, "stroke-dasharray": dash });
    if (label) chart.append(svgText(`${label}: ${shortNumber(y)}`, left + 5, atY(y) - 4, { fill: color }));
  }
}

// The step under the pointer is told for all series, and stays told when new steps are drawn.
function followCursor(place, { chart, box, spec, series, atX, top, bottom, left, inner, width, first, last }) {
  const lines = series.filter((one) => !one.marks), columns = (lines.length ? lines : series).reduce((most, one) => (one.x.length > most.length ? one.x : most), []);
  const rule = svg("line", { y1: top, y2: bottom, stroke: inkColor(), "stroke-dasharray": "3 3", opacity: 0 });
  chart.append(rule);
  const tell = (pointed) => {
    place.cursor = pointed;
    box.hidden = pointed === null; rule.setAttribute("opacity", pointed === null ? 0 : 0.8);
    if (pointed === null) return;
    const step = columns[nearestColumn(columns, pointed)], x = atX(step), near = Math.max(0.01 * (last - first), 0.5);
    rule.setAttribute("x1", x); rule.setAttribute("x2", x);
    const head = document.createElement("b"), labels = [...new Set(series.map((one) => one.label))];
    head.textContent = `step ${stepText(step)}, ${spec.unit}`;
    const told = labels.map((label) => readoutLine(label, series.filter((one) => one.label === label), step, near, spec.digits));
    box.replaceChildren(head, ...told.filter((each) => each));
    const area = chart.getBoundingClientRect(), zoom = area.width / width, onLeft = x - left > inner / 2;
    box.style.left = onLeft ? left * zoom + 4 + "px" : "auto"; box.style.right = onLeft ? "auto" : "14px";
  };
  const pointed = (event) => {
    const area = chart.getBoundingClientRect(), share = (((event.clientX - area.left) * width) / area.width - left) / inner;
    tell(first + Math.min(1, Math.max(0, share)) * (last - first));
  };
  for (const kind of ["pointermove", "pointerdown", "click"]) chart.addEventListener(kind, pointed);
  chart.addEventListener("pointerleave", () => tell(null));
  if (place.cursor !== undefined && place.cursor !== null) tell(place.cursor);
}

// "◆ label: 0.2340 (0.2100 to 0.2500), validation 0.2290"; marks only where one stands near the cursor.
function readoutLine(label, some, step, near, digits) {
  const parts = some.map((one) => {
    const n = nearestColumn(one.x, step), value = one.y[n], number = (each) => each.toFixed(digits);
    if (value === null || (one.marks && Math.abs(one.x[n] - step) > near)) return "";
    const range = one.low && one.low[n] !== null && one.low[n] !== one.high[n] ? ` (${number(one.low[n])} to ${number(one.high[n])})` : "";
    return `${one.marks ? one.words + " " : ""}${number(value)}${range}`;
  }).filter((each) => each);
  if (!parts.length) return null;
  const made = document.createElement("div"), glyph = document.createElement("i");
  glyph.className = "glyph"; glyph.style.color = some[0].color; glyph.textContent = some[0].glyph;
  made.append(glyph, ` ${label}: ${parts.join(", ")}`);
  return made;
}
