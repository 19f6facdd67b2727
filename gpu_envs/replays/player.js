/* The player: pictures, charts and controls. */

/** Canvas with one replica, or with all replicas in a grid. */
class Picture {
  constructor(recording, canvas) {
    this.recording = recording;
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  /** Fits the canvas into the room, with an integer number of screen pixels per replica. */
  fit(replicas, room) {
    const ratio = window.devicePixelRatio || 1;
    const { size, gap } = this.recording.about;
    const columns = Math.ceil(Math.sqrt(replicas.length));
    const rows = Math.ceil(replicas.length / columns);
    const across = (room.width * ratio - (columns - 1) * gap) / columns;
    const high = (room.height * ratio - (rows - 1) * gap) / rows;
    this.replicas = replicas;
    this.columns = columns;
    this.width = Math.max(1, Math.floor(Math.min(across, (high * size[0]) / size[1])));
    this.height = Math.max(1, Math.round((this.width * size[1]) / size[0]));
    this.canvas.width = columns * (this.width + gap) - gap;
    this.canvas.height = rows * (this.height + gap) - gap;
    this.canvas.style.width = `${this.canvas.width / ratio}px`;
    this.canvas.style.height = `${this.canvas.height / ratio}px`;
  }

  corner(index) {
    const { gap } = this.recording.about;
    return [(index % this.columns) * (this.width + gap), Math.floor(index / this.columns) * (this.height + gap)];
  }

  draw(frame) {
    this.context.fillStyle = this.recording.about.gapShade;
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.replicas.forEach((replica, index) => {
      this.recording.draw(this.context, replica, frame, ...this.corner(index), this.width, this.height);
    });
  }

  /** Returns the replica under the pointer, or undefined. */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.canvas.width;
    const y = ((event.clientY - box.top) / box.height) * this.canvas.height;
    return this.replicas.find((_, index) => {
      const [left, top] = this.corner(index);
      return x >= left && x < left + this.width && y >= top && y < top + this.height;
    });
  }
}

/** The iframe around the page, as in a notebook; null without an iframe or without access to it. */
const hostFrame = window.frameElement;

const schemes = [...document.styleSheets[0].cssRules].filter((rule) => rule.media?.mediaText.includes("dark"));

/** In an iframe, uses the dark style if the outer page's text is light; the system's preference is ignored. */
function matchOuterPage() {
  if (!hostFrame) return;
  const [red, green, blue] = getComputedStyle(hostFrame).color.match(/[\d.]+/g).map(Number);
  const dark = red + green + blue > 384;
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  for (const rule of schemes) rule.media.mediaText = dark ? "all" : "not all";
}

/** Maximum height of the picture in an iframe, in pixels. */
const MAX_HEIGHT = 480;

/** Selected replicas, current frame and speed. */
class Player {
  constructor(recording) {
    this.recording = recording;
    this.all = recording.byReplica((replica) => replica);
    this.replicas = this.all;
    this.position = 0;
    this.playing = false;
    this.picture = new Picture(recording, byId("picture"));
    const { roles, metrics = [] } = recording.about;
    const drawn = (curves, place) => new Chart(recording, curves, byId(place), (frame) => this.seek(frame));
    byId("measured").hidden = !metrics.length;
    this.charts = [
      ...roles.map((role, i) => drawn(ofRole(recording, role, i), "charts")),
      ...metrics.map((metric, i) => drawn(ofMetric(recording, metric, i), "metrics")),
    ];
    byId("scrub").max = recording.frames - 1;
    byId("replica").append(new Option(`all ${this.all.length}`, "all"));
    for (const replica of this.all) byId("replica").append(new Option(this.name(replica), replica));
    for (const alone of document.querySelectorAll(".several")) alone.hidden = this.all.length === 1;
    this.listen();
    this.fit();
  }

  get frame() {
    return Math.floor(this.position);
  }

  name(replica) {
    return `replica ${this.recording.about.numbers[replica]}`;
  }

  listen() {
    byId("play").addEventListener("click", () => this.play(!this.playing));
    byId("back").addEventListener("click", () => this.seek(this.frame - 1));
    byId("forward").addEventListener("click", () => this.seek(this.frame + 1));
    byId("scrub").addEventListener("input", (event) => this.seek(Number(event.target.value)));
    byId("speed").addEventListener("change", () => byId("speed").blur());
    byId("replica").addEventListener("change", (event) => {
      this.show(event.target.value === "all" ? null : Number(event.target.value));
      event.target.blur();
    });
    byId("picture").addEventListener("click", (event) => {
      const replica = this.picture.under(event);
      if (replica !== undefined) this.show(this.replicas.length > 1 ? replica : null);
    });
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.fitIfResized()).observe(byId("stage"));
    document.documentElement.classList.toggle("within", hostFrame !== null);
    if (hostFrame) new ResizeObserver(() => this.resizeHostFrame()).observe(document.body);
    window.addEventListener("resize", () => this.fitIfResized());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      matchOuterPage();
      this.fit();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const steps = event.shiftKey ? 10 : 1;
    const keys = {
      " ": () => this.play(!this.playing),
      ArrowLeft: () => this.seek(this.frame - steps),
      ArrowRight: () => this.seek(this.frame + steps),
      ArrowUp: () => this.changeSpeed(1),
      ArrowDown: () => this.changeSpeed(-1),
      Home: () => this.seek(0),
      End: () => this.seek(this.recording.frames - 1),
      Escape: () => this.show(null),
    };
    const action = keys[event.key];
    if (!action || (event.key === " " && event.target.tagName === "BUTTON")) return; // the browser presses the button
    event.preventDefault();
    action();
  }

  changeSpeed(by) {
    const { options, selectedIndex } = byId("speed");
    byId("speed").selectedIndex = Math.min(Math.max(selectedIndex + by, 0), options.length - 1);
  }

  /** Shows one replica, or all for null. */
  show(replica) {
    this.replicas = replica === null ? this.all : [replica];
    byId("replica").value = replica === null ? "all" : String(replica);
    this.fit();
  }

  /** Pauses at a frame. */
  seek(frame) {
    this.play(false);
    this.position = Math.min(Math.max(frame, 0), this.recording.frames - 1);
    this.draw();
  }

  /** Starts to play; in an iframe when it scrolls into view, unless the reader used the controls before. */
  autoplay() {
    if (!hostFrame) return this.play(true);
    this.watch = new IntersectionObserver(([seen]) => seen.isIntersecting && this.play(true));
    this.watch.observe(byId("picture"));
  }

  play(playing) {
    this.watch?.disconnect();
    if (playing && this.frame >= this.recording.frames - 1) this.position = 0;
    const begins = playing && !this.playing;
    this.playing = playing;
    byId("play").textContent = playing ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
    if (begins) {
      this.before = null;
      this.draw();
      requestAnimationFrame((now) => this.advance(now));
    }
  }

  /** Advances by the time since the last call, at most 0.25 s: a hidden page does not play. */
  advance(now) {
    if (!this.playing) return;
    const seconds = this.before === null ? 0 : Math.min((now - this.before) / 1000, 0.25);
    const frame = this.frame;
    this.before = now;
    this.position += seconds * this.recording.about.fps * Number(byId("speed").value);
    if (this.position >= this.recording.frames - 1) {
      this.position = this.recording.frames - 1;
      this.play(false);
    }
    if (this.frame !== frame) this.draw();
    requestAnimationFrame((later) => this.advance(later));
  }

  /** Fits again if the available size changed: resizing the picture also triggers the observer. */
  fitIfResized() {
    if (this.room !== this.sizes()) this.fit();
  }

  /** Sets the iframe's height to the height of the page. */
  resizeHostFrame() {
    const edges = hostFrame.offsetHeight - hostFrame.clientHeight;
    hostFrame.style.height = `${document.documentElement.offsetHeight + edges}px`;
  }

  sizes() {
    return [byId("stage").clientWidth, hostFrame ? 0 : window.innerHeight, window.devicePixelRatio].join();
  }

  fit() {
    this.room = this.sizes();
    const stage = byId("stage");
    const rest = stage.offsetTop + stage.offsetHeight - this.picture.canvas.offsetHeight; // keeps the help in view
    const height = Math.max(220, hostFrame ? MAX_HEIGHT : window.innerHeight - rest - 28);
    this.picture.fit(this.replicas, { width: stage.clientWidth - 2, height });
    for (const chart of this.charts) chart.fit(this.replicas);
    this.draw();
  }

  draw() {
    const frame = this.frame;
    this.picture.draw(frame);
    for (const chart of this.charts) chart.draw(frame);
    byId("scrub").value = frame;
    byId("frame").textContent = `step ${frame} of ${this.recording.frames - 1}`;
    byId("status").textContent = this.status(frame);
  }

  status(frame) {
    const { last } = this.recording.about;
    if (this.replicas.length > 1) {
      const done = this.replicas.filter((replica) => frame > last[replica]).length;
      return `${this.replicas.length} replicas` + (done ? `, ${done} finished` : "");
    }
    const [replica] = this.replicas;
    const at = Math.min(frame, last[replica]);
    const ended = ["", "; it terminated", "; it was truncated"][this.recording.ends[replica][at]];
    return `${this.name(replica)}: step ${this.recording.lengths[replica][at]} of its episode${ended}`;
  }
}

function showFacts(facts) {
  for (const [name, value] of facts) {
    const row = document.createElement("div");
    for (const [kind, text] of [["dt", name], ["dd", value]]) {
      const cell = document.createElement(kind);
      const long = /^\d{13,}$/.test(text); // such as a seed: abbreviated, in full on hover
      cell.textContent = long ? `${text.slice(0, 4)}…${text.slice(-4)}` : text;
      if (long) cell.title = text;
      row.append(cell);
    }
    byId("facts").append(row);
  }
}

async function main() {
  try {
    const [about, bytes] = await unpack();
    showFacts(about.facts);
    matchOuterPage();
    byId("player").hidden = false;
    const player = new Player(new Recording(about, bytes));
    if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) player.autoplay();
  } catch (error) {
    byId("trouble").hidden = false;
    byId("trouble").textContent = `This page cannot be played here (${error.message}). Use a browser of 2023 or later.`;
    throw error;
  }
}

main();
