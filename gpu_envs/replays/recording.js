"use strict";

/* The recording in the page, as written by page.py. */

const byId = (id) => document.getElementById(id);

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

/** Shapes of the same kind, colour and size in all frames. */
class Layer {
  constructor(bytes, frames, layout) {
    Object.assign(this, { kind: layout.kind, colour: layout.colour, size: layout.size });
    this.shapes = layout.shapes;
    this.points = layout.points;
    const rows = layout.replicas * layout.shapes;
    this.first = new Coordinates(bytes, rows * 2, frames, layout.first);
    this.others = layout.others ? new Coordinates(bytes, rows * (layout.points - 1) * 2, frames, layout.others) : null;
    this.visibility = layout.shown ? new Visibility(bytes, rows, frames, layout.shown) : null;
    this.x = new Float64Array(layout.points);
    this.y = new Float64Array(layout.points);
  }

  /** Draws a replica's shapes; the view's lower left corner is the lower left corner of a picture of this height. */
  draw(context, replica, frame, view, scale, height) {
    context.fillStyle = context.strokeStyle = this.colour;
    for (let shape = 0; shape < this.shapes; shape++) {
      const row = replica * this.shapes + shape;
      if (this.visibility && !this.visibility.at(row, frame)) continue;
      for (let point = 0; point < this.points; point++) {
        this.x[point] = (this.coordinate(row, point, 0, frame) - view[0]) * scale;
        this.y[point] = height - (this.coordinate(row, point, 1, frame) - view[1]) * scale;
      }
      this[this.kind](context, scale);
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

  disc(context, scale) {
    context.beginPath();
    context.arc(this.x[0], this.y[0], Math.max(this.size * scale, 0.5), 0, 2 * Math.PI);
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

/** A recording: shapes, returns, metrics and ends of episodes. */
class Recording {
  constructor(about, bytes) {
    this.about = about;
    this.frames = about.frames;
    this.replicas = about.numbers.length;
    this.layers = about.layers.map((layout) => new Layer(bytes, about.frames, layout));
    const ends = arrayOf(Uint8Array, bytes, about.ends, this.replicas * this.frames);
    const rewards = arrayOf(Float32Array, bytes, about.rewards, about.roles.length * this.replicas * this.frames);
    /** By replica and frame: 0, or 1 if the episode terminated, or 2 if it was truncated. */
    this.ends = this.byReplica((replica) => ends.subarray(replica * this.frames, (replica + 1) * this.frames));
    /** By replica: frames that end an episode. */
    this.endings = this.ends.map((row) => Array.from(row.keys()).filter((frame) => row[frame]));
    /** By replica and frame: steps since the start of the episode. */
    this.lengths = this.byReplica((replica) => this.episodeSums(replica, about.elapsed[replica], () => 1));
    /** By role, replica and frame: return since the start of the episode. */
    this.totals = about.roles.map((_, role) =>
      this.byReplica((replica) => {
        const row = (role * this.replicas + replica) * this.frames;
        return this.episodeSums(replica, 0, (frame) => rewards[row + frame]);
      }),
    );
    const metrics = about.metrics ?? [];
    const measured = arrayOf(Float32Array, bytes, about.measured ?? 0, metrics.length * this.replicas * this.frames);
    /** By metric, replica and frame: the metric since the start of the episode; NaN before its first step. */
    this.measured = metrics.map((_, metric) =>
      this.byReplica((replica) => {
        const row = (metric * this.replicas + replica) * this.frames;
        return Float64Array.from({ length: this.frames }, (_, f) => measured[row + Math.min(f, about.last[replica])]);
      }),
    );
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

  /** Returns the values (by replica and frame) at the ends of the replicas' episodes up to a frame. */
  finished(values, replicas, frame) {
    return replicas.flatMap((replica) =>
      this.endings[replica].filter((at) => at <= frame).map((at) => values[replica][at]),
    );
  }

  /** Draws a replica into a rectangle of the canvas. */
  draw(context, replica, frame, left, top, width, height) {
    const { views, background, last, faded } = this.about;
    const view = views[views.length === 1 ? 0 : frame];
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.translate(left, top);
    context.fillStyle = background;
    context.fillRect(0, 0, width, height);
    const scale = width / (view[2] - view[0]);
    for (const layer of this.layers) layer.draw(context, replica, Math.min(frame, last[replica]), view, scale, height);
    if (frame > last[replica]) {
      context.globalAlpha = faded;
      context.fillStyle = background;
      context.fillRect(0, 0, width, height);
    }
    context.restore();
  }
}
