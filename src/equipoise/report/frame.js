"use strict";
// What every page does: unpacks the data and plotly, draws, and offers what was drawn. All text goes in as text, never as HTML.
const COLORS = ["#8a8f99", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#d55e00", "#7b61ff", "#2aa5c9"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const $ = (id) => document.getElementById(id);

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function layout(extra) {
  const ink = dark.matches ? "#e6e9ef" : "#1d2330", line = dark.matches ? "#333a47" : "#e3e6ec";
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12 },
    margin: { l: 48, r: 10, t: 10, b: 40 }, ...extra,
    xaxis: { ...axis, ...extra.xaxis }, yaxis: { ...axis, ...extra.yaxis },
  };
}
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
const plain = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;

function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type })); link.download = name; link.click();
  URL.revokeObjectURL(link.href);
}

function addDownloads(csv) {
  for (const place of document.querySelectorAll(".get")) {
    const name = place.dataset.of, plots = [...($(name).classList.contains("plot") ? [$(name)] : $(name).querySelectorAll(".plot"))];
    const add = (label, act) => { const button = document.createElement("button"); button.textContent = label; button.onclick = act; place.append(button, " "); };
    add("CSV", () => save(name + ".csv", csv[name], "text/csv"));
    for (const format of plots.length ? ["png", "svg"] : [])  // a table has its data only
      add(format.toUpperCase(), () => plots.forEach((plot, n) => Plotly.downloadImage(plot, { format, filename: plots.length > 1 ? `${name}-${n}` : name })));
  }
}

async function start(draw) {
  const { figures, csv } = JSON.parse(await unpack("packed-data"));
  const script = document.createElement("script");
  script.textContent = await unpack("packed-plotly");
  document.head.append(script);
  draw(figures);
  addDownloads(csv);
  dark.addEventListener("change", () => draw(figures));
  document.body.dataset.ready = "yes";
}

function run(draw) {
  start(draw).catch((error) => { $("trouble").hidden = false; $("trouble").textContent = "The figures could not be drawn: " + error; console.error(error); });
}

// For `equipoise report --figures`: every figure as SVG. A pair is a picture too; histograms show their last step, loads every scheme.
async function allPictures() {
  const part = async (plot, title = "", beside = 1) => {
    const width = Math.floor(plot.clientWidth / beside) - (beside > 1 ? 6 : 0), height = Math.floor(plot.clientHeight / beside ** 0.5);
    const url = await Plotly.toImage(plot, { format: "svg", width, height });
    return { svg: decodeURIComponent(url.slice(url.indexOf(",") + 1)), width, height, title };
  };
  const plotsOf = (place) => (place.classList.contains("plot") ? [place] : [...place.querySelectorAll(".plot")]).filter((plot) => plot.data);
  const found = [];
  for (const pair of document.querySelectorAll(".pair[id]")) found.push({ name: pair.id, title: "", parts: await Promise.all(plotsOf(pair).map((plot) => part(plot))) });
  for (const { dataset: { of: name } } of document.querySelectorAll(".get")) {
    const slider = $(name + "-slider"), choice = $(name + "-scheme"), plots = plotsOf($(name));
    if (slider) { slider.value = slider.max; slider.dispatchEvent(new Event("input")); }
    const title = slider ? `${name}, step ${$(name + "-step").textContent}` : "", parts = [];
    for (let n = 0; n < (choice ? choice.options.length : 1); n++) {
      if (choice) { choice.selectedIndex = n; choice.dispatchEvent(new Event("change")); }
      for (const plot of plots) parts.push(await part(plot, choice ? choice.options[n].text : "", choice && choice.options.length > 1 ? 2 : 1));
    }
    found.push({ name, title, parts });
  }
  return found.filter((picture) => picture.parts.length);
}
