// The page of a comparison: ten sections on one legend, one cursor and shared scales.
const LOAD_END = 3;
const NEAR_CHANCE = 4;
let openLayer = null;

const hundredths = (rows) => rows.map((row) => row.map((value) => value / 100));
const times = (value) => value.toFixed(2) + "x";
const ofTarget = (value) => times(value) + (narrow.matches ? "" : " of its target");
const shownOf = (series) => series.filter((one) => isShown(one.scheme));

// --- loads ---------------------------------------------------------------------------------------

function expertOrder(rows, order) {
  const numbers = rows.map((_, n) => n);
  if (order !== "load") return numbers;
  const sums = rows.map((row) => row.reduce((sum, value) => sum + value, 0));
  return numbers.sort((a, b) => sums[b] - sums[a]);
}

// What heatMap needs of one scheme's layer.
function loadSpec(one, layer, order, scale) {
  const all = hundredths(layer.z), numbers = expertOrder(layer.z, order), rows = numbers.map((n) => all[n]);
  const values = rows.flat(), most = values.reduce((a, b) => Math.max(a, b)), least = values.reduce((a, b) => Math.min(a, b));
  const summary = aboveScale(rows, scale) || `from ${times(least)} to ${times(most)}`;
  return {
    scheme: one.scheme, label: plain(one.label), rows, names: numbers, columns: layer.steps, scale,
    rowTitle: "expert", valueText: ofTarget, summary,
  };
}

function drawLoads(figures) {
  const layerChoice = $("loads-layer"), order = $("loads-order").value;
  if (!figures.loads.length) { $("loads").textContent = "No trace was kept."; return; }
  if (!layerChoice.options.length)
    for (const layer of figures.loads[0].layers) layerChoice.add(new Option(plain(layer.name)));
  const scale = colorScale({ low: 0, middle: 1, high: LOAD_END, unit: "x" });
  const places = smallMultiples($("loads"), figures.loads.map((one) => ({ name: one.scheme }))), maps = [];
  const pointAll = (step, name) => maps.forEach((map) => map.point(step, name));
  for (const one of figures.loads) {
    const layer = one.layers[layerChoice.selectedIndex];
    if (!layer || !layer.steps.length) { places[one.scheme].textContent = `${plain(one.label)}: not recorded`; continue; }
    const tapped = ({ column, name }) => pointAll(column, name), left_off = () => pointAll(null, null);
    maps.push(heatMap(places[one.scheme], { ...loadSpec(one, layer, order, scale), tapped, left_off }));
  }
  const every = figures.loads.flatMap((one) => hundredths(one.layers[layerChoice.selectedIndex]?.z ?? []));
  const words = aboveScale(every, scale);
  drawScaleBar($("loads-scale"), scale, words ? `One scale for all. Of all cells of this layer ${words}.` : "One scale for all; nothing is above its end.");
}

// --- lines with bands ----------------------------------------------------------------------------

// Bands below all lines, lines below markers, so that no band hides a line. The more schemes are
// shown, the fainter their bands.
function bandTraces(series, unit, digits) {
  const some = shownOf(series), strength = 0.3 / Math.max(1, some.length), hovertemplate = `%{y:.${digits}f}${unit}`;
  const bands = some.filter((one) => one.training.low.length).flatMap(({ scheme, training: { x, low, high } }) => {
    const hidden = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    return [{ ...hidden, y: low }, { ...hidden, y: high, fill: "tonexty", fillcolor: faded(schemeStyle(scheme).color, strength) }];
  });
  const lines = some.map(({ scheme, label, training: { x, y } }) => ({
    x, y, name: label, mode: "lines", line: { color: schemeStyle(scheme).color, width: 1.8 }, hovertemplate, meta: scheme,
  }));
  const markers = some.map(({ scheme, label, validation: { x, y } }) => {
    const { color, marker: symbol } = schemeStyle(scheme), border = { color: paperColor(), width: 1 };
    return { x, y, name: label + ", validation", mode: "markers", hovertemplate, meta: scheme, showlegend: false, marker: { symbol, size: 10, color, line: border } };
  });
  return [...bands, ...lines, ...markers];
}

const stepAxis = () => ({ title: { text: "step" }, unifiedhovertitle: { text: "step %{x:,d}" } });

function drawImbalance(figures) {
  const traces = bandTraces(figures.imbalance, " of target", 3), values = traces.flatMap((trace) => trace.y);
  const floors = figures.floors.map((floor) => floor.y), ink = muteColor();
  const shapes = figures.floors.map(({ y }, n) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: ink, width: 1.5, dash: n ? "dot" : "dash" },
  }));
  const annotations = figures.floors.map(({ y, label }) => ({
    xref: "paper", x: 0.005, xanchor: "left", y: Math.log10(y), yanchor: "bottom", showarrow: false,
    text: `${label}: ${shortNumber(y)}`, font: { size: 11, color: ink },
  }));
  $("floors").textContent = figures.floors.map(({ y, label }) => `${label}: ${shortNumber(y)}.`.replace(/^c/, "C")).join(" ");
  const yaxis = logAxis(values.concat(floors).filter((value) => value !== null), { title: { text: "imbalance (of target)" } });
  Plotly.react("imbalance", traces, layout({
    xaxis: stepAxis(), yaxis, showlegend: false, hovermode: "x unified", shapes, annotations,
  }), CONFIG);
}

// The axis follows lines and markers; a band of few seeds may be much wider than all of them.
function lossRange(traces) {
  const values = traces.filter((trace) => trace.hoverinfo !== "skip").flatMap((trace) => trace.y).filter((value) => value !== null);
  const reach = Math.max(...values.map(Math.abs), 1e-4) * 1.3;
  return [-reach, reach];
}

function drawLoss(figures) {
  const raw = $("raw-loss").checked || !figures.difference.length, series = raw ? figures.loss : figures.difference;
  const traces = bandTraces(series, " nats", 4), base = plain(figures.baseline || "");
  const title = raw ? "loss" : narrow.matches ? "loss difference" : `loss less that of ${figures.baseline}`;
  const zero = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: muteColor(), width: 1.5 } };
  const yaxis = { title: { text: title }, ...(raw || !traces.length ? {} : { range: lossRange(traces) }) };
  Plotly.react("loss-difference", traces, layout({
    xaxis: stepAxis(), yaxis, showlegend: false, hovermode: "x unified", shapes: raw ? [] : [zero],
  }), CONFIG);
  const banded = series.some((one) => one.training.low.length);
  const band = raw ? "Bands: from the lowest to the highest seed." : "Bands: 95% interval of the mean difference, paired by seed; where a band holds 0, no difference is known. Tap schemes in the legend to see fewer.";
  const lines = raw ? "Loss (cross entropy, nats a token)" : `Below 0 a scheme has a lower loss than ${base} on the same batches, from the same first weights (nats a token)`;
  const wide = !raw && banded && traces.some((trace) => trace.fill && trace.y.some((value) => value > yaxis.range[1]));
  $("loss-note").textContent = `${lines}. Lines: training batches, smoothed, mean over seeds. Markers: validation set. `
    + (banded ? band : "One seed: no band.") + (wide ? " Bands go beyond the axis: few seeds." : "");
}

// --- layers --------------------------------------------------------------------------------------

const violationOf = (layer) => layer.steps.map((_, n) => layer.z.reduce((most, row) => Math.max(most, row[n]), 0) / 100 - 1);

function drawViolation(figures) {
  if (!figures.loads.length) { $("violation").textContent = "No trace was kept."; return; }
  const found = figures.loads.flatMap((one) => one.layers.flatMap(violationOf));
  const scale = colorScale({ low: 0, middle: 0, high: scaleEnd(found, 0.75) });
  const places = smallMultiples($("violation"), figures.loads.map((one) => ({ name: one.scheme }))), maps = [], every = [];
  for (const one of figures.loads) {
    const layers = one.layers.filter((layer) => layer.steps.length);
    if (!layers.length) continue;
    const rows = layers.map(violationOf), names = layers.map((layer) => plain(layer.name));
    const last = rows.map((row) => row[row.length - 1]), worst = last.indexOf(Math.max(...last));
    every.push(...rows);
    const tapped = ({ column, name }, event) => {
      maps.forEach((map) => map.point(column, name));
      if (event.type === "click") { openLayer = { scheme: one.scheme, layer: name }; drawLayer(figures); showLayerInLoads(figures, name); }
    };
    maps.push(heatMap(places[one.scheme], {
      scheme: one.scheme, label: plain(one.label), rows, names, columns: layers[0].steps, scale, rowTitle: "layer", left: narrow.matches ? 50 : 62,
      rowTicks: names.length <= 8 ? names.map((_, n) => n) : undefined, height: Math.max(60, Math.min(150, 22 * names.length)),
      valueText: (value) => value.toFixed(2), tapped, left_off: () => maps.forEach((map) => map.point(null, null)),
      summary: `last step: worst ${names[worst]}, ${last[worst].toFixed(2)}`,
    }));
  }
  const words = aboveScale(every, scale);
  drawScaleBar($("violation-scale"), scale, words ? `One scale for all. Of all cells ${words}.` : "One scale for all; nothing is above its end.");
}

function showLayerInLoads(figures, name) {
  const place = figures.loads[0].layers.findIndex((layer) => plain(layer.name) === name);
  if (place >= 0 && $("loads-layer").selectedIndex !== place) { $("loads-layer").selectedIndex = place; drawLoads(figures); }
}

// The layer that was tapped; at first the worst one at the end of the scheme others are compared with.
function drawLayer(figures) {
  if (!figures.loads.length) return;
  if (!openLayer) {
    const one = figures.loads.find((each) => each.label === figures.baseline) || figures.loads[0];
    const last = one.layers.map((layer) => violationOf(layer).at(-1) ?? 0);
    openLayer = { scheme: one.scheme, layer: plain(one.layers[last.indexOf(Math.max(...last))].name) };
  }
  const one = figures.loads.find((each) => each.scheme === openLayer.scheme);
  const layer = one.layers.find((each) => plain(each.name) === openLayer.layer);
  $("layer-name").textContent = `${openLayer.layer} under ${plain(one.label)}`;
  const scale = colorScale({ low: 0, middle: 1, high: LOAD_END, unit: "x" });
  const spec = { ...loadSpec(one, layer, $("loads-order").value, scale), height: 190 };
  const map = heatMap($("layer-loads"), {
    ...spec, label: "loads", tapped: ({ column, name }) => map.point(column, name), left_off: () => map.point(null, null),
  });
  const paths = layer.shift, values = (paths || []).flat().filter((value) => value !== null);
  if (!values.some((value) => value !== 0)) {
    $("layer-paths").textContent = paths ? "This scheme has no shift." : "Paths of shifts are not in this file.";
    return;
  }
  const low = Math.min(0, ...values), high = Math.max(0, ...values);
  drawPaths($("layer-paths"), {
    scheme: one.scheme, label: "shifts, a line for each expert", columns: layer.steps, rows: paths, range: [low, high], height: 190,
    summary: `from ${shortNumber(low)} to ${shortNumber(high)}, in units of the score`,
  });
}

// --- ridges --------------------------------------------------------------------------------------

function drawAllRidges(id, ridges, words, what) {
  if (!ridges.schemes.length) { $(id).textContent = `No histograms of ${what}s.`; $(id + "-note").textContent = ""; return; }
  const half = (ridges.x[1] - ridges.x[0]) / 2, range = [ridges.x[0] - half, ridges.x.at(-1) + half];
  const height = (value) => Math.sqrt(Math.max(0, value));
  const top = Math.max(...ridges.schemes.flatMap((one) => one.frames.flatMap((frame) => frame.y.map(height))));
  const places = smallMultiples($(id), ridges.schemes.map((one) => ({ name: one.scheme })));
  for (const one of ridges.schemes)
    drawRidges(places[one.scheme], {
      scheme: one.scheme, label: plain(one.label), x: ridges.x, frames: one.frames, steps: ridges.steps, range,
      ticks: niceTicks(...range), top, transform: height, xTitle: what,
    });
  $(id + "-note").textContent = words;
}

function drawHistograms(figures) {
  const axes = "A ridge for each step, from above; all axes are shared; heights are square roots of shares, so that tails are seen. First seed, all layers together.";
  const above = figures.scores.above ? ` Up to ${shortNumber(100 * figures.scores.above)}% of a step's scores lie further right.` : "";
  drawAllRidges("scores", figures.scores, `All schemes start from the same weights, so their first ridges are alike. ${axes}${above}`, "score");
  const without = figures.schemes.filter(({ name }) => !figures.shifts.schemes.some((one) => one.scheme === name)).map(({ label }) => plain(label));
  const left = without.length ? ` Without a shift, and left out: ${without.join(", ")}.` : "";
  drawAllRidges("shifts", figures.shifts, `Every shift begins at 0. ${axes}${left}`, "shift");
}

// --- the price of balance ------------------------------------------------------------------------

function drawPrice(figures) {
  const points = shownOf(figures.price);
  if (!figures.price.length) { $("price").textContent = "No dual gaps were measured."; return; }
  const least = Math.min(...figures.price.map((point) => point.over)), limit = NEAR_CHANCE * Math.max(1, least);
  const near = points.filter((point) => point.over <= limit), far = points.filter((point) => point.over > limit);
  const traces = near.map((point) => {
    const { color, marker: symbol } = schemeStyle(point.scheme), bar = { type: "data", color, thickness: 1, width: 3 };
    return {
      x: [point.gap], y: [point.over], name: point.label, mode: "markers", cliponaxis: false, marker: { symbol, size: 12, color },
      error_x: point.gap_spread === null ? undefined : { ...bar, array: [point.gap_spread] },
      error_y: point.over_spread === null ? undefined : { ...bar, array: [point.over_spread] },
      hovertemplate: `${point.label}<br>dual gap %{x:.2f}%<br>%{y:.1f} × chance<extra></extra>`,
    };
  });
  const floor = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: muteColor(), width: 1.5, dash: "dot" } };
  const annotations = [{
    xref: "paper", x: 0.005, xanchor: "left", y: 1, yanchor: "bottom", text: "floor: what chance leaves", showarrow: false, font: { size: 11, color: muteColor() },
  }];
  const highest = Math.max(...near.map((point) => point.over + (point.over_spread || 0)), 1.5);
  const widest = Math.max(...near.map((point) => point.gap + (point.gap_spread || 0)), 0.01);
  Plotly.react("price", traces, layout({
    xaxis: { title: { text: "dual gap (%)" }, range: [-0.08 * widest, 1.14 * widest] },
    yaxis: { title: { text: "imbalance (× chance)" }, range: [0, 1.12 * highest] }, showlegend: false, shapes: [floor], annotations,
  }), CONFIG);
  const names = far.map((point) => `${plain(point.label)} (dual gap ${shortNumber(point.gap)}%, ${shortNumber(point.over)} × chance)`);
  $("price-far").textContent = names.length ? `Too uneven for this axis: ${names.join("; ")}.` : "";
}

// --- all of it -----------------------------------------------------------------------------------

function prepare(figures) {
  if (document.body.dataset.prepared) return;
  document.body.dataset.prepared = "yes";
  for (const name of ["results", "differences", "rest", "paper"])
    if ($(name) && $(name).tHead) makeSortable($(name), $(name + "-told"));
  $("loads-layer").addEventListener("change", () => drawLoads(figures));
  $("loads-order").addEventListener("change", () => { drawLoads(figures); drawLayer(figures); });
  $("raw-loss").addEventListener("change", () => drawLoss(figures));
  if (!figures.difference.length) { $("raw-loss").checked = true; $("raw-loss").disabled = true; }
}

function drawLinked(figures) {
  drawImbalance(figures); drawLoss(figures); drawPrice(figures);
}

run((figures) => {
  pageLegend($("legend"), figures.schemes, () => drawLinked(figures));
  drawLoads(figures); drawViolation(figures); drawLayer(figures);
  prepare(figures);
  drawHistograms(figures);
  drawLinked(figures);
});
