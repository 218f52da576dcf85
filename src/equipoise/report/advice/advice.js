// The page of an advice.
function ruleTraces({ name, curve, advised, usual }) {
  const { color, marker: symbol } = schemeStyle(name);
  const told = `${name} at %{x:.2g}<br>imbalance %{y:.4f}<extra></extra>`;
  const point = ([rate, level], fill) => ({
    x: [rate], y: [level], mode: "markers", showlegend: false, hovertemplate: told,
    marker: { symbol: fill ? symbol : `${symbol}-open`, size: 14, color, line: { width: 2, color } },
  });
  return [
    { x: curve.map(([x]) => x), y: curve.map(([, y]) => y), name, mode: "lines", line: { color, width: 2 }, hovertemplate: told },
    point(advised, true), point(usual, false),
  ];
}

run((figures) => {
  const levels = figures.rules.flatMap(({ curve }) => curve.map(([, y]) => y)).concat(figures.floor);
  Plotly.react($("advice-rates"), figures.rules.flatMap(ruleTraces), layout({
    xaxis: { type: "log", title: { text: "update rate" }, exponentformat: "power" },
    yaxis: { type: "log", title: { text: "imbalance (of target)" }, range: [Math.log10(figures.floor * 0.8), Math.log10(Math.max(...levels) * 1.1)] },
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0 },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: figures.floor, y1: figures.floor, line: { color: muteColor(), width: 1.5, dash: "dot" } }],
  }), CONFIG);
});
