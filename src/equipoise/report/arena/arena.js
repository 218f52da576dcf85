// The page of an arena.
const LEGEND = { orientation: "h", y: -0.2, yanchor: "top", x: 0 };
const NEAR_FLOOR = 5;
// rates of one balancer have its colour
const RATE_DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const atRate = (cell) => (cell.rate === null ? "" : " " + cell.rate);

// An imbalance of 0 has no place on a logarithmic axis: it is drawn far left of, or below, the floor.
const shown = (value, floor) => Math.max(value, (floor || 1e-3) / 10);

function vertical(x, text, place, ink) {
  return {
    shape: { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: ink, width: 1.5, dash: "dot" } },
    annotation: { x: Math.log10(x), xanchor: place, yref: "paper", y: 1, yanchor: "bottom", text, showarrow: false, font: { size: 11 } },
  };
}

// Cells so uneven that they would squeeze all others into a corner are named below the figure.
function splitByEvenness(stream, everything) {
  const least = Math.min(...stream.cells.map((cell) => shown(cell.x, stream.floor)));
  const limit = NEAR_FLOOR * Math.max(stream.floor || 0, least);
  const near = stream.cells.filter((cell) => everything || shown(cell.x, stream.floor) <= limit);
  return { limit, near, far: stream.cells.filter((cell) => !near.includes(cell)) };
}

function nameFarCells(far, limit, balancers) {
  const names = far.map((cell) => `${plain(balancers[cell.balancer])}${atRate(cell)} (imbalance ${cell.x}, affinity ${cell.y})`);
  $("far-cells").textContent = far.length
    ? `Not drawn, since less even than ${shortNumber(limit)}, that is ${NEAR_FLOOR} times the floor or the most even cell: ${names.join("; ")}.`
    : "";
}

function drawFrontier(stream, balancers, everything) {
  const ink = muteColor(), { limit, near, far } = splitByEvenness(stream, everything);
  nameFarCells(far, limit, balancers);
  const traces = [{
    x: stream.frontier.map(([x]) => shown(x, stream.floor)), y: stream.frontier.map(([, y]) => y), name: "frontier", mode: "lines",
    line: { shape: "hv", color: ink, width: 5 }, opacity: 0.35, hoverinfo: "skip",
  }];
  balancers.forEach((name, n) => {
    const cells = near.filter((cell) => cell.balancer === n).sort((one, other) => one.rate - other.rate);
    if (!cells.length) return;
    const { color, marker: symbol } = schemeStyle(plain(name));
    traces.push({
      x: cells.map((cell) => shown(cell.x, stream.floor)), y: cells.map((cell) => cell.y), name, mode: "lines+markers",
      line: { color, width: 1.5 }, marker: { symbol, size: 10, color },
      customdata: cells.map((cell) => [cell.x, atRate(cell)]),
      hovertemplate: `${name}%{customdata[1]}<br>imbalance %{customdata[0]}<br>affinity %{y:.4f}<extra></extra>`,
    });
  });
  const close = stream.lag && stream.floor && Math.abs(Math.log(stream.lag / stream.floor)) < 3;
  const marks = [];
  if (stream.floor) marks.push(vertical(stream.floor, "floor", close && stream.lag > stream.floor ? "right" : "left", ink));
  const lagDrawn = stream.lag && (everything || stream.lag <= limit);
  if (lagDrawn) marks.push(vertical(stream.lag, "lag one", close && stream.lag > stream.floor ? "left" : "right", ink));
  const inside = [...near.map((cell) => shown(cell.x, stream.floor)), ...[stream.floor, lagDrawn && stream.lag].filter((value) => value)];
  const heights = near.map((cell) => cell.y), room = 0.06 * (Math.max(...heights) - Math.min(...heights)) || 0.001;
  const xaxis = logAxis(inside, { title: { text: "steady imbalance" } });
  const yaxis = { title: { text: "affinity kept" }, range: [Math.min(...heights) - room, Math.max(...heights) + room] };
  Plotly.react("arena-frontier", traces, layout({
    xaxis, yaxis, legend: LEGEND, showlegend: true, margin: { l: 56, r: 14, t: 24, b: 40 },
    shapes: marks.map((mark) => mark.shape), annotations: marks.map((mark) => mark.annotation),
  }), CONFIG);
}

function drawTime(stream, balancers, which, measure) {
  const ink = muteColor();
  const cells = stream.cells.filter((cell) => (which === -1 ? cell.best : cell.balancer === which));
  const traces = cells.map((cell, n) => ({
    x: cell[measure].map((_, step) => step), y: cell[measure].map((value) => shown(value, stream.floor)), mode: "lines",
    name: balancers[cell.balancer] + atRate(cell), customdata: cell[measure],
    line: { color: schemeStyle(plain(balancers[cell.balancer])).color, dash: which === -1 ? "solid" : RATE_DASHES[n % RATE_DASHES.length], width: 1.8 },
    hovertemplate: "step %{x}: %{customdata}",
  }));
  const limits = measure === "imbalance" && stream.floor ? [stream.floor] : [];
  const floor = { type: "line", xref: "paper", x0: 0, x1: 1, y0: stream.floor, y1: stream.floor, line: { color: ink, width: 1.5, dash: "dot" } };
  Plotly.react("arena-time", traces, layout({
    xaxis: { title: { text: "step" } },
    yaxis: logAxis(traces.flatMap((trace) => trace.y).concat(limits), { title: { text: measure === "imbalance" ? "imbalance" : "max violation" } }),
    legend: LEGEND, showlegend: true, shapes: limits.map(() => floor),
  }), CONFIG);
}

run((figures) => {
  const stream = $("stream"), lines = $("lines"), everything = $("everything"), table = document.querySelector("#arena-cells table");
  const show = () => {
    const one = figures.streams[stream.selectedIndex];
    drawFrontier(one, figures.balancers, $("far").checked);
    drawTime(one, figures.balancers, Number(lines.value), $("measure").value);
    for (const row of table.tBodies[0].rows) row.hidden = !everything.checked && Number(row.dataset.stream) !== stream.selectedIndex;
  };
  if (!stream.options.length) {
    for (const one of figures.streams) stream.add(new Option(plain(one.name)));
    lines.add(new Option("best rate of each", -1));
    figures.balancers.forEach((name, n) => lines.add(new Option(`${plain(name)}, every rate`, n)));
    makeSortable(table);
    for (const each of [stream, lines, $("measure"), everything, $("far")]) each.addEventListener("change", show);
  }
  show();
});
