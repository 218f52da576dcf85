// The page of a comparison or a training.
const LEGEND = { orientation: "h", y: -0.22, yanchor: "top", x: 0 };

function drawLines(id, traces, name) {
  Plotly.react(id, traces, layout({ xaxis: { title: { text: "step" } }, yaxis: { title: { text: name } }, legend: LEGEND, showlegend: true }), CONFIG);
}

// Training as a line and validation as dots of the same colour; a click in the legend takes both.
function linesAndDots(series) {
  return series.flatMap((one, n) => {
    const color = COLORS[n % COLORS.length], both = { name: one.label, legendgroup: one.label };
    const line = { ...both, x: one.training.x, y: one.training.y, mode: "lines", line: { color, width: 1.5 } };
    return [line, { ...both, x: one.x, y: one.y, mode: "markers", marker: { size: 7, color }, showlegend: !one.training.x.length }];
  });
}

function drawImbalance(series, floor) {
  const mode = floor.x.length > 1 ? "lines" : "markers";
  const chance = { x: floor.x, y: floor.y, name: "chance, validation", mode, line: { dash: "dot", width: 2, color: "#8a8f99" }, marker: { symbol: "line-ew-open", size: 12, color: "#8a8f99" } };
  drawLines("imbalance", floor.x.length ? [...linesAndDots(series), chance] : linesAndDots(series), "imbalance");
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
    slider.value = slider.max;  // the first step has no shifts yet
    slider.addEventListener("input", show);
  }
  show();
}

function drawLoads(series) {
  const scheme = $("loads-scheme"), layer = $("loads-layer");
  if (!series.length) { $("loads").textContent = "No trace was kept."; return; }
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

run((figures) => {
  drawImbalance(figures.imbalance, figures.floor);
  drawLines("loss", linesAndDots(figures.loss), "loss");
  drawFrames("scores", figures.scores, true);
  drawFrames("shifts", figures.shifts, false);
  drawLoads(figures.loads);
});
