/* Pictures of the runs of a population as lines, and a table of the selected runs. */

const find = (selector) => document.querySelector(selector);
const { axes, places, columns, runs, order, times, steps, means, curves } = JSON.parse(find("#data").text);
const at = axes.map((_, k) => (axes.length > 1 ? k / (axes.length - 1) : 0.5));
const lowest = places.flat().some((place) => place < 0) ? -0.1 : 0; // of missing values
const settings = { canvas: find("#settings"), axes, at, xs: at, lines: places, lowest, bottom: 20 };
if (axes.length === 1) Object.assign(settings, { xs: [0.45, 0.55], lines: places.map(([place]) => [place, place]) });
const learning = { canvas: find("#learning"), axes: [{ name: "return", ticks: means }], at: [0], xs: steps };
const pictures = [settings, Object.assign(learning, { lines: curves, lowest: 0, bottom: 30 })];
const dark = matchMedia("(prefers-color-scheme: dark)");
const brushes = new Map(); // the selected range of places, by axis
let selected = []; // by return, the highest first
let dragged = null; // axis and first point of a brush

/** Returns a colour of the page's light or dark style. */
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** Returns the colour of a place on the axis of returns: from purple to teal and lime, evenly lighter. */
function colourAt(place) {
  const t = dark.matches ? 0.15 + 0.85 * place : 1 - place; // high returns differ most from the page
  const mix = ([a, b, c]) => (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t ** 2 * c;
  return place < 0 ? style("--quiet") : `rgb(${[[72, -65, 190], [30, 165, 220], [120, 197, 45]].map(mix)})`;
}

/** Computes a picture's lines for the size of the page. */
function fit(picture) {
  const { canvas, at, xs, lines, lowest, bottom } = picture;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
  const pen = Object.assign(canvas.getContext("2d"), { font: "12px system-ui, sans-serif", textBaseline: "middle" });
  pen.scale(devicePixelRatio, devicePixelRatio);
  const widthOf = (text) => pen.measureText(text).width;
  const left = 20 + Math.min(120, Math.max(30, ...picture.axes[0].ticks.map(([, text]) => widthOf(text))));
  const x = (place) => left + place * (width - left - 40);
  const ends = []; // of the axes' names in each row
  const names = picture.axes.map(({ name }, k) => {
    const half = widthOf(name) / 2;
    const middle = Math.max(half + 4, Math.min(width - half - 4, x(at[k])));
    const row = [...ends, 0].findIndex((end) => end <= middle - half);
    ends[row] = middle + half + 12;
    return [name, middle, row];
  });
  const top = 18 + 18 * ends.length;
  const y = (place) => top + ((1 - place) / (1 - lowest)) * (height - top - bottom);
  const points = lines.map((line) => line.map((it, k) => [x(xs[k]), y(it)]).filter((_, k) => line[k] >= lowest));
  const paths = points.map((line) => new Path2D(line.length ? `M${line.join("L")}h4` : "")); // also of a single point
  Object.assign(picture, { width, height, pen, x, y, names, points, paths });
}

/** Draws a picture, with a run highlighted or none. */
function draw(picture, highlighted) {
  const { axes, at, lowest, width, height, pen, x, y, names, paths } = picture;
  const stroke = (run, lineWidth, strokeStyle = colourAt(places[run].at(-1))) => {
    pen.setLineDash(runs[run]?.at(-1) === "diverged" ? [6, 4] : []);
    Object.assign(pen, { lineWidth, strokeStyle, lineJoin: "round" }).stroke(paths[run]);
  };
  const write = (text, left, middle, textAlign, most) => {
    Object.assign(pen, { textAlign, lineWidth: 4, strokeStyle: style("--raised"), fillStyle: style("--ink") });
    pen.strokeText(text, left, middle, most);
    pen.fillText(text, left, middle, most);
  };
  pen.clearRect(0, 0, width, height);
  for (const run of order.filter((it) => !selected.includes(it))) stroke(run, 1, style("--grid"));
  pen.globalAlpha = selected.length < 50 ? 1 : 0.6;
  for (const run of selected.toReversed()) stroke(run, selected.length < 50 ? 2 : 1); // above 1, drawing is slow
  pen.globalAlpha = 1;
  for (const run of [runs.length, highlighted].filter((it) => it in paths)) {
    stroke(run, 8, style("--raised"));
    stroke(run, 4, style("--ink"));
    if (run === highlighted) stroke(run, 2.5);
  }
  for (const [place, text] of picture === learning ? times : []) write(text, x(place), y(0) + 16, "center");
  pen.setLineDash([]);
  axes.forEach(({ ticks }, k) => {
    const [left, coloured] = [x(at[k]), picture === settings && k === axes.length - 1];
    const scale = pen.createLinearGradient(0, y(0), 0, y(1));
    for (const it of [0, 0.25, 0.5, 0.75, 1]) scale.addColorStop(it, coloured ? colourAt(it) : style("--quiet"));
    Object.assign(pen, { fillStyle: scale }).fillRect(left - (coloured ? 3 : 0.5), y(1), coloured ? 6 : 1, y(0) - y(1));
    for (const [place, text] of ticks.filter(([place]) => place >= lowest)) {
      write(text, left - 8, y(place), "right", k ? left - x(at[k - 1]) - 16 : 120);
    }
    const [name, middle, row] = names[k];
    write(name, middle, y(1) - 18 - 18 * row, "center");
    const [low, high] = (picture === settings && brushes.get(k)) || [0, 0];
    Object.assign(pen, { fillStyle: style("--strong"), globalAlpha: 0.4 });
    pen.fillRect(left - 9, y(high), 18, y(low) - y(high));
    pen.globalAlpha = 1;
  });
}

/** Highlights a run, or none, in both pictures, and tells its values. */
function point(run) {
  for (const picture of pictures) draw(picture, run);
  const values = runs[run]?.map((text, k) => `${columns[k]} ${text}`).join(", ");
  find("#told").textContent = values ?? `${selected.length} of ${runs.length} selected`;
}

/** Highlights the selected run whose line is nearest to the pointer, if one is within a few pixels. */
function pointNear({ points }, { offsetX: x, offsetY: y }) {
  let [found, least] = [undefined, 8];
  for (const run of selected) {
    const k = points[run].findIndex(([end]) => end >= x);
    if (k < 1) continue;
    const [[x0, y0], [x1, y1]] = points[run].slice(k - 1, k + 1);
    const slope = (y1 - y0) / (x1 - x0);
    const distance = Math.abs(y0 + slope * (x - x0) - y) / Math.hypot(1, slope);
    if (distance < least) [found, least] = [run, distance];
  }
  point(found);
}

/** Selects the runs inside of all brushes. */
function select() {
  const inside = (run) => [...brushes].every(([k, [low, high]]) => low <= places[run][k] && places[run][k] <= high);
  selected = order.filter(inside);
  const rows = [columns, ...selected.slice(0, 20).map((run) => runs[run])].map((texts, row) => {
    const line = document.createElement("tr");
    for (const text of texts) line.appendChild(document.createElement(row ? "td" : "th")).textContent = text;
    line.onpointerenter = () => point(selected[row - 1]);
    return line;
  });
  find("table").replaceChildren(...rows);
  point();
}

settings.canvas.onpointerdown = ({ offsetX, offsetY, pointerId }) => {
  const axis = at.findIndex((place) => Math.abs(settings.x(place) - offsetX) < 16);
  if (axis < 0) return;
  dragged = { axis, from: offsetY };
  settings.canvas.setPointerCapture(pointerId);
  if (brushes.delete(axis)) select();
};
settings.canvas.onpointermove = (event) => {
  if (!dragged) return pointNear(settings, event);
  if (Math.abs(event.offsetY - dragged.from) < 4) return; // a click
  const ends = [dragged.from, event.offsetY].map((y) => (settings.y(0) - y) / (settings.y(0) - settings.y(1)));
  brushes.set(dragged.axis, [Math.max(lowest - 0.02, Math.min(...ends)), Math.min(1.02, Math.max(...ends))]);
  select();
};
settings.canvas.onpointerup = settings.canvas.onpointercancel = () => (dragged = null);
learning.canvas.onpointermove = (event) => pointNear(learning, event);
for (const it of [settings.canvas, learning.canvas, find("table")]) it.onpointerleave = () => point();
window.onresize = dark.onchange = () => {
  pictures.forEach(fit);
  select();
};
window.onresize();
