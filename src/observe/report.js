'use strict';
/* The charts of report.html and compare.html. The page holds their data as JSON (src/observe/report_chart.c writes it):
 *
 *   {"runs": [{"name": "a", "starts": [0, 20], "axis": {"step": [..], "tokens": [..], "time": [..]},
 *              "series": {"loss": [[step..], [value..]]},
 *              "forks": [{"step": 12, "skip": [15, 17], "why": "..", "loss": [[step..], [value..]]}]}]}
 *
 * axis says which tokens and which second of training belong to a step. A series that was thinned has two more
 * columns: [[step..], [mean..], [lowest..], [highest..]] of each interval.
 *
 * All charts share the range of x, the pointer and the controls above them. */

/* line: faint as recorded, bold smoothed. dots: a line with a dot per value. map: computed from the recorded value.
 * zero: a linear axis begins at 0. A panel without values is not drawn. */
const PANELS = [
  {title: 'Loss', unit: 'nats per token', line: 'loss', dots: 'val_loss', wide: true},
  {title: 'Loss above the first', unit: 'nats, paired by step', line: 'above'},
  {title: 'Validation perplexity', unit: '', dots: 'val_loss', map: Math.exp},
  {title: 'Validation accuracy', unit: 'share of tokens', dots: 'val_accuracy'},
  {title: 'Validation bits per byte', unit: '', dots: 'val_bpb'},
  {title: 'Learning rate', unit: '', line: 'lr', plain: true, zero: true},
  {title: 'Gradient norm', unit: 'before clipping', line: 'grad_norm', zero: true},
  {title: 'Throughput', unit: 'tokens/s', line: 'tokens_per_s', zero: true},
  {title: 'Step time', unit: 'seconds', line: 'step_s', zero: true},
  {title: 'Model FLOPs utilization', unit: 'share of the peak', line: 'mfu', zero: true},
  {title: 'Tensor cores', unit: 'share of the time, mean of the GPUs', line: 'gpu_tensor', zero: true},
  {title: 'GPU memory bandwidth', unit: 'share, mean of the GPUs', line: 'gpu_dram', zero: true},
  {title: 'Host memory', unit: 'resident', line: 'rss_bytes', plain: true, zero: true, bytes: true},
  {title: 'GPU memory', unit: 'in use, of the fullest GPU', line: 'gpu_memory', plain: true, zero: true, bytes: true},
  {title: 'Power of the GPUs', unit: 'W, of the first host', line: 'gpu_watts', zero: true},
  {title: 'Clock', unit: 'MHz, of the slowest GPU', line: 'gpu_mhz', zero: true},
  {title: 'Temperature', unit: 'C, of the hottest GPU', line: 'gpu_celsius'},
  {title: 'Throttled GPUs', unit: 'by heat or power brake', line: 'gpu_throttled', zero: true},
  {title: 'Free host memory', unit: 'available', line: 'host_available', plain: true, zero: true, bytes: true},
  {title: 'Free disk', unit: 'where the run is written', line: 'host_disk_free', plain: true, zero: true, bytes: true},
  {title: 'Waiting for data', unit: 'seconds per step', line: 'data_wait_s', zero: true},
  {title: 'Busiest expert', unit: 'rows / the mean', line: 'load_max'},
  {title: 'Least busy expert', unit: 'rows / the mean', line: 'load_min', zero: true},
  {title: 'Dropped by capacity', unit: 'share of slots', line: 'moe_dropped', zero: true},
  {title: 'Balance loss', unit: 'all routers', line: 'aux_loss'},
  {title: 'Multi-token prediction loss', unit: 'nats', line: 'mtp_loss'},
  {title: 'z-loss', unit: 'nats, beside the loss', line: 'z_loss'},
  {title: 'Halting loss', unit: 'nats', line: 'halt_loss'},
  {title: 'FP8: headroom of inputs', unit: 'binades below the largest code', dots: 'fp8_headroom_x', zero: true},
  {title: 'FP8: headroom of gradients', unit: 'binades below the largest code', dots: 'fp8_headroom_dy', zero: true},
  {title: 'FP8: tensors that saturate', unit: '', dots: 'fp8_saturated', zero: true},
  {title: 'Pipeline bubble', unit: 'idle share', line: 'bubble', zero: true},
  {title: 'Padding', unit: 'share of tokens', line: 'padding', zero: true},
];
const LEFT = 50, RIGHT = 10, TOP = 8, BOTTOM = 22;
const AXES = {step: 'step', tokens: 'tokens', time: 'training time'};

/* x: key of AXES. range: [low, high] of a zoom, in units of x; null: all. hover: an x; null: no pointer. */
const state = {x: 'step', logX: false, logY: false, smooth: 0.6, range: null, hover: null};

/* ---- arithmetic ---- */

/* The exponential moving average, with its start corrected: the first value is itself. */
function ema(values, weight) {
  let sum = 0, mass = 0;
  return values.map(v => {
    sum = weight * sum + (1 - weight) * v;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/* The index of the value nearest to x in an ascending list. */
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return x - xs[low] > xs[high] - x ? high : low;
}

/* The value at x of the line through (xs, ys); xs ascends. Constant beyond the ends. */
function interpolate(xs, ys, x) {
  let i = nearest(xs, x);
  if (xs[i] > x) i--;
  if (i < 0) return ys[0];
  if (i >= xs.length - 1) return ys[xs.length - 1];
  return ys[i] + (ys[i + 1] - ys[i]) * (x - xs[i]) / (xs[i + 1] - xs[i]);
}

/* The least of 1, 2 or 5 times a power of ten that is not below x. */
function nice(x) {
  const power = 10 ** Math.floor(Math.log10(x)), part = x / power;
  return power * (part <= 1.0001 ? 1 : part <= 2.0001 ? 2 : part <= 5.0001 ? 5 : 10);
}

/* What a value is divided by for its label, and the letters behind it. */
function unitOf(most, kind) {
  const table = kind === 'time' ? [[172800, 86400, 'd'], [7200, 3600, 'h'], [120, 60, 'min'], [0, 1, 's']]
    : kind === 'bytes' ? [[2 ** 40, 2 ** 40, ' TiB'], [2 ** 30, 2 ** 30, ' GiB'], [0, 2 ** 20, ' MiB']]
      : [[1e12, 1e12, 'T'], [1e9, 1e9, 'B'], [1e6, 1e6, 'M'], [1e4, 1e3, 'k'], [0, 1, '']];
  const row = table.find(r => most >= r[0]) || table[table.length - 1];
  return {scale: row[1], text: row[2]};
}

/* A number as short as `digits` significant digits allow: 0.0003 is 3e-4. */
function short(v, digits) {
  if (v === 0) return '0';
  if (Math.abs(v) >= 1e-3 && Math.abs(v) < 1e6) return String(+v.toPrecision(digits));
  return v.toExponential(digits - 1).replace(/\.?0*e\+?/, 'e');
}
function format(v, kind, digits = 4) {
  const unit = unitOf(Math.abs(v), kind);
  return short(v / unit.scale, digits) + unit.text;
}

/* Values at which an axis from low to high has a line: about `count` of them. */
function ticks(low, high, count, log, kind) {
  const list = [];
  if (log) {
    const decades = Math.log10(high / low);
    const parts = decades > count ? [1] : decades > 1.5 ? [1, 3] : decades > 0.6 ? [1, 2, 5] : null;
    const every = Math.max(1, Math.ceil(decades / count));
    for (let p = Math.floor(Math.log10(low)); parts && p <= Math.log10(high); p++)
      for (const v of parts.map(part => part * 10 ** p))
        if (p % every === 0 && v >= low * 0.9999 && v <= high * 1.0001) list.push(v);
    if (list.length > 1) return list;
    list.length = 0;
  }
  const scale = unitOf(Math.max(Math.abs(low), Math.abs(high)), kind).scale;
  const step = nice((high - low) / scale / count) * scale;
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) list.push(k * step);
  return list;
}

/* The labels of such values: in one unit, with as many digits as tell them apart.
 * Over many decades each has its own. */
function labels(list, kind) {
  const most = Math.max(...list.map(Math.abs)), step = list.length > 1 ? list[1] - list[0] : most;
  if (list[0] > 0 && most / list[0] > 999) return list.map(v => format(v, kind));
  const digits = Math.min(15, Math.max(2, Math.ceil(Math.log10(most / step || 1)) + 1));
  const power = Math.floor(Math.log10(most));
  const unit = kind === '' && most > 0 && most < 0.01 ? {scale: 10 ** power, text: 'e' + power} : unitOf(most, kind);
  return list.map(v => v === 0 ? '0' : short(v / unit.scale, digits) + unit.text);
}

/* Pixels from values and back, between `from` and `to`. */
function scaleOf(low, high, from, to, log) {
  const f = log ? Math.log10 : v => v, back = log ? v => 10 ** v : v => v;
  const a = f(low), width = f(high) - a || 1;
  return {
    low, high, log,
    at: v => from + (f(v) - a) / width * (to - from),
    value: p => back(a + (p - from) / (to - from) * width),
  };
}

/* The range of y: all of what is bold, and 99 % of what is faint, so that one spike does not flatten a curve. */
function rangeOf(bold, faint, log, zero) {
  const all = bold.slice(), sorted = faint.slice().sort((a, b) => a - b), cut = Math.floor(sorted.length / 200);
  if (sorted.length) all.push(sorted[cut], sorted[sorted.length - 1 - cut]);
  let low = Infinity, high = -Infinity;
  for (const v of all) {
    if (!isFinite(v) || (log && v <= 0)) continue;
    low = Math.min(low, v);
    high = Math.max(high, v);
  }
  if (low > high) return null;
  if (log) return low < high ? [low / (high / low) ** 0.05, high * (high / low) ** 0.05] : [low / 2, high * 2];
  if (zero && low >= 0) return [0, high * 1.05 || 1];
  const same = high - low <= 1e-9 * Math.abs(high); /* a constant, but for the rounding of its smoothing */
  const pad = same ? Math.abs(high) * 0.1 || 1 : (high - low) * 0.05;
  return [low - pad, high + pad];
}

/* ---- what a panel shows ---- */

/* The x of a run's steps. */
function place(run, steps) {
  return state.x === 'step' ? steps : steps.map(s => interpolate(run.axis.step, run.axis[state.x], s));
}

/* One curve: x, the recorded y (with low and high where it was thinned), and the bold line. */
function curve(run, index, columns, panel, dots) {
  const map = panel.map || (v => v), list = columns.slice(1).map(c => c.map(map));
  const c = {run, index, dots, x: place(run, columns[0]), y: list[0],
    low: list[1] || list[0], high: list[2] || list[0]};
  c.faint = !dots && !panel.plain && state.smooth > 0;
  c.bold = c.faint ? ema(c.y, state.smooth) : c.y;
  return c;
}

function curvesOf(panel) {
  const list = [];
  data.runs.forEach((run, index) => {
    if (run.hidden) return;
    for (const kind of ['line', 'dots']) {
      const columns = run.series[panel[kind]];
      if (columns && columns[0].length) list.push(curve(run, index, columns, panel, kind === 'dots'));
    }
  });
  return list;
}

/* The range of x of all charts: the zoom, or what all runs cover. */
function rangeX() {
  if (state.range) return state.range;
  let low = Infinity, high = 0;
  for (const run of data.runs) {
    if (run.hidden) continue;
    for (const v of run.axis[state.x]) {
      high = Math.max(high, v);
      if (v > 0) low = Math.min(low, v);
    }
  }
  if (!(high > 0)) high = 1;
  return state.logX ? [Math.min(low, high / 1.001), high] : [0, high];
}

/* ---- drawing ---- */

const el = (name, attributes = {}, ...children) => {
  const e = document.createElement(name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  e.append(...children);
  return e;
};
const colour = c => `var(--r${(data.runs.length > 1 ? c.index : c.dots ? 1 : 0) % 8})`;

/* What of a curve is in the range, as points of a path, with one on either side. */
function pointsOf(c, ys, x, y) {
  const list = [];
  for (let i = 0; i < c.x.length; i++) {
    if (c.x[i + 1] < x.low || c.x[i - 1] > x.high || !isFinite(ys[i])) continue;
    if ((x.log && c.x[i] <= 0) || (y.log && ys[i] <= 0)) continue;
    list.push(`${x.at(c.x[i]).toFixed(1)} ${y.at(ys[i]).toFixed(1)}`);
  }
  return list;
}
const path = (kind, c, points, end = '') =>
  `<path class=${kind} style="--c:${colour(c)}" d="${points.length ? 'M' : ''}${points.join('L')}${end}"/>`;

/* What was recorded, behind the bold line: a line, or of a thinned series the area between minima and maxima. */
function faintOf(c, x, y) {
  if (c.low === c.high) return path('raw', c, pointsOf(c, c.y, x, y));
  return path('area', c, [...pointsOf(c, c.high, x, y), ...pointsOf(c, c.low, x, y).reverse()], 'Z');
}

function axesOf(p) {
  const {x, y, width, height} = p, floor = height - BOTTOM;
  const rows = ticks(y.low, y.high, height / 36, y.log, p.kind), rowText = labels(rows, p.kind);
  const kind = state.x === 'time' ? 'time' : '';
  const columns = ticks(x.low, x.high, width / 90, x.log, kind).filter(v => state.x !== 'step' || v % 1 === 0);
  const columnText = labels(columns, kind);
  let out = `<path class=base d="M${LEFT} ${floor}H${width - RIGHT}"/>`;
  rows.forEach((v, i) => {
    const at = y.at(v);
    out += `<path class=grid d="M${LEFT} ${at.toFixed(1)}H${width - RIGHT}"/>`
      + `<text class=ty x=${LEFT - 6} y=${(at + 4).toFixed(1)}>${rowText[i]}</text>`;
  });
  columns.forEach((v, i) => {
    const at = x.at(v).toFixed(1), last = at > width - 24;
    out += `<path class=tick d="M${at} ${floor}v4"/>`
      + `<text class=${last ? 'ty' : 'tx'} x=${last ? width - 2 : at} y=${height - 5}>${columnText[i]}</text>`;
  });
  return out;
}

/* Where a process of the one run took over from another. */
function startsOf(p) {
  if (data.runs.length > 1) return '';
  const run = data.runs[0];
  return place(run, run.starts).filter(v => v > p.x.low && v < p.x.high)
    .map(v => `<path class=mark d="M${p.x.at(v).toFixed(1)} ${TOP}V${p.height - BOTTOM}"><title>resumed</title></path>`)
    .join('');
}

/* Branches that the one run has left: it went back to an earlier step. Their losses, and where they end. */
function forksOf(p) {
  if (data.runs.length > 1 || p.panel.line !== 'loss') return '';
  const run = data.runs[0];
  return run.forks.map(f => {
    const c = {x: place(run, f.loss[0])}, points = pointsOf(c, f.loss[1], p.x, p.y);
    const skip = f.skip ? `, without the data of steps ${f.skip[0]} to ${f.skip[1]}` : '';
    const title = el('i');
    title.textContent = `left: went back to step ${f.step}${skip} (${f.why})`;
    return `<path class=fork d="${points.length ? 'M' : ''}${points.join('L')}"><title>${title.innerHTML}</title></path>`;
  }).join('');
}

/* The scales of a panel; y covers what x shows. */
function scales(p) {
  const [low, high] = rangeX(), bold = [], faint = [];
  for (const c of p.curves)
    c.x.forEach((v, i) => {
      if (v < low || v > high) return;
      bold.push(c.bold[i]);
      if (c.faint) faint.push(c.low[i], c.high[i]);
    });
  const log = state.logY && bold.some(v => v > 0);
  const range = rangeOf(bold, faint, log, p.panel.zero) || (log ? [1, 10] : [0, 1]);
  p.x = scaleOf(low, high, LEFT, p.width - RIGHT, state.logX);
  p.y = scaleOf(range[0], range[1], p.height - BOTTOM, TOP, log);
}

function dot(p, c, i, r) {
  const x = c.x[i], y = c.bold[i];
  if (x < p.x.low || x > p.x.high || (p.y.log && y <= 0)) return '';
  return `<circle r=${r} cx=${p.x.at(x).toFixed(1)} cy=${p.y.at(y).toFixed(1)} style="fill:${colour(c)}"/>`;
}

function drawPanel(p) {
  p.width = Math.max(p.svg.clientWidth || 600, 120);
  p.height = p.panel.wide ? Math.min(350, Math.max(220, p.width * 0.5)) : 190;
  p.svg.setAttribute('viewBox', `0 0 ${p.width} ${p.height}`);
  p.svg.setAttribute('height', p.height);
  p.curves = curvesOf(p.panel);
  p.read.style.minHeight = '';
  scales(p);
  const box = `x=${LEFT} y=${TOP - 4} width=${p.width - LEFT - RIGHT + 5} height=${p.height - TOP - BOTTOM + 4}`;
  let out = axesOf(p) + startsOf(p) + `<clipPath id=${p.id}><rect ${box} /></clipPath><g clip-path="url(#${p.id})">`;
  out += forksOf(p);
  for (const c of p.curves) {
    if (c.faint) out += faintOf(c, p.x, p.y);
    out += path(c.dots ? 'val' : 'bold', c, pointsOf(c, c.bold, p.x, p.y));
    if ((c.dots && c.x.length <= 100) || c.x.length === 1) out += c.x.map((v, i) => dot(p, c, i, 3)).join('');
  }
  p.svg.innerHTML = out + `</g><g class=tip></g><rect class=zoom y=0 width=0 height=${p.height} />`;
  drawPointer(p);
}

/* A curve in the legend of its panel: its value at the pointer, or its last one (i < 0: none); the recorded one in
 * brackets. */
function entry(p, c, i) {
  const key = el('i', {class: c.dots ? 'round' : '', style: `background:${colour(c)}`});
  const both = p.panel.line && p.panel.dots && data.runs.length === 1;
  const words = !both ? '' : c.dots ? 'validation ' : 'training ';
  if (i < 0) return el('span', {title: c.run.name}, key, words + '-');
  const raw = c.faint ? ` (${format(c.y[i], p.kind)})` : '';
  return el('span', {title: c.run.name}, key, words + format(c.bold[i], p.kind, 5) + raw);
}

function drawPointer(p) {
  const x = state.hover;
  let tip = '';
  if (x !== null && x >= p.x.low && x <= p.x.high) {
    const at = p.x.at(x), left = at > p.width * 0.6;
    const value = state.x === 'step' ? x : format(x, state.x === 'time' ? 'time' : '');
    tip = `<path d="M${at.toFixed(1)} ${TOP}V${p.height - BOTTOM}"/>`
      + `<text class="${left ? 'ty' : ''}" x=${at + (left ? -6 : 6)} y=${TOP + 9}>${AXES[state.x]} ${value}</text>`;
  }
  p.read.replaceChildren();
  for (const c of p.curves) {
    const xs = c.run.axis[state.x], over = x !== null && x > xs[xs.length - 1]; /* a shorter run */
    const i = over ? -1 : x === null ? c.x.length - 1 : nearest(c.x, x);
    p.read.append(entry(p, c, i));
    if (tip && i >= 0) tip += dot(p, c, i, 3.5);
  }
  p.svg.querySelector('.tip').innerHTML = tip;
  p.read.style.minHeight = p.read.offsetHeight + 'px'; /* it only grows: the chart below must not jump */
}

/* ---- pointer and controls ---- */

let panels = [];
function draw() {
  for (const p of panels) drawPanel(p);
  document.getElementById('reset').hidden = state.range === null;
}
/* A drag that is too short is a click. */
function zoomTo(p, from, to) {
  const a = p.x.value(Math.max(LEFT, Math.min(from, to))), b = p.x.value(Math.min(p.width - RIGHT, Math.max(from, to)));
  if (Math.abs(to - from) < 8 || !(a < b)) return;
  state.range = [a, b];
  draw();
}
/* The pointer is at what was recorded nearest to x. */
function hoverAt(x) {
  state.hover = null;
  for (const run of data.runs) {
    const xs = run.axis[state.x];
    if (x === null || run.hidden || xs.length === 0) continue;
    const at = xs[nearest(xs, x)];
    if (state.hover === null || Math.abs(at - x) < Math.abs(state.hover - x)) state.hover = at;
  }
  for (const p of panels) drawPointer(p);
}

function listen(p) {
  let from = null;
  const at = e => (e.clientX - p.svg.getBoundingClientRect().left) * p.width / (p.svg.clientWidth || p.width);
  const band = to => {
    const r = p.svg.querySelector('.zoom');
    r.setAttribute('x', Math.min(from, to));
    r.setAttribute('width', Math.abs(to - from));
  };
  p.svg.onpointerdown = e => {
    if (e.button !== 0) return;
    from = at(e);
    p.svg.setPointerCapture(e.pointerId);
  };
  p.svg.onpointermove = e => {
    if (from !== null) band(at(e));
    hoverAt(p.x.value(at(e)));
  };
  p.svg.onpointerup = e => {
    if (from === null) return;
    const start = from;
    band(from);
    from = null;
    zoomTo(p, start, at(e));
  };
  p.svg.onpointercancel = () => { if (from !== null) band(from); from = null; };
  p.svg.onpointerleave = () => hoverAt(null);
  p.svg.ondblclick = reset;
}
function reset() {
  state.range = null;
  draw();
}

function control(id, event, set) {
  const input = document.getElementById(id);
  input[event] = () => { set(input); draw(); };
}
function controls() {
  control('x', 'onchange', e => { state.x = e.value; state.range = state.hover = null; });
  control('logx', 'onchange', e => { state.logX = e.checked; state.range = null; });
  control('logy', 'onchange', e => { state.logY = e.checked; });
  control('smooth', 'oninput', e => {
    state.smooth = +e.value;
    document.getElementById('smoothed').textContent = state.smooth.toFixed(2);
  });
  document.getElementById('reset').onclick = reset;
  let waiting = 0;
  window.onresize = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); };
}

/* Of several runs, each can be hidden. */
function legend() {
  const box = document.getElementById('legend');
  data.runs.forEach((run, index) => {
    if (data.runs.length < 2) return;
    const input = el('input', {type: 'checkbox', checked: ''});
    input.onchange = () => { run.hidden = !input.checked; draw(); };
    box.append(el('label', {}, input, el('i', {style: `background:${colour({index})}`}), run.name));
  });
}

function copyButtons() {
  for (const button of document.querySelectorAll('button.copy'))
    button.onclick = async () => {
      const code = button.parentNode.querySelector('code');
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = 'copied';
      } catch (e) {
        getSelection().selectAllChildren(code);
        button.textContent = 'press Ctrl-C';
      }
      setTimeout(() => { button.textContent = 'copy'; }, 1500);
    };
}

const data = JSON.parse(document.getElementById('data').textContent);
function start() {
  copyButtons();
  if (!data.runs.some(r => r.axis.step.length)) return;
  const grid = document.getElementById('charts');
  PANELS.forEach((panel, k) => {
    if (curvesOf(panel).length === 0) return;
    const figure = el('figure', {class: panel.wide ? 'wide' : ''});
    figure.innerHTML = `<figcaption>${panel.title} <small>${panel.unit}</small></figcaption><div class=read></div>`
      + `<svg role=img aria-label="${panel.title}"></svg>`;
    grid.append(figure);
    const [, read, svg] = figure.children;
    const p = {panel, read, svg, kind: panel.bytes ? 'bytes' : '', id: 'clip' + k};
    panels.push(p);
    listen(p);
  });
  legend();
  controls();
  draw();
}
start();
