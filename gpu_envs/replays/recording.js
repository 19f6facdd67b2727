"use strict";

/* The recording in the page, as written by page.py. */

const byId = (id) => document.getElementById(id);

/** Returns a new element with children, which are elements or texts. */
function element(kind, className, ...children) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function replicaName(recording, replica) {
  return `replica ${recording.about.numbers[replica]}`;
}

/** Returns the page's description and its block of bytes. */
async function unpack() {
  const about = JSON.parse(byId("about").textContent);
  const packed = Uint8Array.from(atob(byId("bytes").textContent), (letter) => letter.charCodeAt(0));
  byId("bytes").textContent = "";
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return [about, new Uint8Array(await new Response(stream).arrayBuffer())];
}

/** Copies an array out of the block: its offset may be unaligned, which a view does not allow. */
function arrayOf(Kind, bytes, at, length) {
  return new Kind(bytes.slice(at, at + length * Kind.BYTES_PER_ELEMENT).buffer);
}

/** Coordinates of points: one value per frame, or a single value if they never change. */
class Coordinates {
  constructor(bytes, rows, frames, layout) {
    this.frames = layout.still ? 1 : frames;
    this.still = layout.still;
    if (layout.still) {
      this.values = arrayOf(Float64Array, bytes, layout.at, rows);
      return;
    }
    this.first = layout.first;
    this.step = layout.step;
    this.values = new Uint16Array(rows * frames);
    const upper = layout.at + rows * frames;
    for (let row = 0, i = 0; row < rows; row++) {
      for (let frame = 0, value = 0; frame < frames; frame++, i++) {
        const folded = bytes[layout.at + i] | (bytes[upper + i] << 8);
        value = (value + ((folded >>> 1) ^ -(folded & 1))) & 0xffff;
        this.values[i] = value;
      }
    }
  }

  at(row, frame) {
    return this.still ? this.values[row] : (this.first + this.values[row * this.frames + frame]) * this.step;
  }
}

/** Whether shapes are shown: one flag per frame, or a single flag if it never changes. */
class Visibility {
  constructor(bytes, rows, frames, layout) {
    this.frames = layout.still ? 1 : frames;
    this.still = layout.still;
    this.values = arrayOf(Uint8Array, bytes, layout.at, rows * this.frames);
    for (let i = 0; i < this.values.length; i++) {
      if (i % this.frames) this.values[i] ^= this.values[i - 1];
    }
  }

  at(row, frame) {
    return this.values[row * this.frames + (this.still ? 0 : frame)] !== 0;
  }
}

/** Returns the values of a chart by replica and frame, NaN if there is none. */
function chartValues(bytes, replicas, frames, layout) {
  const coordinates = new Coordinates(bytes, replicas, frames, layout);
  const value = (row, frame) => (coordinates.values[row * frames + frame] ? coordinates.at(row, frame) : NaN);
  return Array.from({ length: replicas }, (_, row) => Float64Array.from({ length: frames }, (_, f) => value(row, f)));
}

/** Shapes of the same kind, colour and size in all frames. */
class Layer {
  constructor(bytes, frames, layout) {
    Object.assign(this, { kind: layout.kind, colour: layout.colour, size: layout.size, minRadius: layout.minRadius });
    this.shapes = layout.shapes;
    this.points = layout.points;
    const rows = layout.replicas * layout.shapes;
    this.first = new Coordinates(bytes, rows * 2, frames, layout.first);
    this.others = layout.others ? new Coordinates(bytes, rows * (layout.points - 1) * 2, frames, layout.others) : null;
    this.visibility = layout.shown ? new Visibility(bytes, rows, frames, layout.shown) : null;
    this.x = new Float64Array(layout.points);
    this.y = new Float64Array(layout.points);
  }

  /**
   * Draws a replica's shapes; the view's lower left corner is the lower left corner of a picture of this height.
   * The ratio is the number of the canvas's pixels per pixel of the page.
   */
  draw(context, replica, frame, view, scale, height, ratio) {
    context.fillStyle = context.strokeStyle = this.colour;
    for (let shape = 0; shape < this.shapes; shape++) {
      const row = replica * this.shapes + shape;
      if (this.visibility && !this.visibility.at(row, frame)) continue;
      for (let point = 0; point < this.points; point++) {
        this.x[point] = (this.coordinate(row, point, 0, frame) - view[0]) * scale;
        this.y[point] = height - (this.coordinate(row, point, 1, frame) - view[1]) * scale;
      }
      if (this.minRadius) this.enlarge(this.minRadius * ratio);
      this[this.kind](context, scale, ratio);
    }
  }

  /** Enlarges the points about their centre if they are within a smaller radius. */
  enlarge(minRadius) {
    let [x, y, radius] = [0, 0, 0];
    for (let point = 0; point < this.points; point++) {
      x += this.x[point] / this.points;
      y += this.y[point] / this.points;
    }
    for (let point = 0; point < this.points; point++) {
      radius = Math.max(radius, Math.hypot(this.x[point] - x, this.y[point] - y));
    }
    if (!(radius > 0 && radius < minRadius)) return;
    for (let point = 0; point < this.points; point++) {
      this.x[point] = x + ((this.x[point] - x) * minRadius) / radius;
      this.y[point] = y + ((this.y[point] - y) * minRadius) / radius;
    }
  }

  /** Returns a point's coordinate: x (axis 0) or y (axis 1). */
  coordinate(row, point, axis, frame) {
    const start = this.first.at(row * 2 + axis, frame);
    return point ? start + this.others.at((row * (this.points - 1) + point - 1) * 2 + axis, frame) : start;
  }

  polygon(context) {
    context.beginPath();
    for (let point = 0; point < this.points; point++) context.lineTo(this.x[point], this.y[point]);
    context.closePath();
    context.fill();
  }

  disc(context, scale, ratio) {
    context.beginPath();
    context.arc(this.x[0], this.y[0], Math.max(this.size * scale, this.minRadius * ratio, 0.5), 0, 2 * Math.PI);
    context.fill();
  }

  /** Draws a line at least one pixel wide. Thin horizontal and vertical lines fill one row or column of pixels. */
  line(context, scale) {
    const width = Math.max(this.size * scale, 1);
    const tiny = 1e-6;
    context.lineWidth = width;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    for (let point = 0; point + 1 < this.points; point++) {
      let [x0, x1, y0, y1] = [this.x[point], this.x[point + 1], this.y[point], this.y[point + 1]];
      if (width === 1 && x0 === x1) x0 = x1 = Math.floor(x0 + tiny) + 0.5;
      if (width === 1 && y0 === y1) y0 = y1 = Math.ceil(y0 - tiny) - 0.5;
      if (point === 0 || width === 1) context.moveTo(x0, y0);
      context.lineTo(x1, y1);
    }
    context.stroke();
  }
}

/** A recording: shapes, returns, metrics, the state and ends of episodes. */
class Recording {
  constructor(about, bytes) {
    this.about = about;
    this.frames = about.frames;
    this.replicas = about.numbers.length;
    this.layers = (about.picture?.layers ?? []).map((layout) => new Layer(bytes, about.frames, layout));
    const ends = arrayOf(Uint8Array, bytes, about.ends, this.replicas * this.frames);
    const rewards = arrayOf(Float32Array, bytes, about.rewards, about.roles.length * this.replicas * this.frames);
    /** By replica and frame: 0, or 1 if the episode terminated, or 2 if it was truncated. */
    this.ends = this.byReplica((replica) => ends.subarray(replica * this.frames, (replica + 1) * this.frames));
    /** By replica: frames that end an episode. */
    this.endings = this.ends.map((row) => Array.from(row.keys()).filter((frame) => row[frame]));
    /** Whether several episodes of a replica are recorded. */
    this.severalEpisodes = this.endings.some((frames, replica) => frames.some((frame) => frame < about.last[replica]));
    /** By replica and frame: steps since the start of the episode. */
    this.lengths = this.byReplica((replica) => this.episodeSums(replica, about.elapsed[replica], () => 1));
    /** By role, replica and frame: return since the start of the episode. */
    this.totals = about.roles.map((_, role) =>
      this.byReplica((replica) => {
        const row = (role * this.replicas + replica) * this.frames;
        return this.episodeSums(replica, 0, (frame) => rewards[row + frame]);
      }),
    );
    const decoded = ({ values, bounds = [], ...chart }) => {
      const [low, high] = bounds.map((layout) => chartValues(bytes, this.replicas, this.frames, layout));
      return { ...chart, values: chartValues(bytes, this.replicas, this.frames, values), low, high };
    };
    /** Charts of metrics since the start of the episode, and of the state. */
    this.metrics = about.metrics.map(decoded);
    this.state = (about.state ?? []).map(decoded);
  }

  byReplica(make) {
    return Array.from({ length: this.replicas }, (_, replica) => make(replica));
  }

  /** Returns the sums over the steps of each episode. */
  episodeSums(replica, initial, added) {
    const sums = new Float64Array(this.frames);
    const { last, pauses } = this.about;
    sums[0] = initial;
    for (let frame = 1; frame < this.frames; frame++) {
      if (frame > last[replica]) sums[frame] = sums[frame - 1];
      else if (this.ends[replica][frame - 1]) sums[frame] = pauses ? 0 : added(frame);
      else sums[frame] = sums[frame - 1] + added(frame);
    }
    return sums;
  }

  /** Returns the status of a replica's episode at a frame: 0 (running), 1 (terminated) or 2 (truncated). */
  statusAt(replica, frame) {
    return this.ends[replica][Math.min(frame, this.about.last[replica])];
  }

  /** Returns the number of a replica's episode at a frame, from 1. */
  episodeAt(replica, frame) {
    const at = Math.min(frame, this.about.last[replica]);
    return 1 + this.endings[replica].filter((end) => end < at).length;
  }

  /** Returns a role's returns of the replicas' episodes that were recorded from their start and ended by a frame. */
  finished(role, replicas, frame) {
    return replicas.flatMap((replica) =>
      this.endings[replica]
        .filter((at, episode) => at <= frame && (episode || !this.about.elapsed[replica]))
        .map((at) => this.totals[role][replica][at]),
    );
  }

  /** Draws a replica into a rectangle of the canvas. */
  draw(context, replica, frame, { left, top, width, height, ratio }) {
    const { last } = this.about;
    const { views, background, faded } = this.about.picture;
    const view = views[views.length === 1 ? 0 : frame];
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.translate(left, top);
    context.fillStyle = background;
    context.fillRect(0, 0, width, height);
    const scale = width / (view[2] - view[0]);
    const at = Math.min(frame, last[replica]);
    for (const layer of this.layers) layer.draw(context, replica, at, view, scale, height, ratio);
    if (frame > last[replica]) {
      context.globalAlpha = faded;
      context.fillStyle = background;
      context.fillRect(0, 0, width, height);
    }
    context.restore();
  }
}
