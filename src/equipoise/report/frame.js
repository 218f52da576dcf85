"use strict";
// What every page does: unpacks data and plotly, draws, links the legend, sorts tables, and offers
// what was drawn. All text goes in as text, never as HTML.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 760px)");
const $ = (id) => document.getElementById(id);
const SCHEME_STYLES = {};
const HIDDEN_SCHEMES = new Set();

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// One colour and one marker for each scheme: results/scheme_style.py.
const schemeStyle = (name) => SCHEME_STYLES[name] || { color: "#8a8f99", marker: "circle", glyph: "●" };
const isShown = (name) => !HIDDEN_SCHEMES.has(name);
const inkColor = () => (dark.matches ? "#e6e9ef" : "#1d2330");
const muteColor = () => (dark.matches ? "#9aa4b5" : "#5d6678");
const lineColor = () => (dark.matches ? "#333a47" : "#e3e6ec");
const paperColor = () => (dark.matches ? "#14171d" : "#ffffff");

// A colour with less of itself, for bands.
const faded = (color, share) => color + Math.round(255 * share).toString(16).padStart(2, "0");

function layout(extra) {
  const line = lineColor();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const hoverlabel = { bgcolor: paperColor(), bordercolor: line, font: { color: inkColor(), size: 12 } };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: inkColor(), size: 12 },
    margin: { l: 48, r: 10, t: 10, b: 40 }, hoverlabel, ...extra,
    xaxis: { ...axis, ...extra.xaxis }, yaxis: { ...axis, ...extra.yaxis },
  };
}
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
const plain = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;

// Round numbers of a log axis whose ends are powers of ten. A span of less than a decade may hold one
// of 1, 2 and 5 or none, and an axis of one number says no scale: there the steps are even.
function logTicks([from, to], digits) {
  const inside = (value) => Math.log10(value) >= from && Math.log10(value) <= to, ticks = [];
  for (let power = Math.floor(from); power <= Math.ceil(to); power++)
    for (const digit of digits) ticks.push(Number(`${digit}e${power}`));
  return ticks.filter(inside).length > 2 ? ticks : niceTicks(10 ** from, 10 ** to, 6).filter(inside);
}

// 1, 2, 5 and their tenths: plotly's own ticks between powers of ten are bare digits.
function logAxis(values, more) {
  const some = values.filter((value) => value > 0);
  const low = Math.log10(Math.min(...some)), high = Math.log10(Math.max(...some));
  const room = 0.04 * (high - low) + 0.02, range = [low - room, high + room];
  const tickvals = logTicks(range, high - low > 2.2 ? [1] : [1, 2, 5]);
  return { type: "log", range, tickmode: "array", tickvals, ticktext: tickvals.map(String), ...more };
}

// The legend of the whole page. schemes: [{name, label}]; changed() is called after each tap.
function pageLegend(place, schemes, changed) {
  const update = () => {
    for (const button of place.querySelectorAll("button[data-name]"))
      button.setAttribute("aria-pressed", isShown(button.dataset.name));
    for (const each of document.querySelectorAll("[data-scheme]"))
      each.classList.toggle("off", !isShown(each.dataset.scheme));
    changed();
  };
  const add = (label, act) => {
    const button = document.createElement("button");
    button.type = "button"; button.append(label); button.onclick = () => { act(); update(); };
    place.append(button);
    return button;
  };
  place.replaceChildren();
  for (const { name, label } of schemes) {
    const button = add("", () => (isShown(name) ? HIDDEN_SCHEMES.add(name) : HIDDEN_SCHEMES.delete(name)));
    button.dataset.name = name;
    button.append(glyphOf(name), " " + plain(label));
    button.setAttribute("aria-pressed", isShown(name));
  }
  add("all", () => HIDDEN_SCHEMES.clear());
  add("none", () => schemes.forEach(({ name }) => HIDDEN_SCHEMES.add(name)));
}

function glyphOf(name) {
  const mark = document.createElement("i"), { color, glyph } = schemeStyle(name);
  mark.className = "glyph"; mark.style.color = color; mark.textContent = glyph;
  return mark;
}

// Headings become buttons. A cell's data-value is what it is sorted by; an empty one goes last.
// A heading's data-meaning is told in the element with the id `told`, by tap as well as by hover.
function makeSortable(table, told) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!("value" in cell.dataset)) return cell.textContent;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const compare = (a, b, sign) => {
    if (a === b) return 0;
    if (a === null || b === null) return a === null ? 1 : -1;
    return sign * (a < b ? -1 : 1);
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes); head.replaceChildren(button);
    const tell = () => {
      if (!told || !head.dataset.meaning) return;
      const name = document.createElement("b");
      name.textContent = button.textContent;
      told.replaceChildren(name, ": " + head.dataset.meaning);
    };
    button.onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      body.append(...[...body.rows].sort((one, other) => compare(value(one, column), value(other, column), sign)));
      tell();
    };
    button.onpointerenter = tell; button.onfocus = tell;
  });
}

function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type })); link.download = name; link.click();
  URL.revokeObjectURL(link.href);
}

// Plots of plotly and charts of charts.js in a place, which may be one itself.
function drawnIn(place) {
  const every = place.matches(".plot, svg.chart") ? [place] : [...place.querySelectorAll(".plot, svg.chart")];
  return every.filter((each) => (each.matches("svg") ? true : each.data) && each.getBoundingClientRect().width > 0);
}

const isLive = () => document.querySelector("#facts[data-live]") !== null;

function addDownloads(csv) {
  for (const place of document.querySelectorAll(".get")) {
    const name = place.dataset.of, figure = $(name);
    const add = (label, act) => {
      const button = document.createElement("button");
      button.textContent = label; button.onclick = act; place.append(button, " ");
    };
    if (name in csv) add("CSV", () => save(name + ".csv", csv[name], "text/csv"));
    // a table has its data only; what a live page will draw is not there yet
    if (!figure || !figure.matches(".plot, .lines, .multiples, .pair")) continue;
    if (!drawnIn(figure).length && !isLive()) continue;
    for (const format of ["png", "svg"]) add(format.toUpperCase(), () => downloadFigure(name, format));
  }
}

// A plot to be saved. The page's legend is not in it, so it gets one of its own.
function savedPlot(plot) {
  const legend = { orientation: "h", y: -0.2, yanchor: "top", x: 0, traceorder: "normal", ...plot.layout.legend };
  return { data: plot.data, layout: { ...plot.layout, showlegend: true, legend } };
}

async function downloadFigure(name, format) {
  const drawn = drawnIn($(name)), charts = drawn.filter((each) => each.matches("svg"));
  for (const [n, plot] of drawn.filter((each) => !each.matches("svg")).entries())
    await Plotly.downloadImage(savedPlot(plot), { format, filename: n ? `${name}-${n}` : name, width: plot.clientWidth, height: plot.clientHeight });
  if (!charts.length) return;
  const { text, width, height } = joinCharts($(name), charts);
  if (format === "svg") save(name + ".svg", text, "image/svg+xml");
  else save(name + ".png", await pngOf(text, width, height), "image/png");
}

// Pages of runs have none.
async function loadPlotly() {
  if (!$("packed-plotly").textContent) return;
  const script = document.createElement("script");
  script.textContent = await unpack("packed-plotly");
  document.head.append(script);
}

async function start(draw) {
  const { figures, csv, styles } = JSON.parse(await unpack("packed-data"));
  Object.assign(SCHEME_STYLES, styles);
  await loadPlotly();
  draw(figures);
  addDownloads(csv);
  const again = () => draw(figures);
  dark.addEventListener("change", again);
  onWidthChange(again);
  document.body.dataset.ready = "yes";
}

// Plotly's plots follow the width by themselves; charts are drawn anew.
function onWidthChange(again) {
  let width = window.innerWidth, waiting = null;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 150);
  });
}

function run(draw) {
  start(draw).catch((error) => {
    $("trouble").hidden = false;
    $("trouble").textContent = "The figures could not be drawn: " + error;
    console.error(error);
  });
}

// For `equipoise report --figures`: every figure as SVG, its plots in the order of the page.
async function allPictures() {
  const part = async (drawn) => {
    const box = drawn.getBoundingClientRect(), width = Math.floor(box.width), height = Math.floor(box.height);
    if (drawn.matches("svg")) return { svg: chartText(drawn, width, height), width, height, title: "" };
    const url = await Plotly.toImage(savedPlot(drawn), { format: "svg", width, height });
    return { svg: decodeURIComponent(url.slice(url.indexOf(",") + 1)), width, height, title: "" };
  };
  const found = [];
  for (const { dataset: { of: name } } of document.querySelectorAll(".get")) {
    const parts = $(name) ? await Promise.all(drawnIn($(name)).map(part)) : [];
    if (parts.length) found.push({ name, title: $(name).dataset.title || "", parts });
  }
  return found;
}
