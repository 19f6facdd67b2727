/* Charts of returns, metrics and the state. */

/** Returns evenly spaced round numbers that enclose the range. */
function ticks(low, high) {
  const raw = (high - low || Math.abs(high) || 1) / 3;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((times) => times * unit >= raw);
  const first = Math.floor(low / step);
  const count = Math.max(1, Math.ceil(high / step - 1e-9) - first);
  return Array.from({ length: count + 1 }, (_, i) => (first + i) * step);
}

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

function formatted(value) {
  if (Math.abs(value) >= 1e5) return COMPACT.format(value);
  const rounded = Number(value.toPrecision(4));
  return Object.is(rounded, -0) ? "0" : String(rounded);
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

const LABEL_FONT = "11px system-ui, sans-serif";

/** Returns a colour of the page's light or dark style. */
function styleColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name);
}

/** Returns the chart of a role's returns. */
function ofRole(recording, { name, agents, colour }, role) {
  const single = recording.about.roles.length === 1 && agents === 1;
  const note = agents > 1 ? `mean of ${agents} agents` : "sum of the rewards";
  return { name: single ? "return" : `return of ${name}`, note, colour, values: recording.totals[role] };
}

/** Pixels right of a chart's plot. */
const RIGHT = 12;

/** Chart of a value of each replica against time. */
class Chart {
  constructor(recording, { name, note, colour, values, low, high }, parent, seek) {
    Object.assign(this, { recording, colour, values, low, high });
    const [title, more] = [element("b", "key", name), element("small", "", note)];
    title.style.setProperty("--colour", colour);
    more.title = note;
    this.now = element("span");
    this.canvas = element("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${name} against time`);
    this.curves = element("canvas");
    parent.append(element("figure", "", element("figcaption", "", title, more, this.now), this.canvas));
    const follow = (event) => {
      if (event.type === "pointerdown") this.canvas.setPointerCapture(event.pointerId);
      if (event.buttons) seek(Math.round(this.frameAt(event.clientX - this.canvas.getBoundingClientRect().left)));
    };
    this.canvas.addEventListener("pointerdown", follow);
    this.canvas.addEventListener("pointermove", follow);
    this.measure();
  }

  /** Sets the range of the value axis, the same for all selections of replicas. */
  measure() {
    let [low, high] = [Infinity, -Infinity];
    for (const row of [this.values, this.low, this.high].filter(Boolean).flat()) {
      for (const value of row.filter(Number.isFinite)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    this.ticks = low > high ? ticks(0, 0) : ticks(low, high);
    this.bottom = this.ticks[0];
    this.top = this.ticks[this.ticks.length - 1];
  }

  /** Returns the width of the labels of the value axis, with a margin. */
  labelWidth() {
    const context = this.curves.getContext("2d");
    context.font = LABEL_FONT;
    return 10 + Math.max(...this.ticks.map((tick) => context.measureText(formatted(tick)).width));
  }

  frameAt(x) {
    return ((x - this.left) / (this.width - this.left - RIGHT)) * (this.recording.frames - 1);
  }

  x(frame) {
    return this.left + (frame / Math.max(1, this.recording.frames - 1)) * (this.width - this.left - RIGHT);
  }

  y(value) {
    return this.height - 18 - ((value - this.bottom) / (this.top - this.bottom)) * (this.height - 26);
  }

  /**
   * Draws axes and curves, which do not change while the recording plays, to a separate canvas. The plot starts at
   * ``left``, the same in all charts.
   */
  fit(replicas, left) {
    this.replicas = replicas;
    this.left = left;
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    for (const canvas of [this.canvas, this.curves]) {
      canvas.width = Math.max(1, Math.round(this.width * this.ratio));
      canvas.height = Math.max(1, Math.round(this.height * this.ratio));
    }
    const context = this.curves.getContext("2d");
    context.scale(this.ratio, this.ratio);
    context.font = LABEL_FONT;
    this.drawAxes(context);
    if (this.low) this.drawBand(context);
    const all = this.recording.byReplica((replica) => replica);
    const others = this.distinct(all.filter((replica) => !replicas.includes(replica)));
    const drawn = this.distinct(replicas);
    for (const replica of others) this.drawCurve(context, replica, 0.12);
    for (const replica of drawn) this.drawCurve(context, replica, drawn.length > 1 ? 0.6 : 1);
  }

  /** Returns one replica for each distinct curve: with a reward of 1 per step, many curves are equal. */
  distinct(replicas) {
    const { last } = this.recording.about;
    const { ends } = this.recording;
    const curve = (replica) => [this.values[replica], ends[replica], last[replica]].join(" ");
    return [...new Map(replicas.map((replica) => [curve(replica), replica])).values()];
  }

  drawAxes(context) {
    context.fillStyle = styleColour("--quiet");
    context.strokeStyle = styleColour("--grid");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of this.ticks) {
      const y = Math.round(this.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(this.width - RIGHT, y);
      context.stroke();
      context.fillText(formatted(tick), this.left - 5, y);
    }
    context.textBaseline = "bottom";
    const last = this.recording.frames - 1;
    context.textAlign = "left";
    context.fillText("step 0", this.left, this.height - 1);
    context.textAlign = "right";
    context.fillText(`step ${last}`, this.width - RIGHT, this.height - 1);
  }

  /** Fills the range between the lowest lower and the highest upper bound of the replicas. */
  drawBand(context) {
    const { last } = this.recording.about;
    const edge = (bounds, extreme) =>
      Array.from({ length: this.recording.frames }, (_, frame) =>
        extreme(...this.replicas.filter((replica) => frame <= last[replica]).map((replica) => bounds[replica][frame])),
      );
    const [low, high] = [edge(this.low, Math.min), edge(this.high, Math.max)];
    context.fillStyle = this.colour;
    context.globalAlpha = 0.2;
    context.beginPath();
    for (let frame = 0; frame + 1 < low.length; frame++) {
      const corners = [low[frame], low[frame + 1], high[frame + 1], high[frame]];
      if (!corners.every(Number.isFinite)) continue;
      corners.forEach((value, i) => context[i ? "lineTo" : "moveTo"](this.x(frame + (i === 1 || i === 2)), this.y(value)));
    }
    context.fill();
    context.globalAlpha = 1;
  }

  drawCurve(context, replica, strength) {
    const { last } = this.recording.about;
    const values = this.values[replica];
    const ends = this.recording.ends[replica];
    context.globalAlpha = strength;
    context.strokeStyle = context.fillStyle = this.colour;
    context.lineWidth = 1.3;
    context.lineJoin = "round";
    context.beginPath();
    for (let frame = 0; frame <= last[replica]; frame++) {
      if (!Number.isFinite(values[frame])) continue;
      const begins = frame === 0 || ends[frame - 1] || !Number.isFinite(values[frame - 1]);
      context[begins ? "moveTo" : "lineTo"](this.x(frame), this.y(values[frame]));
    }
    context.stroke();
    for (const frame of this.recording.endings[replica]) {
      if (!Number.isFinite(values[frame])) continue;
      context.beginPath();
      context.arc(this.x(frame), this.y(values[frame]), 2.8, 0, 2 * Math.PI);
      if (ends[frame] === 1) context.fill();
      else context.stroke();
    }
    context.globalAlpha = 1;
  }

  draw(frame) {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.curves, 0, 0);
    context.scale(this.ratio, this.ratio);
    context.strokeStyle = styleColour("--ink");
    context.beginPath();
    context.moveTo(this.x(frame), 4);
    context.lineTo(this.x(frame), this.height - 18);
    context.stroke();
    const now = this.replicas.map((replica) => this.values[replica][frame]).filter((value) => !Number.isNaN(value));
    this.now.textContent = now.length ? `${this.replicas.length > 1 ? "mean " : ""}${formatted(mean(now))}` : "";
  }
}
