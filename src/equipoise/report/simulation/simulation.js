// The page of a simulation.
function balancerTraces(lines, told) {
  return lines.map(({ name, label, steps, values }) => ({
    x: steps, y: values, name: label, mode: "lines", line: { color: schemeStyle(name).color, width: 2 },
    hovertemplate: `${label}, step %{x}<br>${told}<extra></extra>`,
  }));
}

const LEGEND = { orientation: "h", y: -0.2, yanchor: "top", x: 0 };
const logSteps = { type: "log", title: { text: "step" }, exponentformat: "none" };

run((figures) => {
  Plotly.react($("simulation-lost"), balancerTraces(figures.lost, "%{y:,.3~g} device hours"), layout({
    xaxis: { title: { text: "step" } }, yaxis: { title: { text: "device hours lost" }, rangemode: "tozero" }, legend: LEGEND,
  }), CONFIG);
  Plotly.react($("simulation-fullest"), balancerTraces(figures.excess, "%{y:.3f} above the mean"), layout({
    xaxis: logSteps, yaxis: { type: "log", title: { text: "fullest device / mean - 1" }, exponentformat: "none", dtick: 1 }, legend: LEGEND,
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: figures.chance, y1: figures.chance, line: { color: muteColor(), width: 1.5, dash: "dot" } }],
  }), CONFIG);
});
