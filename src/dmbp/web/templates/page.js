"use strict";
// The page asks one address, api/ask, and draws the evidence itself. Texts of others (names of files and
// classes) only ever become text nodes.

const $ = id => document.getElementById(id);
const made = (name, values = {}, ...inside) => {
  const element = Object.assign(document.createElement(name), values);
  element.append(...inside);
  return element;
};
const SVG = "http://www.w3.org/2000/svg";
const drawn = (name, attributes, ...inside) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...inside);
  return element;
};
const percent = (value, decimals = 0) => `${(100 * value).toFixed(decimals)}%`;
const size = value => Math.abs(value).toPrecision(2);
const signed = value => (Math.abs(value) < 5e-5 ? "0" : (value < 0 ? "−" : "+") + size(value));
const number = value => value.toFixed(1).replace("-", "−");
const CONTROL = [47, 194, 149];

let model = null; // what the server says about the model
let photos = []; // {digest, name, record, file}: those of the strip
let photo = null; // the one that is shown
let shown = null; // its explanation, decoded
let running = null; // the AbortController of what the status line is about
let explaining = null; // what stands for the latest explanation that was asked for
let methodsRun = null; // that of all methods that run, and how many do
let methodsLeft = 0;

// ---------------------------------------------------------------- asking

class Failure extends Error {}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [, name, data] = /^event: (\w+)\ndata: ([^]*)$/.exec(part);
      yield [name, JSON.parse(data)];
    }
  }
}

const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

// Sends an ask; with the photo if the server does not know it, and again if the server is busy. The server
// keeps the turn of whoever sends the same again.
async function send(values, { accept, signal, tell, file, isNew = false }) {
  const line = JSON.stringify(values);
  let body = isNew ? new Blob([line, "\n", file]) : line;
  for (;;) {
    const response = await fetch("api/ask", { method: "POST", headers: { accept }, body, signal });
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    if (response.status === 404 && file && typeof body === "string") {
      body = new Blob([line, "\n", file]);
    } else if (response.status === 503) {
      const seconds = answer.retry_after || 2;
      const queue = answer.before ? `: ${answer.before} before you in the queue` : "";
      tell?.({ doing: `the server is busy${queue}; your turn is kept, asking again in ${seconds} s` });
      await pause(seconds, signal);
    } else {
      throw new Failure(answer.error || `the server answers with status ${response.status}`);
    }
  }
}

async function ask(values, { signal, tell, file }) {
  const response = await send(values, { accept: "text/event-stream", signal, tell, file });
  if (!response.headers.get("content-type").startsWith("text/event-stream")) return response.json();
  for await (const [name, data] of events(response)) {
    if (name === "done") return data;
    if (name === "failed") throw new Failure(data.error);
    if (name === "position" && data.before) tell?.({ doing: `waiting: ${data.before} before you in the queue` });
    if (name === "position" && !data.before) tell?.({ doing: "computing" });
    if (name === "progress") tell?.(data);
  }
  throw new Failure("the connection to the server has ended");
}

// Runs one thing at a time with the status line; a newer one cancels it.
async function busy(doing, work) {
  running?.abort();
  const control = (running = new AbortController());
  const tell = data => {
    if (running !== control) return;
    $("doing").textContent = data.doing;
    if (data.of) $("progress").value = data.step / data.of;
    else $("progress").removeAttribute("value");
  };
  $("error").hidden = true;
  $("status").hidden = false;
  tell({ doing });
  try {
    return await work({ signal: control.signal, tell });
  } catch (error) {
    if (error.name !== "AbortError" && running === control) fail(error);
    return null;
  } finally {
    if (running === control) {
      running = null;
      $("status").hidden = true;
    }
  }
}

function fail(error) {
  $("error").textContent = error instanceof Failure ? error.message : "The server cannot be reached. Does dmbp serve still run?";
  $("error").hidden = false;
}

$("cancel").addEventListener("click", () => running?.abort());

// ---------------------------------------------------------------- photos

function drawStrip() {
  $("strip").replaceChildren(...photos.map(item => made("li", {}, Object.assign(
    made("button", { type: "button", title: item.name, onclick: () => show(item) },
      made("img", { src: item.record.view, alt: "" }), made("span", { textContent: item.name })),
    { ariaPressed: String(item === photo) }))));
}

// Opens all photos, and explains the first; those that cannot be opened do not keep the others back.
async function add(files) {
  const opened = [], refused = [];
  for (const file of files) {
    const values = { kind: "open", name: (file.name || "pasted photo").slice(-200) };
    const record = await busy(`opening ${file.name || "the photo"}`, async options =>
      (await send(values, { accept: "application/json", ...options, file, isNew: true })).json());
    if (record) {
      let item = photos.find(known => known.digest === record.digest);
      if (!item) photos.push(item = { digest: record.digest, name: record.name, record, file });
      opened.push(item);
      drawStrip();
    } else if ($("error").hidden) {
      break; // cancelled, or something else was asked meanwhile
    } else {
      refused.push($("error").textContent);
    }
  }
  if (opened.length) await show(opened[0]);
  if (refused.length) fail(new Failure(refused.join(" – ")));
}

async function show(item, target = item.record.target ?? null, others = []) {
  photo = item;
  drawStrip();
  if (shown?.digest !== item.digest) await unexplained(item);
  $("verdict").textContent = `The model looked at “${item.name}” (${item.record.size[0]} × ${item.record.size[1]} pixels) and ${item.record.verdict}.`;
  $("independent").hidden = !item.record.independent;
  drawClasses(target, others);
  await explain(target, others);
}

const choosing = event => { add([...event.target.files]); event.target.value = ""; };
$("choose").addEventListener("change", choosing);
$("take").addEventListener("change", choosing);
addEventListener("paste", event => {
  const files = [...event.clipboardData.files];
  if (files.length) add(files);
});
addEventListener("dragover", event => { event.preventDefault(); $("drop").hidden = false; });
addEventListener("dragleave", event => { if (!event.relatedTarget) $("drop").hidden = true; });
addEventListener("drop", event => {
  event.preventDefault();
  $("drop").hidden = true;
  const files = [...event.dataTransfer.files];
  if (files.length) add(files);
});

// ---------------------------------------------------------------- what is asked

function drawClasses(target, others) {
  const top = photo.record.top ?? [];
  const wanted = String(target ?? top[0]?.index).toLowerCase();
  $("top").replaceChildren(...top.map((entry, index) => {
    const button = made("button", { type: "button", onclick: () => explain(entry.name, []) },
      made("span", { textContent: entry.name }), made("span", { textContent: percent(entry.probability) }),
      drawn("svg", { viewBox: "0 0 100 5", preserveAspectRatio: "none", "aria-hidden": "true" },
        drawn("rect", { width: 100, height: 5 }), drawn("rect", { width: 100 * entry.probability, height: 5 })));
    const isAsked = [entry.name.toLowerCase(), String(entry.index)].includes(wanted) || (target === null && index === 0);
    button.ariaPressed = String(isAsked);
    return made("li", {}, button);
  }));
  $("target").value = target ?? "";
  $("other").value = others.join(", ");
}

$("question").addEventListener("submit", event => {
  event.preventDefault();
  if (!photo) return;
  const target = $("target").value.trim() || null;
  const other = $("other").value.trim();
  const names = (model.classes ?? []).map(name => name.toLowerCase());
  const others = !other ? [] : names.includes(other.toLowerCase()) ? [other] : other.split(",").map(name => name.trim()).filter(Boolean);
  explain(target, others);
});

const question = () => ({ photo: photo.digest, name: photo.name, target: shown.target, rather_than: shown.rather_than });

async function explain(target, others) {
  const item = photo, mine = (explaining = {});
  stopMethods();
  drawClasses(target, others);
  const values = { kind: "explain", photo: item.digest, name: item.name, target, rather_than: others };
  document.body.classList.add("stale");
  const answer = await busy("asking the server", options => ask(values, { ...options, file: item.file }));
  if (explaining !== mine || photo !== item) return; // another one is on its way
  document.body.classList.remove("stale");
  if (answer) await present(answer);
  else if (shown) drawClasses(shown.target, shown.rather_than);
}

// ---------------------------------------------------------------- the explanation

const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));

function pixels(url, width, height) {
  return new Promise(resolve => {
    const image = new Image();
    image.onload = () => {
      const canvas = made("canvas", { width, height });
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0, width, height);
      resolve(context.getImageData(0, 0, width, height).data);
    };
    image.src = url;
  });
}

// Shows a photo before it is explained, and nothing of the one before it.
async function unexplained(item) {
  shown = null;
  delete document.body.dataset.shown;
  const image = made("img", { src: item.record.view });
  await image.decode();
  if (photo !== item) return;
  Object.assign($("picture"), { width: image.naturalWidth, height: image.naturalHeight });
  $("picture").getContext("2d").drawImage(image, 0, 0);
  $("picture").setAttribute("aria-label", `the photo ${item.name}, not explained yet`);
  $("picture-title").textContent = "Not explained yet";
  for (const place of document.querySelectorAll("[data-target-name]")) place.textContent = "the class";
  for (const id of ["sentence", "changed", "curve", "numbers", "sanity-result", "command", "python", "link"]) $(id).replaceChildren();
  drawMethods();
  resetControls();
}

function resetControls() {
  $("ask").disabled = $("clear").disabled = true;
  $("painted").textContent = "nothing painted";
  $("region").replaceChildren(made("p", { textContent: "Paint over something: the model is then asked about the photo without it." }));
  $("readout").textContent = "Point at a part of the picture, or touch it, to see what it is worth.";
  $("cursor").removeAttribute("data-on");
}

async function present(answer) {
  const [height, width] = answer.size;
  const worth = new Float32Array(bytes(answer.worth).buffer);
  const order = Uint32Array.from(worth.keys()).sort((a, b) => worth[b] - worth[a] || a - b);
  const rank = new Uint32Array(worth.length);
  order.forEach((place, index) => { rank[place] = index; });
  const item = photo;
  const [original, blurred] = await Promise.all([pixels(item.record.view, width, height), pixels(answer.blurred, width, height)]);
  if (photo !== item) return;
  shown = { ...answer, width, height, worth, rank, original, blurred,
    strength: new Int8Array(bytes(answer.strength).buffer), painted: new Uint8Array(worth.length) };
  Object.assign($("picture"), { width, height });
  $("cursor").setAttribute("viewBox", `0 0 ${width} ${height}`);
  cursor = { x: width >> 1, y: height >> 1 };
  $("picture-title").textContent = `For and against: ${answer.label}`;
  $("picture").setAttribute("aria-label", `the photo ${answer.photo} with evidence for and against ${answer.name}. ${answer.sentence}`);
  for (const place of document.querySelectorAll("[data-target-name]")) place.textContent = answer.name;
  $("sentence").textContent = answer.sentence;
  $("changed").replaceChildren(...answer.changed.map(changed => made("figure", {},
    made("div", { className: "stage" }, made("img", { src: changed.picture, alt: changed.title }),
      drawn("svg", { viewBox: `-0.5 -0.5 ${width} ${height}`, "aria-hidden": "true" },
        ...changed.outlines.map(points => drawn("polygon", { points, stroke: changed.colour })))),
    made("figcaption", { textContent: changed.title }))));
  const exact = answer.exactness < 1e-4 ? "exactly" : "approximately";
  const hasBlue = answer.worth_against > 0.005;
  const blue = hasBlue ? `, and without all blue it rises by ${size(answer.worth_against)}` : "";
  const worths = answer.worth_for === null ? "" : ` Without all red it falls by ${size(answer.worth_for)}${blue}.`;
  $("no-blue").hidden = shown.strength.some(value => value < 0);
  $("numbers").textContent = `The score is ${number(answer.score)}: ${answer.score_words}.${worths} ` +
    `The explanation reproduces the model's own output ${exact}. It took ${answer.seconds} s${answer.together > 1 ? `, together with ${answer.together - 1} other${answer.together > 2 ? "s" : ""}` : ""}.`;
  $("sanity-result").replaceChildren();
  $("command").textContent = answer.command;
  $("python").textContent = answer.python;
  const fragment = new URLSearchParams({ photo: answer.digest });
  if (answer.target !== null) fragment.set("target", answer.target);
  for (const other of answer.rather_than) fragment.append("other", other);
  history.replaceState(null, "", `#${fragment}`);
  $("link").textContent = location.href;
  resetControls();
  drawMethods();
  draw();
  drawCurve();
  document.body.dataset.shown = `${answer.digest} ${answer.name}`;
}

const mode = () => document.querySelector("[name=mode]:checked").value;
const FRAMES = 28;

function draw() {
  if (!shown) return;
  const { width, height, original, blurred, strength, rank, painted } = shown;
  const context = $("picture").getContext("2d");
  const image = context.createImageData(width, height);
  const out = image.data, ramp = model.ramp;
  const now = mode();
  const mix = now === "evidence" ? $("mix").value / 100 : 0;
  const least = now === "evidence" ? 1.27 * $("threshold").value : 0;
  const red = $("red").checked, blue = $("blue").checked;
  const filled = Math.round((rank.length * $("scrub").value) / FRAMES);
  for (let place = 0, at = 0; place < rank.length; place++, at += 4) {
    let value = strength[place];
    if ((value > 0 && !red) || (value < 0 && !blue) || Math.abs(value) < least) value = 0;
    const opacity = Math.sqrt(Math.abs(value) / 127);
    const shade = 3 * Math.round(127.5 + (127.5 * value) / 127);
    const grey = (original[at] + original[at + 1] + original[at + 2]) / 3;
    const pale = 255 - model.faint * (255 - grey);
    for (let channel = 0; channel < 3; channel++) {
      let level = original[at + channel];
      if (now === "film" && rank[place] >= filled) level = blurred[at + channel];
      if (now === "paint" && painted[place]) level = 0.35 * level + 0.65 * CONTROL[channel];
      const evidence = opacity * ramp[shade + channel] + (1 - opacity) * pale;
      out[at + channel] = mix * evidence + (1 - mix) * level;
    }
    out[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

for (const id of ["mix", "threshold", "red", "blue"]) $(id).addEventListener("input", draw);
for (const choice of document.querySelectorAll("[name=mode]")) {
  choice.addEventListener("change", () => {
    for (const part of document.querySelectorAll("[data-mode]")) part.hidden = part.dataset.mode !== mode();
    $("picture").classList.toggle("painting", mode() === "paint");
    if (shown) $("circle").setAttribute("r", radius());
    draw();
    drawCurve();
  });
}

// ---------------------------------------------------------------- the film and its curve

function drawCurve() {
  if (!shown) return;
  const { values, in_percent, title, score } = shown.curve;
  const low = in_percent ? 0 : Math.min(...values), high = in_percent ? 1 : Math.max(...values);
  const x = index => 46 + (400 * index) / (values.length - 1);
  const y = value => 10 + (140 * (high - value)) / (high - low || 1);
  const label = value => (in_percent ? percent(value) : value.toFixed(1));
  const at = mode() === "film" ? Number($("scrub").value) : null;
  $("frame").textContent = `${percent($("scrub").value / FRAMES)} filled: model says ${label(values[$("scrub").value])}`;
  $("curve").replaceChildren(
    drawn("svg", { viewBox: "0 0 460 190", role: "img", "aria-label": `${title} as pixels are filled in` },
      drawn("line", { x1: 46, y1: 10, x2: 46, y2: 150, class: "axis" }),
      drawn("line", { x1: 46, y1: 150, x2: 446, y2: 150, class: "axis" }),
      drawn("text", { x: 41, y: 15, class: "end" }, label(high)), drawn("text", { x: 41, y: 152, class: "end" }, label(low)),
      drawn("text", { x: 46, y: 166 }, "0"), drawn("text", { x: 446, y: 166, class: "end" }, "all"),
      drawn("text", { x: 246, y: 182, class: "middle" }, "pixels filled in, strongest first"),
      ...(at === null ? [] : [drawn("line", { x1: x(at), y1: 10, x2: x(at), y2: 150, class: "mark" })]),
      drawn("polyline", { points: values.map((value, index) => `${x(index)},${y(value)}`).join(" "), class: "line" })),
    made("figcaption", { className: "fine", textContent: `${title} as the strongest pixels are put into the blurred photo. Insertion score ${score.toFixed(3)}.` }));
}

$("scrub").addEventListener("input", () => { draw(); drawCurve(); });
let playing = null;
$("play").addEventListener("click", () => {
  const stop = () => { clearInterval(playing); playing = null; $("play").textContent = "Play"; };
  if (playing) return stop();
  $("play").textContent = "Stop";
  $("scrub").value = 0;
  playing = setInterval(() => {
    $("scrub").value = Number($("scrub").value) + 1;
    draw();
    drawCurve();
    if (Number($("scrub").value) >= FRAMES || mode() !== "film") stop();
  }, 140);
  draw();
  drawCurve();
});

// ---------------------------------------------------------------- the pixel under the pointer, and the brush

let cursor = { x: 0, y: 0 };

function around(x, y, radius, visit) {
  const { width, height } = shown;
  for (let row = Math.max(0, Math.ceil(y - radius)); row <= Math.min(height - 1, y + radius); row++) {
    for (let column = Math.max(0, Math.ceil(x - radius)); column <= Math.min(width - 1, x + radius); column++) {
      if ((row - y) ** 2 + (column - x) ** 2 <= radius ** 2) visit(row * width + column);
    }
  }
}

const radius = () => (mode() === "paint" ? ($("brush").value / 200) : 0.05) * Math.max(shown.width, shown.height);

function read(x, y) {
  if (!shown) return;
  cursor = { x, y };
  for (const [name, value] of Object.entries({ cx: x + 0.5, cy: y + 0.5, r: radius() })) $("circle").setAttribute(name, value);
  $("cursor").dataset.on = "";
  let sum = 0;
  around(x, y, radius(), place => { sum += shown.worth[place]; });
  const place = y * shown.width + x;
  const says = Math.abs(sum) <= 0.005 * Math.abs(shown.score) ? "hardly matters for" : sum > 0 ? "speaks for" : "speaks against";
  $("readout").textContent = `The circle ${says} ${shown.name}: ${signed(sum)}, where the score is ${number(shown.score)}. ` +
    `Its middle, pixel ${x}, ${y}: ${signed(shown.worth[place])}.`;
}

function paint(x, y) {
  around(x, y, radius(), place => { shown.painted[place] = 1; });
  let count = 0;
  for (const value of shown.painted) count += value;
  $("painted").textContent = `${percent(count / shown.painted.length)} painted`;
  $("ask").disabled = $("clear").disabled = false;
  draw();
}

function place(event) {
  const box = $("picture").getBoundingClientRect();
  const clamp = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value)));
  return [clamp(((event.clientX - box.left) / box.width) * shown.width, shown.width),
    clamp(((event.clientY - box.top) / box.height) * shown.height, shown.height)];
}

$("picture").addEventListener("pointerdown", event => {
  if (!shown) return;
  read(...place(event)); // a finger does not move before it touches
  if (mode() !== "paint") return;
  event.preventDefault();
  $("picture").setPointerCapture(event.pointerId);
  paint(...place(event));
});
$("picture").addEventListener("pointermove", event => {
  if (!shown) return;
  $("readout").setAttribute("aria-live", "off");
  read(...place(event));
  if (mode() === "paint" && event.buttons) paint(...place(event));
});
$("picture").addEventListener("pointerleave", event => {
  if (event.pointerType === "mouse") $("cursor").removeAttribute("data-on");
});
$("picture").addEventListener("keydown", event => {
  if (!shown) return;
  const step = event.shiftKey ? 1 : Math.max(1, Math.round(shown.width / 40));
  const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
  if (moves[event.key]) {
    event.preventDefault();
    $("readout").setAttribute("aria-live", "polite");
    read(Math.min(shown.width - 1, Math.max(0, cursor.x + moves[event.key][0])),
      Math.min(shown.height - 1, Math.max(0, cursor.y + moves[event.key][1])));
  } else if (event.key === " " && mode() === "paint") {
    event.preventDefault();
    paint(cursor.x, cursor.y);
  }
});
$("clear").addEventListener("click", () => {
  shown.painted.fill(0);
  $("ask").disabled = $("clear").disabled = true;
  $("painted").textContent = "nothing painted";
  draw();
});
$("ask").addEventListener("click", async () => {
  const packed = new Uint8Array(Math.ceil(shown.painted.length / 8));
  let sum = 0;
  shown.painted.forEach((value, index) => {
    if (value) { packed[index >> 3] |= 128 >> (index & 7); sum += shown.worth[index]; }
  });
  const region = btoa(String.fromCharCode(...packed));
  const answer = await busy("asking the model without the painted part", options =>
    ask({ kind: "region", ...question(), region }, { ...options, file: photo.file }));
  if (!answer) return;
  const value = found => (answer.in_percent ? `${percent(found.value, 1)} (score ${number(found.score)})` : number(found.score));
  const change = answer.without.score - answer.whole.score;
  const falls = change < 0 ? "falls" : "rises";
  const rows = [["The whole photo", answer.whole], ["Without what you painted: blurred", answer.without],
    ["Without what you painted: filled with the mean colour", answer.mean], ["The same pattern elsewhere, blurred", answer.elsewhere]];
  $("region").replaceChildren(
    made("p", { className: "sentence", textContent: `Without the painted ${percent(answer.share)}, ${answer.name} ${falls} from ${value(answer.whole)} to ${value(answer.without)}.` }),
    made("table", {}, made("tbody", {}, ...rows.map(([name, found]) => made("tr", {}, made("th", { scope: "row", textContent: name }), made("td", { textContent: value(found) }))))),
    made("p", { className: "fine", textContent: `By the sum of its pixels in the map, it is worth ${signed(sum)} of the score.` }));
});

// ---------------------------------------------------------------- sanity, methods, files

$("sanity").addEventListener("click", async () => {
  if (!shown) return;
  const answer = await busy("asking about models whose last layer is random", options =>
    ask({ kind: "sanity", ...question() }, { ...options, file: photo.file }));
  if (!answer) return;
  $("sanity-result").replaceChildren(
    made("p", { textContent: `The last layer was replaced by a random one, ${answer.draws} times: the map ${answer.verdict}. ` +
      `Rank correlation ${answer.mean.toFixed(2)}; at 1 the map stays the same, and shows nothing of what the last layer has learned; at 0 it is unrelated.` }),
    made("div", { className: "pair" },
      made("figure", {}, made("img", { src: answer.before, alt: "map of the model" }), "this model"),
      made("figure", {}, made("img", { src: answer.after, alt: "map of a model with a random last layer" }), "random last layer")));
});

const duration = seconds => (seconds < 100 ? `${seconds < 10 ? Math.ceil(seconds) : 5 * Math.round(seconds / 5)}\u00a0s` : `${Math.round(seconds / 60)}\u00a0min`);
const SLOW = 3;
const takes = ({ seconds }) => (seconds < SLOW ? "" : `, takes about ${duration(seconds)}${seconds > model.limit ? `; this server stops after ${duration(model.limit)}` : ""}`);

// The server lists methods in the order of what they take.
const methodsOf = isFirst => model.methods.filter(method => method.first === isFirst);

function drawMethods() {
  for (const [group, isFirst] of [["first", true], ["rest", false]]) {
    const found = methodsOf(isFirst);
    const total = found.reduce((sum, method) => sum + method.seconds, 0);
    $(`run-${group}`).textContent = `Run these ${found.length} (about ${duration(total)})`;
    $(`methods-${group}`).replaceChildren(...found.map(method => {
      const run = made("button", { type: "button", textContent: "Run", ariaLabel: `run ${method.title}`, onclick: () => runMethods([method.name]) });
      const card = made("li", {}, made("h3", { textContent: method.title }), made("div", { className: "blank" }, run),
        made("p", { className: "fine", textContent: `not run yet${takes(method)}` }));
      card.dataset.method = method.name;
      return card;
    }));
  }
  document.querySelector("#more-methods summary").textContent = `${methodsOf(false).length} more methods`;
  stopMethods();
}

function stopMethods() {
  methodsRun?.abort();
  methodsRun = null;
  methodsLeft = 0;
  $("stop-all").hidden = true;
  for (const group of ["first", "rest"]) {
    $(`run-${group}`).disabled = false;
    $(`run-${group}`).hidden = !$(`methods-${group}`).querySelector(".blank");
  }
}

async function runMethods(names) {
  if (!shown) return;
  const control = (methodsRun ??= new AbortController());
  methodsLeft += names.length;
  const asked = question(), file = photo.file;
  $("stop-all").hidden = false;
  $("run-first").disabled = $("run-rest").disabled = true;
  const cards = names.map(name => [name, $("panel-methods").querySelector(`[data-method="${name}"]`)]);
  const say = (card, text) => { card.querySelector("p").textContent = text; };
  const expected = name => takes(model.methods.find(method => method.name === name));
  for (const [name, card] of cards) if (!card.querySelector("img")) say(card, `waiting${expected(name)}`);
  for (const [name, card] of cards) {
    if (control.signal.aborted) { say(card, "not run"); continue; }
    try {
      if (card.querySelector("img")) continue;
      const tell = data => say(card, data.doing.startsWith("waiting") || data.doing.includes("busy") ? data.doing : `running …${expected(name)}`);
      const answer = await ask({ kind: "method", ...asked, method: name }, { signal: control.signal, tell, file });
      card.querySelector(".blank, img").replaceWith(made("img", { src: answer.picture, alt: `map of ${answer.title}` }));
      card.querySelector("h3").textContent = answer.title;
      say(card, `insertion ${answer.score.toFixed(3)}, ${answer.seconds.toFixed(2)}\u00a0s${answer.blank ? "; the map is blank" : ""}`);
    } catch (error) {
      say(card, error.name === "AbortError" ? "stopped" : error instanceof Failure ? error.message : "the server cannot be reached");
    } finally {
      if (methodsRun === control && --methodsLeft === 0) stopMethods();
    }
  }
}

for (const [group, isFirst] of [["first", true], ["rest", false]]) {
  $(`run-${group}`).addEventListener("click", () => runMethods(methodsOf(isFirst).map(method => method.name)));
}
$("stop-all").addEventListener("click", stopMethods);

for (const button of document.querySelectorAll("[data-file]")) {
  button.addEventListener("click", async () => {
    if (!shown) return;
    await busy("making the file", async options => {
      const response = await send({ kind: "file", ...question(), file: button.dataset.file }, { accept: "*/*", ...options, file: photo.file });
      const name = decodeURIComponent(/filename\*=UTF-8''(.*)/.exec(response.headers.get("content-disposition"))[1]);
      const link = made("a", { href: URL.createObjectURL(await response.blob()), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
  });
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText($(button.dataset.copy).textContent);
    $("copied").textContent = "Copied.";
  });
}

// ---------------------------------------------------------------- tabs, and the beginning

const tabs = [...document.querySelectorAll("[role=tab]")];
function openTab(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
}
tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => openTab(tab));
  tab.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    openTab(next);
    next.focus();
  });
});

async function openLink() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const digest = wanted.get("photo");
  if (!digest) return false;
  let item = photos.find(known => known.digest === digest);
  if (!item) {
    const record = await busy("opening the linked photo", options => ask({ kind: "open", photo: digest }, options));
    if (!record) return false;
    photos.push(item = { digest, name: record.name, record, file: null });
  }
  await show(item, wanted.get("target"), wanted.getAll("other"));
  return true;
}
addEventListener("hashchange", openLink);

async function begin() {
  const response = await fetch("api/model");
  model = await response.json();
  $("model").textContent = model.model;
  for (const name of model.classes ?? []) {
    $("classes").append(made("option", { value: name }));
    $("others").append(made("option", { value: name }));
  }
  $("others").prepend(made("option", { value: "rivals" }));
  photos = model.samples.map(record => ({ digest: record.digest, name: record.name, record, file: null }));
  drawStrip();
  drawMethods();
  if (!(await openLink()) && photos.length) await show(photos[0]);
  else if (!photos.length) $("picture-title").textContent = "Drop a photo to begin";
}
begin().catch(fail);
