/* The player: pictures, charts and controls. */

const STATUS = ["running", "terminated", "truncated"];

/** Height of a line below a picture, in pixels; the same as in the style. */
const LINE = 18;

/** Return and status of a replica, below its picture. */
class Label {
  constructor(recording, replica) {
    Object.assign(this, { recording, replica });
    const { roles } = recording.about;
    this.returns = roles.map(() => document.createTextNode(""));
    this.episode = element("span", "episode");
    this.status = element("span");
    const values = roles.map(({ name, colour }, role) => {
      const value = element("span", roles.length > 1 ? "key" : "", element("span", "name", roles.length > 1 ? name : "return"));
      value.append(" ", this.returns[role]);
      value.style.setProperty("--colour", colour);
      return value;
    });
    const unseen = element("span", "unseen", `${replicaName(recording, replica)}: `);
    this.item = element("li", "", unseen, ...values, element("span", "status", this.episode, this.status));
  }

  place(left, top, width, height) {
    Object.entries({ left, top, width, height }).forEach(([name, value]) => (this.item.style[name] = `${value}px`));
  }

  show(frame) {
    const { recording, replica } = this;
    const status = recording.statusAt(replica, frame);
    recording.totals.forEach((totals, role) => (this.returns[role].data = formatted(totals[replica][frame])));
    this.episode.textContent = recording.severalEpisodes ? `episode ${recording.episodeAt(replica, frame)}: ` : "";
    this.status.textContent = STATUS[status];
    this.status.className = status ? "ended" : "";
  }

  get fits() {
    return this.item.scrollHeight <= this.item.clientHeight && this.item.scrollWidth <= this.item.clientWidth;
  }
}

/** Canvas with one replica, or with all replicas in a grid, and below each its return and status. */
class Picture {
  constructor(recording, canvas) {
    this.recording = recording;
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.labels = recording.byReplica((replica) => new Label(recording, replica));
  }

  /** Fits the canvas into the room, with an integer number of screen pixels per replica. */
  fit(replicas, room) {
    this.ratio = window.devicePixelRatio || 1;
    this.replicas = replicas;
    this.columns = Math.ceil(Math.sqrt(replicas.length));
    const list = byId("tiles");
    list.replaceChildren(...replicas.map((replica) => this.labels[replica].item));
    for (const label of this.labels) label.show(this.recording.frames - 1); // the longest texts
    const most = Math.max(2, this.recording.about.roles.length);
    for (let lines = 1; lines <= most + 2; lines++) {
      list.classList.toggle("brief", lines > most); // without names, in one line or two
      this.fitTiles(room, lines > most ? lines - most : lines);
      if (replicas.every((replica) => this.labels[replica].fits)) break;
    }
  }

  /** Sets the sizes and places of tiles with this number of lines of text. */
  fitTiles(room, lines) {
    const { size, gap } = this.recording.about.picture;
    const { ratio, columns } = this;
    const rows = Math.ceil(this.replicas.length / columns);
    this.strip = Math.round(lines * LINE * ratio);
    const across = (room.width * ratio - (columns - 1) * gap) / columns;
    const high = (room.height * ratio - (rows - 1) * gap) / rows - this.strip;
    this.width = Math.max(1, Math.floor(Math.min(across, (high * size[0]) / size[1])));
    this.height = Math.max(1, Math.round((this.width * size[1]) / size[0]));
    this.canvas.width = columns * (this.width + gap) - gap;
    this.canvas.height = rows * (this.height + this.strip + gap) - gap;
    this.canvas.style.width = `${this.canvas.width / ratio}px`;
    this.canvas.style.height = `${this.canvas.height / ratio}px`;
    byId("screen").style.width = `${this.canvas.width / ratio + 2}px`; // with the border
    this.replicas.forEach((replica, index) => {
      const [left, top] = this.corner(index).map((at) => at / ratio + 1);
      this.labels[replica].place(left, top + this.height / ratio, this.width / ratio, this.strip / ratio);
    });
  }

  corner(index) {
    const { gap } = this.recording.about.picture;
    const row = Math.floor(index / this.columns);
    return [(index % this.columns) * (this.width + gap), row * (this.height + this.strip + gap)];
  }

  draw(frame) {
    this.context.fillStyle = this.recording.about.picture.gapShade;
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.replicas.forEach((replica, index) => {
      const [left, top] = this.corner(index);
      const { width, height, ratio } = this;
      this.recording.draw(this.context, replica, frame, { left, top, width, height, ratio });
      this.labels[replica].show(frame);
    });
  }

  /** Returns the replica under the pointer, or undefined. */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.canvas.width;
    const y = ((event.clientY - box.top) / box.height) * this.canvas.height;
    return this.replicas.find((_, index) => {
      const [left, top] = this.corner(index);
      return x >= left && x < left + this.width && y >= top && y < top + this.height + this.strip;
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

/** Width of the slider's thumb in pixels; the same as in the style. */
const THUMB = 16;

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
    const { picture, roles, state, omitted } = recording.about;
    if (picture) this.picture = new Picture(recording, byId("picture"));
    byId("player").classList.toggle("plain", !picture);
    for (const part of document.querySelectorAll("#screen, .pictures")) part.hidden = !picture;
    for (const [name, colour] of picture?.legend ?? []) {
      byId("legend").append(element("span", "key", name));
      byId("legend").lastChild.style.setProperty("--colour", colour);
    }
    const drawn = (chart, place) => new Chart(recording, chart, byId(place), (frame) => this.seek(frame));
    byId("measured").hidden = !recording.metrics.length;
    byId("state").hidden = !state;
    byId("omitted").textContent = omitted?.length ? `Without a chart: ${omitted.join(", ")}.` : "";
    this.charts = [
      ...roles.map((role, i) => drawn(ofRole(recording, role, i), "charts")),
      ...recording.metrics.map((chart) => drawn(chart, "metrics")),
      ...recording.state.map((chart) => drawn(chart, "fields")),
    ];
    for (const times of [0.1, 0.25, 0.5, 1, 2, 4, 8]) {
      const name = `${formatted(times * recording.about.fps)} steps/s`;
      byId("speed").append(new Option(name, times, times === 1, times === 1));
    }
    byId("scrub").max = recording.frames - 1;
    byId("replica").append(new Option(`all ${this.all.length}`, "all"));
    for (const replica of this.all) byId("replica").append(new Option(replicaName(recording, replica), replica));
    if (this.all.length === 1) for (const alone of document.querySelectorAll(".several")) alone.hidden = true;
    this.listen();
    this.fit();
  }

  get frame() {
    return Math.floor(this.position);
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
    byId("status").setAttribute("aria-live", playing ? "off" : "polite");
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
    const [main, stage, screen, help, scrub] = ["player", "stage", "screen", "help", "scrub"].map(byId);
    const rest = main.offsetTop + stage.offsetHeight - screen.offsetHeight + help.offsetHeight; // keeps the help in view
    const height = Math.max(220, hostFrame ? MAX_HEIGHT : window.innerHeight - rest - 28);
    this.picture?.fit(this.replicas, { width: stage.clientWidth - 2, height });
    const left = Math.max(...this.charts.map((chart) => chart.labelWidth()));
    for (const chart of this.charts) chart.fit(this.replicas, left);
    scrub.style.marginLeft = `${1 + left - THUMB / 2}px`; // 1: the chart's border
    scrub.style.width = `${this.charts[0].width - left - RIGHT + THUMB}px`;
    this.draw();
  }

  draw() {
    const frame = this.frame;
    const step = `step ${frame} of ${this.recording.frames - 1}`;
    this.picture?.draw(frame);
    for (const chart of this.charts) chart.draw(frame);
    byId("scrub").value = frame;
    byId("scrub").setAttribute("aria-valuetext", step);
    byId("frame").textContent = step;
    byId("status").textContent = this.status(frame);
  }

  /** Returns a sentence about the replicas, and one about ended episodes. */
  status(frame) {
    const { recording, replicas } = this;
    const ended = this.endedEpisodes(frame);
    if (replicas.length > 1) {
      const numbers = STATUS.map((name, status) => [name, replicas.filter((r) => recording.statusAt(r, frame) === status).length]);
      const counts = numbers.filter(([, number]) => number).map(([name, number]) => `${number} ${name}`);
      return `${replicas.length} replicas: ${counts.join(", ")}.${ended}`;
    }
    const [replica] = replicas;
    const at = Math.min(frame, recording.about.last[replica]);
    const status = STATUS[recording.statusAt(replica, frame)];
    return `${replicaName(recording, replica)}, step ${recording.lengths[replica][at]} of its episode: ${status}.${ended}`;
  }

  endedEpisodes(frame) {
    const { roles } = this.recording.about;
    const returns = roles.map((_, role) => this.recording.finished(role, this.replicas, frame));
    const count = returns[0].length;
    if (!count) return "";
    const values = returns.map((all, role) => formatted(mean(all)) + (roles.length > 1 ? ` (${roles[role].name})` : ""));
    const whose = count > 1 ? `Mean return of ${count} ended episodes` : "Return of 1 ended episode";
    return ` ${whose}: ${values.join(", ")}.`;
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
