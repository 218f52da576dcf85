// The page of a sweep.
function drawByRate(id, series, name) {
  if (!series.length) { $(id).textContent = "No scheme of this sweep has a u."; return; }
  const rates = series.flatMap((one) => one.x).filter((rate) => rate !== null);
  const ends = [Math.min(...rates), Math.max(...rates)];
  const traces = series.map((one) => {
    const { color, marker: symbol } = schemeStyle(one.scheme), level = one.x[0] === null;
    const spread = one.spread.some((value) => value !== null);
    return {
      x: level ? ends : one.x, y: level ? [one.y[0], one.y[0]] : one.y, name: one.label,
      text: level ? [one.setting[0], one.setting[0]] : one.setting,
      mode: level ? "lines" : "lines+markers", marker: { size: 7, symbol, color },
      line: { color, width: 2, dash: level ? "dash" : "solid" },
      error_y: spread && !level ? { type: "data", array: one.spread, color, thickness: 1 } : undefined,
      hovertemplate: "%{y}<br>%{text}<extra></extra>",
    };
  });
  const xaxis = { title: { text: "u" }, type: ends[0] > 0 ? "log" : "linear", exponentformat: "power", dtick: ends[0] > 0 ? 1 : undefined };
  const legend = { orientation: "h", y: -0.22, yanchor: "top", x: 0 };
  Plotly.react(id, traces, layout({ xaxis, yaxis: { title: { text: name } }, legend, showlegend: true }), CONFIG);
}

run((figures) => {
  drawByRate("loss_by_rate", figures.loss_by_rate, "validation loss");
  drawByRate("imbalance_by_rate", figures.imbalance_by_rate, "imbalance");
});
