// The page of a router's precision.
const PRECISION_COLORS = { bf16: "#d9541e", fp16: "#2a7fd4", fp32: "#0f9d76" };

function drawChanged({ labels, precisions, allowed, shares }) {
  const lines = precisions.flatMap((name) => [["logits", "solid"], ["bias", "dot"]]
    .filter(([part]) => shares[name][part].some((each) => each !== null))
    .map(([part, dash]) => ({
      x: labels, y: shares[name][part], name: `${name} ${part === "bias" ? "bias" : shares.what}`,
      mode: "lines+markers", line: { color: PRECISION_COLORS[name], width: 2, dash },
      marker: { size: 7, symbol: part === "bias" ? "circle-open" : "circle" },
      hovertemplate: `layer %{x}, ${name} ${part}: %{y:.3p}<extra></extra>`,
    })));
  Plotly.react($("changed"), lines, layout({
    xaxis: { type: "category", title: { text: "layer" } },
    yaxis: { tickformat: ".1~%", rangemode: "tozero", title: { text: "share of tokens" } },
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0 }, showlegend: true,
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: allowed, y1: allowed, line: { color: muteColor(), width: 1.5, dash: "longdash" } }],
  }), CONFIG);
}

// The bins of one layer, or of all layers together.
function binsOf({ layers, precisions }, chosen) {
  const some = chosen ? [layers[chosen - 1]] : layers;
  const add = (lists) => lists.reduce((sum, list) => sum.map((each, place) => each + list[place]));
  const middle = (values) => [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)];
  const changed = {}, whole = {}, ulps = {};
  for (const name of precisions) {
    changed[name] = add(some.map((layer) => layer.changed[name]));
    whole[name] = add(some.map((layer) => layer.whole[name]));
    ulps[name] = middle(some.map((layer) => layer.ulps[name]));
  }
  return { margins: add(some.map((layer) => layer.margins)), changed, whole, ulps };
}

function drawMargins(figures) {
  const { octaves, precisions, computed } = figures, { margins, changed, whole, ulps } = binsOf(figures, $("layer").selectedIndex);
  const total = margins.reduce((sum, each) => sum + each), used = margins.flatMap((each, place) => (each ? [octaves[place]] : []));
  const lowest = Math.min(...used, ...Object.values(ulps).map(Math.log2)), highest = Math.max(...used, ...Object.values(ulps).map(Math.log2)) + 1;
  const ticks = []; for (let power = Math.ceil(lowest * Math.log10(2)); power <= highest * Math.log10(2); power++) ticks.push(power);
  const xaxis = {
    range: [lowest - 0.6, highest + 0.6], tickvals: ticks.map((power) => power / Math.log10(2)), ticktext: ticks.map((power) => `1e${power}`),
  };
  const middles = octaves.map((octave) => octave + 0.5);
  const bars = { type: "bar", name: "tokens", x: middles, y: margins.map((each) => each / total), width: 0.9, marker: { color: faded("#8a8f99", 0.7) }, customdata: margins,
    text: octaves.map((octave) => (2 ** octave).toPrecision(2)), textposition: "none", hovertemplate: "margin from %{text}: %{y:.2p} of tokens (%{customdata:,})<extra></extra>" };
  const lines = precisions.map((name) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: Math.log2(ulps[name]), x1: Math.log2(ulps[name]), line: { color: PRECISION_COLORS[name], width: 2, dash: "dash" } }));
  const annotations = precisions.map((name) => ({ x: Math.log2(ulps[name]), y: 1, yref: "paper", yanchor: "bottom", text: narrow.matches ? name : `ulp of ${name}`, showarrow: false, font: { color: PRECISION_COLORS[name] } }));
  const margin = { l: 56, r: 10, t: 24, b: 40 };
  Plotly.react($("histogram"), [bars], layout({ margin, xaxis: { ...xaxis, title: { text: "margin" } }, yaxis: { tickformat: ".0%", title: { text: "share of tokens" } }, shapes: lines, annotations }), CONFIG);
  $("flips").parentElement.hidden = !computed;
  if (!computed) return;
  // a share of few tokens says nothing
  const shareOf = (counts) => margins.map((each, place) => (each >= 10 ? counts[place] / each : null));
  const flips = precisions.flatMap((name) => [[changed, "solid", ""], [whole, "dot", ", whole"]].map(([counts, dash, words]) => ({
    x: middles, y: shareOf(counts[name]), name: name + words, mode: "lines+markers", connectgaps: true, marker: { size: 5 },
    line: { color: PRECISION_COLORS[name], width: 2, dash }, hovertemplate: `${name}${words}: %{y:.2p} of these change<extra></extra>`,
  })));
  Plotly.react($("flips"), flips, layout({ margin, xaxis: { ...xaxis, title: { text: "margin" } }, yaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "of these, change" } },
    shapes: lines, showlegend: true, legend: { orientation: "h", y: -0.42, yanchor: "top", x: 0 } }), CONFIG);
}

run((figures) => {
  const choice = $("layer");
  if (!choice.options.length) {
    for (const label of ["all together", ...figures.labels]) choice.add(new Option(label));
    choice.onchange = () => drawMargins(figures);
    makeSortable($("shares"));
  }
  drawChanged(figures);
  drawMargins(figures);
});
