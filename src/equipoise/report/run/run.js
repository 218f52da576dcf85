// A run, or several beside each other, as they are now: from the data in the page, or pushed by
// `equipoise watch`. Text that somebody named goes in as text, never as HTML.
const STATE = { runs: [], tables: new Map(), note: "", layer: 0 };
const CURVE = { step: 0, low: 1, high: 2, imbalance: 3, loss: 4, idle: 5, layers: 6 };
const keyOf = (n) => "run-" + n;
const rowsOf = (n, table) => STATE.tables.get(n + " " + table) || [];
const column = (rows, cell) => rows.map((row) => row[cell] ?? null);

function applyMessage({ runs, tables, note }) {
  STATE.runs = runs; STATE.note = note;
  for (const { run, table, keep, rows } of tables) {
    const held = rowsOf(run, table).slice(0, keep);
    STATE.tables.set(run + " " + table, held.concat(rows));
  }
  runs.forEach((each, n) => { SCHEME_STYLES[keyOf(n)] = each.style; });
}

function element(tag, words, name) {
  const made = document.createElement(tag);
  if (words !== undefined) made.textContent = words;
  if (name) made.className = name;
  return made;
}

// --- the words on top ----------------------------------------------------------------------------

function drawWords() {
  const { runs, note } = STATE, alone = runs.length === 1;
  const count = (state) => runs.filter((run) => run.state === state).length;
  const states = ["running", "finished", "stopped", "failed", "waiting", "deleted"].filter(count);
  document.querySelector(".answer").textContent = alone
    ? runs[0].sentence
    : `${runs.length} runs: ${states.map((state) => `${count(state)} ${state}`).join(", ")}.${spreadOf(runs)}`;
  $("facts").replaceChildren(...(alone ? [chipsOf(runs[0]), tilesOf(runs[0])] : [overview(runs)]));
  const remarks = runs.flatMap((run) => [...run.troubles, ...(run.error ? [run.error] : [])].map((each) => `${run.name}: ${each}`));
  if (note) remarks.push(note);
  $("remarks").hidden = !remarks.length; $("remarks").textContent = remarks.join(" · ");
}

// A range and no winner: runs differ by chance, too.
function spreadOf(runs) {
  const known = runs.filter((run) => run.times !== null).sort((one, other) => one.times - other.times);
  if (known.length < 2) return "";
  const [least, most] = [known[0], known.at(-1)];
  return ` Their imbalance is ${shortNumber(least.times)} (${least.name}) to ${shortNumber(most.times)} times (${most.name}) what chance leaves.`;
}

function chipsOf(run) {
  const list = element("ul", undefined, "chips");
  for (const [name, value] of run.chips) {
    const chip = element("li");
    chip.append(element("span", name), " " + value);
    list.append(chip);
  }
  if (run.command) list.append(element("li", run.command, "code"));
  return list;
}

function tilesOf(run) {
  const row = element("div", undefined, "tiles");
  for (const [name, value, body] of run.tiles) {
    const tile = element("section", undefined, "tile");
    tile.append(element("h2", name), element("strong", value), element("p", body));
    row.append(tile);
  }
  return row;
}

function overview(runs) {
  const wide = element("div", undefined, "wide"), table = element("table");
  table.id = "overview";
  const head = table.createTHead().insertRow(), body = table.createTBody();
  for (const name of ["run", "state", "imbalance over chance", "worst layer", "idle device time", "loss"]) head.append(element("th", name));
  runs.forEach((run, n) => {
    const row = body.insertRow(), first = element("td");
    first.append(glyphOf(keyOf(n)), " " + run.label);
    row.append(first, element("td", run.state));
    for (const [, value, about] of run.tiles) {
      const cell = element("td", value);
      cell.append(element("small", about));
      row.append(cell);
    }
  });
  wide.append(table);
  return wide;
}

// Small maps on a phone have no room for more than a run's name; the table above has the rest.
const shownName = (run) => (narrow.matches && STATE.runs.length > 1 ? run.name : run.label);

// --- controls ------------------------------------------------------------------------------------

function drawControls() {
  const layers = STATE.runs.reduce((most, run) => (run.layers.length > most.length ? run.layers : most), []);
  const select = $("layer"), names = layers.join("\n");
  if (select.dataset.names !== names) {
    select.dataset.names = names;
    select.replaceChildren(...layers.map((name, n) => { const option = element("option", name); option.value = n; return option; }));
  }
  STATE.layer = Math.min(STATE.layer, Math.max(0, layers.length - 1));
  select.value = STATE.layer;
  $("shifts-layer").textContent = layers[STATE.layer] ?? "";
  const legend = $("legend");
  legend.hidden = STATE.runs.length < 2;
  const labels = STATE.runs.map((run) => run.label).join("\n");
  if (!legend.hidden && legend.dataset.labels !== labels) {
    legend.dataset.labels = labels;
    pageLegend(legend, STATE.runs.map((run, n) => ({ name: keyOf(n), label: escapeText(run.label) })), drawFigures);
  }
}

// pageLegend reads a label as HTML text
const escapeText = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function chooseLayer(index) {
  if (index === STATE.layer || index < 0) return;
  STATE.layer = index;
  if (STATE.subscribe) STATE.subscribe();
  drawAll();
}

// --- heat maps -----------------------------------------------------------------------------------

const LOAD_SCALE = { low: 0, middle: 1, high: 3, unit: "×" };

// From 0 to where nearly all values lie: violations of a hundredth and of ten both have to be seen.
function layerScale(wanted) {
  const values = wanted.flatMap((n) => rowsOf(n, "curve").flatMap((row) => row.slice(CURVE.layers))).filter((value) => value !== null);
  const high = scaleEnd(values, 0.97);
  return colorScale({ low: -high, middle: 0, high, unit: "" });
}

function placesFor(id, wanted) {
  const place = $(id), key = wanted.join(" ");
  place.classList.toggle("alone", wanted.length === 1);
  if (place.dataset.key !== key || place.children.length !== wanted.length) {
    place.dataset.key = key;
    smallMultiples(place, wanted.map((n) => ({ name: keyOf(n) })));
  }
  wanted.forEach((n, at) => place.children[at].classList.toggle("off", !isShown(keyOf(n))));
  return Object.fromEntries(wanted.map((n, at) => [n, place.children[at]]));
}

const visible = (place) => place.clientWidth > 0;
const withRows = (table) => STATE.runs.map((_, n) => n).filter((n) => rowsOf(n, table).length);

function drawLoads() {
  const table = "loads:" + STATE.layer, wanted = withRows(table), maps = [];
  $("loads-part").hidden = !wanted.length;
  if (!wanted.length) return;
  const scale = colorScale(LOAD_SCALE), places = placesFor("loads", wanted);
  drawScaleBar($("loads-bar"), scale, "Load over target load: 1× is even.");
  for (const n of wanted.filter((each) => visible(places[each]))) {
    const rows = rowsOf(n, table), experts = expertOrder(rows), columns = column(rows, 0);
    const cells = experts.map((expert) => rows.map((row) => (row[expert + 1] ?? null) === null ? null : row[expert + 1] / 100));
    const map = heatMap(places[n], {
      scheme: keyOf(n), label: shownName(STATE.runs[n]), rows: cells, names: experts.map(String), columns, scale,
      height: STATE.runs.length === 1 ? Math.max(160, Math.min(420, 9 * experts.length)) : 150,
      foot: MARK_ROOM, rowTitle: "expert", valueText: (value) => `${value.toFixed(2)}× its target`, summary: aboveScale(cells, scale),
      tapped: ({ column: step, name }) => maps.forEach((each) => each.point(step, name)),
      left_off: () => maps.forEach((each) => each.point(null)),
    });
    markWhole(map.chart, rowsOf(n, "whole"), columns);
    maps.push(map);
  }
  drawRecorded(wanted);
}

function expertOrder(rows) {
  const experts = [...Array(rows[0].length - 1).keys()], last = rows[rows.length - 1];
  const mean = (expert) => rows.reduce((sum, row) => sum + (row[expert + 1] || 0), 0);
  if ($("order").value === "latest") experts.sort((a, b) => last[b + 1] - last[a + 1]);
  if ($("order").value === "mean") experts.sort((a, b) => mean(b) - mean(a));
  return experts;
}

const MARK_ROOM = 9;

// Triangles below the map at the steps whose whole batches were kept.
function markWhole(chart, whole, columns) {
  const [, , width, height] = chart.getAttribute("viewBox").split(" ").map(Number);
  const left = 30, cell = (width - left - 2) / columns.length, y = height - 19 - MARK_ROOM;
  const half = Math.max(1, Math.min(4, (0.4 * (width - left)) / whole.length));
  for (const [step] of whole) {
    const x = left + (nearestColumn(columns, step) + 0.5) * cell;
    chart.append(svg("path", { class: "whole", d: `M${x - half},${y + 7}L${x + half},${y + 7}L${x},${y}Z`, fill: inkColor() }));
  }
}

// "1 to 60", "10, 20, 30", or how many between the first and the last.
function stepsInWords(steps) {
  const first = steps[0], last = steps.at(-1);
  if (steps.length > 2 && last - first === steps.length - 1) return `each of steps ${first} to ${last}`;
  if (steps.length === 1) return `step ${first}`;
  return steps.length <= 8 ? `steps ${steps.join(", ")}` : `steps ${first} to ${last}`;
}

// Runs that were recorded alike share a sentence.
function drawRecorded(wanted) {
  const names = new Map();
  for (const n of wanted) {
    const { sampled, label } = STATE.runs[n], whole = column(rowsOf(n, "whole"), 0), parts = [];
    if (whole.length) parts.push(`▲ ${whole.length} ${whole.length === 1 ? "batch was" : "batches were"} kept whole (${stepsInWords(whole)})`);
    parts.push(sampled ? `records have the scores of up to ${sampled} tokens` : "records have no scores of sampled tokens");
    const words = parts.join("; ") + ".";
    names.set(words, [...(names.get(words) || []), label]);
  }
  const several = STATE.runs.length > 1, one = names.size === 1;
  $("recorded").textContent = [...names].map(([words, labels]) => (several ? `${one ? "Every run" : labels.join("; ")}: ` : "") + words).join(" ");
}

// As they are named where there is room, else what is left without their common beginning and end.
function shortLayers(layers) {
  if (layers.every((name) => name.length <= 9)) return layers;
  const common = (words) => words.reduce((a, b) => { let n = 0; while (n < Math.min(a.length, b.length) && a[n] === b[n]) n++; return a.slice(0, n); });
  const parts = layers.map((name) => name.split(".")), from = common(parts).length, to = common(parts.map((each) => each.slice().reverse())).length;
  const short = parts.map((each) => each.slice(from, each.length - to).join("."));
  const clear = new Set(short).size === short.length && short.every((name) => name && name.length <= 9);
  return clear ? short : layers.map((_, n) => String(n));
}

function drawLayers() {
  const wanted = withRows("curve").filter((n) => STATE.runs[n].layers.length);
  $("layers-part").hidden = !wanted.length;
  if (!wanted.length) return;
  const scale = layerScale(wanted), places = placesFor("layers", wanted), maps = [];
  drawScaleBar($("layers-bar"), { ...scale, low: 0, middle: 0 });
  for (const n of wanted.filter((each) => visible(places[each]))) {
    const rows = rowsOf(n, "curve"), { layers } = STATE.runs[n], label = shownName(STATE.runs[n]);
    const cells = layers.map((_, layer) => rows.map((row) => row[CURVE.layers + layer] ?? null));
    const names = shortLayers(layers), few = names.length <= 8, widest = names.reduce((most, name) => Math.max(most, name.length), 0);
    maps.push(heatMap(places[n], {
      scheme: keyOf(n), label, rows: cells, names, columns: column(rows, 0), scale,
      height: Math.max(40, Math.min(360, 16 * layers.length)), rowTitle: "layer",
      left: Math.max(30, 10 + 7 * widest), rowTicks: few ? names.map((_, layer) => layer) : undefined,
      valueText: (value) => `max violation ${value.toFixed(3)}`, summary: aboveScale(cells, scale),
      tapped: ({ column: step, name }, event) => {
        maps.forEach((each) => each.point(step, name));
        if (event.type === "click") chooseLayer(names.indexOf(name));
      },
      left_off: () => maps.forEach((each) => each.point(null)),
    }));
  }
}

function drawShifts() {
  const table = "shifts:" + STATE.layer, wanted = withRows(table);
  $("shifts-part").hidden = !wanted.length;
  if (!wanted.length) return;
  const places = placesFor("shifts", wanted), values = wanted.flatMap((n) => rowsOf(n, table).flatMap((row) => row.slice(1)));
  const low = values.reduce((a, b) => Math.min(a, b ?? a), 0), high = values.reduce((a, b) => Math.max(a, b ?? a), 0);
  for (const n of wanted.filter((each) => visible(places[each]))) {
    const rows = rowsOf(n, table), experts = rows[0].length - 1;
    drawPaths(places[n], {
      scheme: keyOf(n), label: shownName(STATE.runs[n]), columns: column(rows, 0), range: [low, high === low ? low + 1e-3 : high],
      rows: [...Array(experts).keys()].map((expert) => column(rows, expert + 1)), height: STATE.runs.length === 1 ? 240 : 150,
    });
  }
}

// --- lines ---------------------------------------------------------------------------------------

const DOTTED = "2 4", DASHED = "7 5";

function drawImbalance() {
  const series = [], floors = [], alone = STATE.runs.length === 1;
  for (const [n, run] of STATE.runs.entries()) {
    const rows = rowsOf(n, "curve"), checks = rowsOf(n, "validation");
    if (!isShown(keyOf(n)) || !(rows.length || checks.length)) continue;
    const common = { label: shownName(run), color: run.style.color, glyph: run.style.glyph };
    series.push({ ...common, words: "training", x: column(rows, CURVE.step), y: column(rows, CURVE.imbalance), low: column(rows, CURVE.low), high: column(rows, CURVE.high) });
    series.push({ ...common, words: "validation", marks: true, x: column(checks, 0), y: column(checks, 2) });
    const floor = column(checks, 3).filter((each) => each).pop();
    for (const [y, dash, words] of [[floor, DOTTED, "chance, validation set"], [run.chance, DASHED, "chance, a training batch"]])
      if (y) floors.push({ y, dash, color: alone ? muteColor() : run.style.color, label: alone ? words : "", words });
  }
  drawLines("imbalance", { series, floors: fewFloors(floors), log: true, label: "imbalance by step", yTitle: "imbalance (of target)", unit: "imbalance of target", digits: 4 });
}

// A line for each of many runs would be a fence: the least and the greatest are drawn.
function fewFloors(floors) {
  if (STATE.runs.length <= 3) return floors;
  return [...new Set(floors.map(({ words }) => words))].flatMap((words) => {
    const some = floors.filter((each) => each.words === words).sort((a, b) => a.y - b.y), [least, most] = [some[0], some.at(-1)];
    const common = { dash: least.dash, color: muteColor() };
    if (most.y < 1.05 * least.y) return [{ ...common, y: least.y, label: words }];
    return [{ ...common, y: least.y, label: words + ", least of the runs" }, { ...common, y: most.y, label: "greatest of the runs" }];
  });
}

function drawLoss() {
  const series = [];
  for (const [n, run] of STATE.runs.entries()) {
    const rows = rowsOf(n, "curve"), checks = rowsOf(n, "validation"), loss = column(rows, CURVE.loss);
    if (!isShown(keyOf(n))) continue;
    const common = { label: shownName(run), color: run.style.color, glyph: run.style.glyph };
    if (loss.some((value) => value !== null)) series.push({ ...common, words: "training", x: column(rows, CURVE.step), y: loss });
    series.push({ ...common, words: "validation", marks: true, x: column(checks, 0), y: column(checks, 1) });
  }
  drawLines("loss", { series, floors: [], label: "loss by step", yTitle: "loss (nats a token)", unit: "nats a token", digits: 4 });
}

// A section without a figure is not there, unless the legend hides all its runs.
function drawLines(id, spec) {
  const drawable = (value) => value !== null && (!spec.log || value > 0);
  const some = spec.series.some((one) => one.y.some(drawable)), hiding = STATE.runs.some((_, n) => !isShown(keyOf(n)));
  $(id + "-part").hidden = !some && !hiding;
  if (some) lineChart($(id), spec);
  else $(id).replaceChildren();
}

// --- verdicts ------------------------------------------------------------------------------------

function drawVerdicts() {
  const with_some = STATE.runs.filter((run) => run.verdicts.length), place = $("verdicts");
  $("verdicts-part").hidden = !with_some.length;
  const key = JSON.stringify(with_some.map((run) => run.verdicts));
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...with_some.flatMap((run) => {
    // an assumption that fails refutes nothing
    const stated = run.verdicts.filter((each) => !each.name.startsWith("assumption: "));
    const applied = stated.filter((each) => each.applies), held = applied.filter((each) => each.holds);
    const title = `${held.length} hold, ${applied.length - held.length} do not, ${stated.length - applied.length} do not apply`;
    const lines = [...applied, ...run.verdicts.filter((each) => !stated.includes(each) && each.applies)].map((each) => {
      const unfold = element("details");
      unfold.append(element("summary", `${each.holds ? "✓" : "✗"} ${each.name}`));
      unfold.append(element("p", `margin ${each.margin === null ? "not finite" : Number(each.margin).toPrecision(3)}. ${each.why}`, "note"));
      return unfold;
    });
    lines.push(...reasonsOf(run.verdicts.filter((each) => !each.applies)));
    return [element("h3", STATE.runs.length > 1 ? `${run.label}: ${title}` : title), ...lines];
  }));
}

// What does not apply, by reason: the most frequent one first.
function reasonsOf(verdicts) {
  const names = new Map();
  // reasons that differ in a number only are one
  for (const each of verdicts) {
    const key = each.why.replace(/[-+]?\d[\d.e+-]*/g, "0");
    if (!names.has(key)) names.set(key, { why: each.why, some: [] });
    names.get(key).some.push(each.name);
  }
  if (!names.size) return [];
  const list = element("ul", undefined, "reasons");
  for (const { why, some } of [...names.values()].sort((one, other) => other.some.length - one.some.length)) {
    const item = element("li"), head = element("b", String(some.length));
    item.append(head, `: ${why}`, element("br"), element("span", some.join("; "), "mute"));
    list.append(item);
  }
  return [element("h4", "Do not apply, by reason"), list];
}

// --- all of it -----------------------------------------------------------------------------------

function drawFigures() {
  drawLoads(); drawImbalance(); drawLoss(); drawLayers(); drawShifts();
}

function drawAll() {
  if (!STATE.runs.length) return;
  drawWords(); drawControls(); drawFigures(); drawVerdicts();
}

// Messages may come faster than they can be drawn: what waits is drawn once.
let waiting = false;
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawAll(); document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1); });
}

function follow() {
  let source = null;
  const tell = (words) => { $("connection").hidden = !words; $("connection").textContent = words; };
  STATE.subscribe = () => {
    if (source) source.close();
    source = new EventSource("events?layer=" + STATE.layer);
    let first = true;
    source.onmessage = (event) => {
      // a connection begins with everything
      if (first) STATE.tables.clear();
      first = false;
      tell("");
      applyMessage(JSON.parse(event.data));
      drawSoon();
    };
    source.onerror = () => {
      first = true;
      tell(source.readyState === EventSource.CLOSED
        ? "The server refused the connection: open the address that `equipoise watch` printed."
        : "The connection is lost: the page follows again when the server is back.");
    };
  };
  STATE.subscribe();
}

$("layer").addEventListener("change", (event) => chooseLayer(Number(event.target.value)));
$("order").addEventListener("change", drawLoads);
if (document.querySelector("#facts[data-live]")) follow();
run((figures) => {
  if (figures.message && !STATE.runs.length) applyMessage(figures.message);
  drawAll();
});
