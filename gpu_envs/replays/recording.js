"use strict";

/* What the page holds; page.py wrote it. */

const byId = (id) => document.getElementById(id);

/** The page's description, and its block of bytes. */
async function unpacked() {
  const about = JSON.parse(byId("about").textContent);
  const packed = Uint8Array.from(atob(byId("bytes").textContent), (letter) => letter.charCodeAt(0));
  byId("bytes").textContent = "";
  const whole = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return [about, new Uint8Array(await new Response(whole).arrayBuffer())];
}

/** An array of the block, whose place may suit no other view of its bytes. */
function arrayOf(Kind, bytes, at, length) {
  return new Kind(bytes.slice(at, at + length * Kind.BYTES_PER_ELEMENT).buffer);
}

/** Coordinates of many points, frame by frame, or once for all frames. */
class Coordinates {
  constructor(bytes, rows, frames, found) {
    this.frames = found.still ? 1 : frames;
    this.still = found.still;
    if (found.still) {
      this.values = arrayOf(Float64Array, bytes, found.at, rows);
      return;
    }
    this.first = found.first;
    this.step = found.step;
    this.values = new Uint16Array(rows * frames);
    const upper = found.at + rows * frames;
    for (let row = 0, i = 0; row < rows; row++) {
      for (let frame = 0, value = 0; frame < frames; frame++, i++) {
        const folded = bytes[found.at + i] | (bytes[upper + i] << 8);
        value = (value + ((folded >>> 1) ^ -(folded & 1))) & 0xffff;
        this.values[i] = value;
      }
    }
  }

  at(row, frame) {
    return this.still ? this.values[row] : (this.first + this.values[row * this.frames + frame]) * this.step;
  }
}

/** Which shapes are there, frame by frame, or once for all frames. */
class Presence {
  constructor(bytes, rows, frames, found) {
    this.frames = found.still ? 1 : frames;
    this.still = found.still;
    this.values = arrayOf(Uint8Array, bytes, found.at, rows * this.frames);
    for (let i = 0; i < this.values.length; i++) {
      if (i % this.frames) this.values[i] ^= this.values[i - 1];
    }
  }

  at(row, frame) {
    return this.values[row * this.frames + (this.still ? 0 : frame)] !== 0;
  }
}

/** Shapes of one kind, colour and size. */
class Layer {
  constructor(bytes, frames, found) {
    Object.assign(this, { kind: found.kind, colour: found.colour, size: found.size });
    this.shapes = found.shapes;
    this.points = found.points;
    const rows = found.replicas * found.shapes;
    this.first = new Coordinates(bytes, rows * 2, frames, found.first);
    this.others = found.others ? new Coordinates(bytes, rows * (found.points - 1) * 2, frames, found.others) : null;
    this.presence = found.shown ? new Presence(bytes, rows, frames, found.shown) : null;
    this.x = new Float64Array(found.points);
    this.y = new Float64Array(found.points);
  }

  /** Draws a replica's shapes into a picture of this height, whose lower left corner the view's is. */
  draw(context, replica, frame, view, scale, height) {
    context.fillStyle = context.strokeStyle = this.colour;
    for (let shape = 0; shape < this.shapes; shape++) {
      const row = replica * this.shapes + shape;
      if (this.presence && !this.presence.at(row, frame)) continue;
      for (let point = 0; point < this.points; point++) {
        this.x[point] = (this.coordinate(row, point, 0, frame) - view[0]) * scale;
        this.y[point] = height - (this.coordinate(row, point, 1, frame) - view[1]) * scale;
      }
      this[this.kind](context, scale);
    }
  }

  /** Of a shape's point: across (0) or up (1). */
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

  /** Lines are never thinner than a pixel, and those so thin that lie along a row or column of pixels fill that. */
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

/** What was recorded: shapes, returns, metrics and the ends of episodes. */
class Recording {
  constructor(about, bytes) {
    this.about = about;
    this.frames = about.frames;
    this.replicas = about.numbers.length;
    this.layers = about.layers.map((found) => new Layer(bytes, about.frames, found));
    const ends = arrayOf(Uint8Array, bytes, about.ends, this.replicas * this.frames);
    const rewards = arrayOf(Float32Array, bytes, about.rewards, about.roles.length * this.replicas * this.frames);
    /** By replica and frame: 0, or how an episode ended: 1 by the rules, 2 at the time limit. */
    this.ends = this.byReplica((replica) => ends.subarray(replica * this.frames, (replica + 1) * this.frames));
    /** By replica: the frames in which an episode ended. */
    this.endings = this.ends.map((row) => Array.from(row.keys()).filter((frame) => row[frame]));
    /** By replica and frame: the episode's steps so far. */
    this.lengths = this.byReplica((replica) => this.summed(replica, about.elapsed[replica], () => 1));
    /** By role, replica and frame: the episode's return so far. */
    this.totals = about.roles.map((_, role) =>
      this.byReplica((replica) => {
        const row = (role * this.replicas + replica) * this.frames;
        return this.summed(replica, 0, (frame) => rewards[row + frame]);
      }),
    );
    const metrics = about.metrics ?? [];
    const measured = arrayOf(Float32Array, bytes, about.measured ?? 0, metrics.length * this.replicas * this.frames);
    /** By metric, replica and frame: what the episode has of it so far; NaN where it has had no step. */
    this.measured = metrics.map((_, metric) =>
      this.byReplica((replica) => {
        const row = (metric * this.replicas + replica) * this.frames;
        return Float64Array.from({ length: this.frames }, (_, f) => measured[row + Math.min(f, about.last[replica])]);
      }),
    );
  }

  byReplica(made) {
    return Array.from({ length: this.replicas }, (_, replica) => made(replica));
  }

  /** What each step adds, summed up from the beginning of every episode. */
  summed(replica, before, added) {
    const sums = new Float64Array(this.frames);
    const { last, pauses } = this.about;
    sums[0] = before;
    for (let frame = 1; frame < this.frames; frame++) {
      if (frame > last[replica]) sums[frame] = sums[frame - 1];
      else if (this.ends[replica][frame - 1]) sums[frame] = pauses ? 0 : added(frame);
      else sums[frame] = sums[frame - 1] + added(frame);
    }
    return sums;
  }

  /** Returns or metrics, by replica and frame: of the episodes of some replicas that had ended by a frame. */
  finished(values, replicas, frame) {
    return replicas.flatMap((replica) =>
      this.endings[replica].filter((at) => at <= frame).map((at) => values[replica][at]),
    );
  }

  /** Draws a replica into the rectangle that begins at a pixel. */
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
