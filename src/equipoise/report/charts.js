// Drawings of our own, as SVG: heat maps of loads, ridges of histograms. Every colour is an attribute
// of its element, so that a chart saved alone looks as it does on the page.
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const FONT = "system-ui, sans-serif";

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((each) => each !== null));
  return made;
}

const svgText = (words, x, y, more = {}) =>
  svg("text", { x, y, fill: muteColor(), "font-size": 11, "font-family": FONT, ...more }, words);

// An element of this size that is as wide as its place.
function newChart(width, height, label) {
  return svg("svg", {
    class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label,
  });
}

// "◆ label" in the scheme's colour; without a scheme, the label alone.
function chartTitle(scheme, label, x = 0, y = 13) {
  const title = svgText("", x, y, { fill: inkColor(), "font-size": 12.5, "font-weight": 600 });
  if (scheme) {
    const { color, glyph } = schemeStyle(scheme);
    title.append(svg("tspan", { fill: color }, glyph + " "));
  }
  title.append(svg("tspan", {}, label));
  return title;
}

// --- one colour scale for all heat maps of a quantity -------------------------------------------

// Blue below the middle, red above it; what lies above `high` has a colour of its own, and is told.
function colorScale({ low = 0, middle = 1, high, unit = "" }) {
  const blank = dark.matches ? [30, 35, 44] : [247, 248, 250];
  const over = dark.matches ? [240, 168, 255] : [74, 13, 103];
  const cold = [33, 102, 172], hot = [214, 69, 42];
  const mix = (from, to, share) => from.map((value, n) => Math.round(value + share * (to[n] - value)));
  const color = (value) => {
    if (value > high) return over;
    if (value >= middle) return mix(blank, hot, (value - middle) / (high - middle));
    return mix(blank, cold, Math.min(1, (middle - value) / (middle - low || 1)));
  };
  return { low, middle, high, unit, over, color };
}

// A round number that this share of the values does not exceed.
function scaleEnd(values, share) {
  const most = values.filter((value) => value !== null).sort((a, b) => a - b)[Math.floor(share * (values.length - 1))] ?? 1;
  return [0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 64].find((each) => each >= most) ?? 128;
}

const rgb = (color) => `rgb(${color.join(",")})`;
const shortNumber = (value) => String(Number(Number(value).toPrecision(3)));

// How much of these values lies above the scale's end, in words; empty if nothing does.
function aboveScale(rows, scale) {
  const values = rows.flat().filter((value) => value !== null);
  const above = values.filter((value) => value > scale.high);
  if (!above.length) return "";
  const share = (100 * above.length) / values.length, most = above.reduce((a, b) => Math.max(a, b));
  return `${share < 1 ? "<1" : Math.round(share)}% above ${scale.high}${scale.unit}, most ${shortNumber(most)}${scale.unit}`;
}

// The scale as a bar with its ends, and the colour of what is above it.
function drawScaleBar(place, scale, words = "") {
  const width = Math.min(360, place.clientWidth || 360), bar = width - 110, chart = newChart(width, 34, "colour scale");
  chart.style.maxWidth = width + "px";
  const parts = 60, at = (value) => 4 + (bar * (value - scale.low)) / (scale.high - scale.low);
  for (let n = 0; n < parts; n++) {
    const value = scale.low + ((n + 0.5) / parts) * (scale.high - scale.low);
    chart.append(svg("rect", { x: 4 + (n * bar) / parts, y: 2, width: bar / parts + 0.6, height: 12, fill: rgb(scale.color(value)) }));
  }
  for (const value of new Set([scale.low, scale.middle, scale.high]))
    chart.append(svgText(shortNumber(value) + scale.unit, at(value), 28, { "text-anchor": value === scale.low ? "start" : "middle" }));
  chart.append(svg("rect", { x: bar + 26, y: 2, width: 16, height: 12, fill: rgb(scale.over) }), svgText("above " + scale.high + scale.unit, bar + 46, 12));
  const note = document.createElement("p");
  note.className = "note"; note.textContent = words;
  place.replaceChildren(chart, ...(words ? [note] : []));
}

// --- heat maps -----------------------------------------------------------------------------------

// The cells as a picture of one pixel each.
function cellPicture(rows, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = rows[0].length; canvas.height = rows.length;
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  rows.forEach((row, y) => row.forEach((value, x) => {
    const [red, green, blue] = value === null ? [128, 128, 128] : scale.color(value);
    image.data.set([red, green, blue, value === null ? 40 : 255], 4 * (y * canvas.width + x));
  }));
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// rows[y][x] over columns (steps) and names of rows; null is a gap. Columns are of equal width.
//   { scheme, label, rows, names, columns, scale, height, rowTitle, valueText, summary, tapped }
//   optional: left, rowTicks (rows that are named), foot (room below the cells)
// Returns { chart, point(column, name) }: point marks a cell and tells it in the title's line; with
// null it tells the summary. tapped({column, name, x, y}, event) is called while a pointer is on it.
function heatMap(place, spec) {
  const width = Math.max(150, Math.floor(place.clientWidth)), left = spec.left ?? 30, top = 36;
  const inner = width - left - 2, height = spec.height ?? 150, bottom = top + height;
  const foot = bottom + 14 + (spec.foot ?? 0), chart = newChart(width, foot + 6, `${spec.label}. ${spec.summary || ""}`);
  const count = spec.columns.length, cell = inner / count, tall = height / spec.rows.length;
  const told = svgText(spec.summary || "", 0, 29);
  chart.append(chartTitle(spec.scheme, spec.label), told);
  chart.append(svg("image", {
    x: left, y: top, width: inner, height, preserveAspectRatio: "none",
    style: "image-rendering: pixelated", href: cellPicture(spec.rows, spec.scale),
  }));
  chart.append(svg("rect", { x: left, y: top, width: inner, height, fill: "none", stroke: lineColor() }));
  const last = spec.names.length - 1;
  const middle = top + height / 2;
  if (!spec.rowTicks && height > 90)
    chart.append(svgText(spec.rowTitle, left - 8, middle, { "text-anchor": "middle", transform: `rotate(-90 ${left - 8} ${middle})` }));
  for (const row of new Set(spec.rowTicks ?? [0, last]))
    chart.append(svgText(spec.names[row], left - 4, top + (row + 0.5) * tall + 4, { "text-anchor": "end" }));
  for (const column of new Set([0, Math.floor((count - 1) / 2), count - 1])) {
    const anchor = column === 0 ? "start" : column === count - 1 ? "end" : "middle";
    const x = column === 0 ? left : column === count - 1 ? left + inner : left + (column + 0.5) * cell;
    chart.append(svgText((column ? "" : "step ") + spec.columns[column], x, foot, { "text-anchor": anchor }));
  }
  const line = svg("line", { y1: top, y2: bottom, stroke: inkColor(), "stroke-width": 1, opacity: 0 });
  const box = svg("rect", { fill: "none", stroke: inkColor(), "stroke-width": 1.5, opacity: 0, width: Math.max(cell, 3), height: Math.max(tall, 3) });
  chart.append(line, box);
  const point = (step, name) => {
    const found = step === null ? -1 : nearestColumn(spec.columns, step), row = spec.names.indexOf(name);
    for (const mark of [line, box]) mark.setAttribute("opacity", found < 0 ? 0 : 0.9);
    if (found < 0 || row < 0) { told.textContent = spec.summary || ""; if (row < 0) box.setAttribute("opacity", 0); return; }
    const x = left + (found + 0.5) * cell;
    line.setAttribute("x1", x); line.setAttribute("x2", x);
    box.setAttribute("x", left + found * cell); box.setAttribute("y", top + row * tall);
    const value = spec.rows[row][found];
    told.textContent = `step ${spec.columns[found]}, ${spec.rowTitle} ${name}: ` + (value === null ? "not recorded" : spec.valueText(value));
  };
  const cellAt = (event) => {
    const area = chart.getBoundingClientRect(), zoom = width / area.width;
    const x = Math.floor(((event.clientX - area.left) * zoom - left) / cell);
    const y = Math.floor(((event.clientY - area.top) * zoom - top) / tall);
    if (x < 0 || x >= count || y < 0 || y > last) return null;
    return { column: spec.columns[x], name: spec.names[y], x, y };
  };
  if (spec.tapped) for (const kind of ["pointermove", "pointerdown", "click"])
    chart.addEventListener(kind, (event) => { const found = cellAt(event); if (found) spec.tapped(found, event); });
  if (spec.left_off) chart.addEventListener("pointerleave", spec.left_off);
  place.replaceChildren(chart);
  return { chart, point };
}

function nearestColumn(columns, step) {
  let best = 0;
  columns.forEach((each, n) => { if (Math.abs(each - step) < Math.abs(columns[best] - step)) best = n; });
  return best;
}

// --- ridges and lines ----------------------------------------------------------------------------

// Histograms of several steps one below the other, on the same axes as the neighbours.
//   { scheme, label, x, frames: [{step, y}], range: [from, to], steps, top, transform, xTitle }
// steps are all rows to have (a scheme without one has a gap); top is the height of a full ridge.
function drawRidges(place, spec) {
  const width = Math.max(150, Math.floor(place.clientWidth)), left = 46, inner = width - left - 8;
  const gap = 17, tallest = 1.9 * gap, top = 22 + tallest, bottom = top + gap * (spec.steps.length - 1) + 4;
  const chart = newChart(width, bottom + 32, `${spec.label}: ${spec.xTitle} by step`);
  const { color } = schemeStyle(spec.scheme), [from, to] = spec.range;
  const at = (x) => left + (inner * (x - from)) / (to - from), height = spec.transform ?? ((y) => y);
  chart.append(chartTitle(spec.scheme, spec.label), svgText("step", left - 6, top - 13, { "text-anchor": "end", "font-size": 10 }));
  chart.append(svgText(spec.xTitle, left + inner / 2, bottom + 28, { "text-anchor": "middle" }));
  for (const tick of spec.ticks) {
    chart.append(svg("line", { x1: at(tick), x2: at(tick), y1: top - tallest, y2: bottom, stroke: lineColor() }));
    const anchor = tick === from ? "start" : tick === to ? "end" : "middle";
    chart.append(svgText(shortNumber(tick), at(tick), bottom + 14, { "text-anchor": anchor }));
  }
  spec.steps.forEach((step, n) => {
    const base = top + gap * n, frame = spec.frames.find((each) => each.step === step);
    const named = spec.steps.length < 7 || n % 2 === 0 || n === spec.steps.length - 1;
    if (named) chart.append(svgText(String(step), left - 6, base + 4, { "text-anchor": "end", "font-size": 10 }));
    if (!frame) return;
    const tall = frame.y.map((value) => base - (tallest * height(value)) / spec.top);
    const half = (spec.x[1] - spec.x[0]) / 2;
    const path = spec.x.map((x, k) => `L${at(x - half).toFixed(1)},${tall[k].toFixed(1)}L${at(x + half).toFixed(1)},${tall[k].toFixed(1)}`);
    const start = at(spec.x[0] - half).toFixed(1), end = at(spec.x[spec.x.length - 1] + half).toFixed(1);
    chart.append(svg("path", {
      d: `M${start},${base}${path.join("")}L${end},${base}Z`,
      fill: color, "fill-opacity": 0.4, stroke: color, "stroke-width": 1,
    }));
  });
  place.replaceChildren(chart);
}

// A line for each name over the same columns: the paths of shifts. { scheme, label, columns, rows,
// range, summary }; every row is a line.
function drawPaths(place, spec) {
  const width = Math.max(150, Math.floor(place.clientWidth)), left = 46, inner = width - left - 6;
  const top = 38, height = spec.height ?? 150, bottom = top + height, [low, high] = spec.range;
  const chart = newChart(width, bottom + 20, `${spec.label}. ${spec.summary || ""}`);
  const { color } = schemeStyle(spec.scheme), count = spec.columns.length;
  const x = (n) => left + (count > 1 ? (inner * n) / (count - 1) : inner / 2);
  const y = (value) => bottom - (height * (value - low)) / (high - low || 1);
  chart.append(chartTitle(spec.scheme, spec.label), svgText(spec.summary || "", 0, 28));
  for (const tick of new Set([low, 0, high].filter((each) => each >= low && each <= high))) {
    chart.append(svg("line", { x1: left, x2: left + inner, y1: y(tick), y2: y(tick), stroke: lineColor() }));
    chart.append(svgText(shortNumber(tick), left - 5, y(tick) + 4, { "text-anchor": "end", "font-size": 10 }));
  }
  for (const row of spec.rows) {
    const points = row.map((value, n) => (value === null ? null : `${x(n).toFixed(1)},${y(value).toFixed(1)}`));
    chart.append(svg("polyline", {
      points: points.filter((each) => each).join(" "), fill: "none", stroke: color, "stroke-width": 1, "stroke-opacity": 0.6,
    }));
  }
  chart.append(svgText("step " + spec.columns[0], left, bottom + 14));
  if (count > 1) chart.append(svgText(String(spec.columns[count - 1]), left + inner, bottom + 14, { "text-anchor": "end" }));
  place.replaceChildren(chart);
}

// --- small multiples, and saving -----------------------------------------------------------------

// A place for each scheme, which the legend hides and shows. Returns the places by name.
function smallMultiples(place, schemes) {
  const places = {};
  place.replaceChildren();
  for (const { name } of schemes) {
    const figure = document.createElement("figure");
    figure.dataset.scheme = name; figure.classList.toggle("off", !isShown(name));
    place.append(figure);
    places[name] = figure;
  }
  return places;
}

function chartText(chart, width, height) {
  const copy = chart.cloneNode(true);
  copy.setAttribute("xmlns", SVG_NAMESPACE); copy.setAttribute("width", width); copy.setAttribute("height", height);
  return new XMLSerializer().serializeToString(copy);
}

// All charts of a place as they lie on the page, in one SVG.
function joinCharts(place, charts) {
  const around = place.getBoundingClientRect(), width = Math.ceil(around.width), height = Math.ceil(around.height);
  const parts = charts.map((chart) => {
    const box = chart.getBoundingClientRect();
    return `<g transform="translate(${box.left - around.left},${box.top - around.top})">${chartText(chart, box.width, box.height)}</g>`;
  });
  const ground = `<rect width="100%" height="100%" fill="${paperColor()}"/>`;
  return { text: `<svg xmlns="${SVG_NAMESPACE}" width="${width}" height="${height}">${ground}${parts.join("")}</svg>`, width, height };
}

async function pngOf(text, width, height) {
  const image = new Image(), canvas = document.createElement("canvas");
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  canvas.width = 2 * width; canvas.height = 2 * height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
