// The page of two recordings.
const CAUSES = [["rounding", "#2a7fd4"], ["follows", "#8a8f99"], ["other", "#d9541e"], ["differ", "#2a7fd4"]];

function drawDiffer({ labels, tokens, causes }) {
  const bars = CAUSES.filter(([name]) => name in causes).map(([name, color]) => ({
    type: "bar", x: labels, y: causes[name].map((count, place) => count / Math.max(1, tokens[place])), name, customdata: causes[name],
    marker: { color }, hovertemplate: `layer %{x}, ${name}: %{y:.3p} (%{customdata:,} tokens)<extra></extra>`,
  }));
  Plotly.react($("differ"), bars, layout({
    barmode: "stack", xaxis: { type: "category", title: { text: "layer" } },
    yaxis: { tickformat: ".1~%", rangemode: "tozero", title: { text: "share of tokens" } },
    showlegend: bars.length > 1, legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0 },
  }), CONFIG);
}

function drawMargins({ bins }) {
  const chosen = $("layer").selectedIndex, some = chosen ? [bins.layers[chosen - 1]] : bins.layers;
  const sum = (key) => bins.labels.map((_, place) => some.reduce((total, layer) => total + layer[key][place], 0));
  const tokens = sum("tokens"), differ = sum("differ");
  const bars = { type: "bar", x: bins.labels, y: differ.map((count, place) => (tokens[place] ? count / tokens[place] : null)), marker: { color: "#2a7fd4" },
    text: differ.map((count, place) => `${count.toLocaleString()} of ${tokens[place].toLocaleString()}`), textposition: "outside", cliponaxis: false,
    hovertemplate: "margin %{x}: %{y:.2p} differ, %{text}<extra></extra>" };
  Plotly.react($("margins"), [bars], layout({
    margin: { l: 56, r: 10, t: 24, b: 40 }, xaxis: { type: "category", title: { text: "margin, the lower of the two" } },
    yaxis: { tickformat: ".1~%", rangemode: "tozero", title: { text: "of these, differ" } },
  }), CONFIG);
}

function prepare(figures) {
  if (document.body.dataset.prepared) return;
  document.body.dataset.prepared = "yes";
  makeSortable($("layers"));
  if (!figures.bins) return;
  for (const label of ["all together", ...figures.labels]) $("layer").add(new Option(label));
  $("layer").onchange = () => drawMargins(figures);
}

run((figures) => {
  prepare(figures);
  drawDiffer(figures);
  if (figures.bins) drawMargins(figures);
});
