"use strict";
// Unpacks the data and plotly, then draws. All text goes in as text, never as HTML.
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

function drawLines(id, series, name) {
  const traces = series.map((one, n) => ({
    x: one.x, y: one.y, name: one.label, mode: "lines+markers", marker: { size: 5 },
    line: { color: COLORS[n % COLORS.length], width: 2 },
  }));
  const legend = { orientation: "h", y: -0.22, yanchor: "top", x: 0 };
  Plotly.react(id, traces, layout({ xaxis: { title: { text: "step" } }, yaxis: { title: { text: name } }, legend, showlegend: true }), CONFIG);
}

function drawFrames(id, series, log) {
  const slider = $(id + "-slider"), grid = $(id);
  if (!series.length) { grid.textContent = "No histograms were kept: train with --histogram-steps."; slider.disabled = true; return; }
  slider.max = Math.max(...series.map((one) => one.frames.length)) - 1;
  const show = () => {
    const at = Number(slider.value);
    $(id + "-step").textContent = series[0].frames[Math.min(at, series[0].frames.length - 1)].step;
    series.forEach((one, n) => {
      const frame = one.frames[Math.min(at, one.frames.length - 1)];
      const top = Math.max(...one.frames.flatMap((each) => each.y));
      const range = log ? [-5, 0.1] : [0, top * 1.05];
      const bars = [{ type: "bar", x: one.x, y: frame.y, marker: { color: COLORS[n % COLORS.length] }, hovertemplate: "%{x:.4f}: %{y:.4f}<extra></extra>" }];
      const extra = { bargap: 0, margin: { l: 40, r: 6, t: 26, b: 26 }, title: { text: one.label, font: { size: 13 }, x: 0.02, y: 0.97, yanchor: "top" } };
      const width = one.x[1] - one.x[0];
      const xaxis = { range: [one.x[0] - width / 2, one.x[one.x.length - 1] + width / 2], nticks: 4, tickangle: 0 };
      const yaxis = log ? { type: "log", range, dtick: 2, exponentformat: "power" } : { range, nticks: 4 };
      Plotly.react(grid.children[n].firstChild, bars, layout({ ...extra, xaxis, yaxis, showlegend: false }), CONFIG);
    });
  };
  if (!grid.children.length) {
    for (const _ of series) {
      const figure = document.createElement("figure"), plot = document.createElement("div");
      plot.className = "plot"; figure.append(plot); grid.append(figure);
    }
    slider.addEventListener("input", show);
  }
  show();
}

function drawLoads(series) {
  const scheme = $("loads-scheme"), layer = $("loads-layer");
  if (!series.length) { $("loads").textContent = "No trace was kept."; return; }
  const plain = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
  const show = () => {
    const one = series[scheme.selectedIndex].layers[layer.selectedIndex];
    const z = one.z.map((row) => row.map((value) => value / 100));
    const blank = dark.matches ? "#14171d" : "#f4f5f7";
    const colorscale = [[0, "#2166ac"], [1 / 3, blank], [1, "#c8442e"]];
    Plotly.react("loads", [{ type: "heatmap", x: one.steps, z, zmin: 0, zmax: 3, colorscale, colorbar: { thickness: 12 },
      hovertemplate: "step %{x}, expert %{y}: %{z}<extra></extra>" }],
    layout({ xaxis: { title: { text: "step" } }, yaxis: { title: { text: "expert" } } }), CONFIG);
  };
  if (!scheme.options.length) {
    for (const one of series) scheme.add(new Option(plain(one.label)));
    for (const one of series[0].layers) layer.add(new Option(plain(one.name)));
    scheme.addEventListener("change", show); layer.addEventListener("change", show);
  }
  show();
}

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
    for (const format of ["png", "svg"])
      add(format.toUpperCase(), () => plots.forEach((plot, n) => Plotly.downloadImage(plot, { format, filename: plots.length > 1 ? `${name}-${n}` : name })));
  }
}

async function main() {
  const { figures, csv } = JSON.parse(await unpack("packed-data"));
  const script = document.createElement("script");
  script.textContent = await unpack("packed-plotly");
  document.head.append(script);
  const draw = () => {
    drawLines("imbalance", figures.imbalance, "imbalance");
    drawLines("loss", figures.loss, "loss");
    drawFrames("scores", figures.scores, true);
    drawFrames("shifts", figures.shifts, false);
    drawLoads(figures.loads);
  };
  draw();
  addDownloads(csv);
  dark.addEventListener("change", draw);
  document.body.dataset.ready = "yes";
}

main().catch((error) => { $("trouble").hidden = false; $("trouble").textContent = "The figures could not be drawn: " + error; console.error(error); });
