// The page of an arena.
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "hexagon"];
const LEGEND = { orientation: "h", y: -0.2, yanchor: "top", x: 0 };
const color = (n) => COLORS[n % COLORS.length];
const symbol = (n) => SYMBOLS[(n + Math.floor(n / COLORS.length)) % SYMBOLS.length];
const atRate = (cell) => (cell.rate === null ? "" : " " + cell.rate);

// An imbalance of 0 has no place on a logarithmic axis: it is drawn far left of, or below, the floor.
const shown = (value, floor) => Math.max(value, (floor || 1e-3) / 10);

// 1, 2, 5 and their tenths: plotly's own ticks between powers of ten are bare digits.
function logAxis(values, more) {
  const low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values)), room = 0.04 * (high - low) + 0.02;
  const tickvals = [];
  for (let power = Math.floor(low) - 1; power <= Math.ceil(high); power++)
    for (const digit of high - low > 2.2 ? [1] : [1, 2, 5]) tickvals.push(Number(`${digit}e${power}`));
  return { type: "log", range: [low - room, high + room], tickmode: "array", tickvals, ticktext: tickvals.map(String), ...more };
}

function vertical(x, text, place, ink) {
  return {
    shape: { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: ink, width: 1.5, dash: "dot" } },
    annotation: { x: Math.log10(x), xanchor: place, yref: "paper", y: 1, yanchor: "bottom", text, showarrow: false, font: { size: 11 } },
  };
}

function drawFrontier(stream, balancers) {
  const ink = dark.matches ? "#9aa4b5" : "#5d6678";
  const traces = [{
    x: stream.frontier.map(([x]) => shown(x, stream.floor)), y: stream.frontier.map(([, y]) => y), name: "frontier", mode: "lines",
    line: { shape: "hv", color: ink, width: 5 }, opacity: 0.35, hoverinfo: "skip",
  }];
  balancers.forEach((name, n) => {
    const cells = stream.cells.filter((cell) => cell.balancer === n).sort((one, other) => one.rate - other.rate);
    if (!cells.length) return;
    traces.push({
      x: cells.map((cell) => shown(cell.x, stream.floor)), y: cells.map((cell) => cell.y), name, mode: "lines+markers",
      line: { color: color(n), width: 1.5 }, marker: { symbol: symbol(n), size: 10, color: color(n) },
      customdata: cells.map((cell) => [cell.x, atRate(cell)]),
      hovertemplate: `${name}%{customdata[1]}<br>imbalance %{customdata[0]}<br>affinity %{y:.4f}<extra></extra>`,
    });
  });
  const close = stream.lag && stream.floor && Math.abs(Math.log(stream.lag / stream.floor)) < 3;
  const marks = [];
  if (stream.floor) marks.push(vertical(stream.floor, "floor", close && stream.lag > stream.floor ? "right" : "left", ink));
  if (stream.lag) marks.push(vertical(stream.lag, "lag one", close && stream.lag > stream.floor ? "left" : "right", ink));
  const inside = [...stream.cells.map((cell) => shown(cell.x, stream.floor)), ...[stream.floor, stream.lag].filter((value) => value)];
  const xaxis = logAxis(inside, { title: { text: "steady imbalance" } });
  Plotly.react("arena-frontier", traces, layout({
    xaxis, yaxis: { title: { text: "affinity kept" } }, legend: LEGEND, showlegend: true, margin: { l: 56, r: 14, t: 24, b: 40 },
    shapes: marks.map((mark) => mark.shape), annotations: marks.map((mark) => mark.annotation),
  }), CONFIG);
}

function drawTime(stream, balancers, which, measure) {
  const ink = dark.matches ? "#9aa4b5" : "#5d6678";
  const cells = stream.cells.filter((cell) => (which === -1 ? cell.best : cell.balancer === which));
  const traces = cells.map((cell, n) => ({
    x: cell[measure].map((_, step) => step), y: cell[measure].map((value) => shown(value, stream.floor)), mode: "lines",
    name: balancers[cell.balancer] + atRate(cell), customdata: cell[measure],
    line: { color: color(which === -1 ? cell.balancer : n + 1), width: 1.8 },
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

function makeSortable(table) {
  const body = table.tBodies[0];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? (cell.dataset.value === "" ? Infinity : Number(cell.dataset.value)) : cell.textContent;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent; head.replaceChildren(button);
    button.onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      body.append(...[...body.rows].sort((one, other) => {
        const a = value(one, column), b = value(other, column);
        return a === b ? 0 : sign * (a < b ? -1 : 1);
      }));
    };
  });
}

run((figures) => {
  const stream = $("stream"), lines = $("lines"), everything = $("everything"), table = document.querySelector("#arena-cells table");
  const show = () => {
    const one = figures.streams[stream.selectedIndex];
    drawFrontier(one, figures.balancers);
    drawTime(one, figures.balancers, Number(lines.value), $("measure").value);
    for (const row of table.tBodies[0].rows) row.hidden = !everything.checked && Number(row.dataset.stream) !== stream.selectedIndex;
  };
  if (!stream.options.length) {
    for (const one of figures.streams) stream.add(new Option(plain(one.name)));
    lines.add(new Option("best rate of each", -1));
    figures.balancers.forEach((name, n) => lines.add(new Option(`${plain(name)}, every rate`, n)));
    makeSortable(table);
    for (const each of [stream, lines, $("measure"), everything]) each.addEventListener("change", show);
  }
  show();
});
