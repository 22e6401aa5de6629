'use strict';
/* Runs the script of a page that `ingot report` wrote, over a stand-in for the browser's document, and checks what it computes.
 * Usage: node page_test.js PAGE.html ONE.html, made by tests/observe/test_page.sh: run a has 100 records, run b 5000; ONE has a run of one record. */
const assert = require('assert'), fs = require('fs'), vm = require('vm');


/* As much of an element as the script uses. What is drawn is kept as text. */
function element() {
  const e = {
    attributes: {}, children: [], innerHTML: '', textContent: '', clientWidth: 640, hidden: false, parts: {}, style: {},
    setAttribute(k, v) { e.attributes[k] = String(v); },
    append(...more) { e.children.push(...more); },
    replaceChildren() { e.children = []; },
    querySelector(what) { return e.parts[what] = e.parts[what] || element(); },
    querySelectorAll() { return []; },
    getBoundingClientRect() { return {left: 0}; },
    setPointerCapture() {},
  };
  return e;
}
/* Runs a page's script; byId gets the elements that it asks for. The result evaluates names of the script. */
function load(path, byId) {
  const page = fs.readFileSync(path, 'utf8');
  byId.data = element();
  byId.data.textContent = /<script type=application\/json id=data>([^]*?)<\/script>/.exec(page)[1];
  const document = {
    getElementById: id => byId[id] = byId[id] || element(),
    querySelectorAll: () => [],
    /* the figure of a panel has a caption, a legend and the drawing */
    createElement: () => { const e = element(); e.children = [element(), element(), element()]; return e; },
  };
  const sandbox = vm.createContext({document, window: {}, console, requestAnimationFrame: f => f(), cancelAnimationFrame() {}});
  vm.runInContext(/<script>([^]*?)<\/script>/.exec(page)[1], sandbox, {filename: 'report.js'});
  return name => vm.runInContext(name, sandbox);
}
const byId = {}, get = load(process.argv[2], byId);
const same = (got, want) => assert.strictEqual(JSON.stringify(got), JSON.stringify(want));
const near = (got, want) => assert(Math.abs(got - want) < 1e-9 * Math.max(1, Math.abs(want)), `${got}, not ${want}`);
const [ema, nearest, interpolate, ticks, labels, format, scaleOf, rangeOf] =
  ['ema', 'nearest', 'interpolate', 'ticks', 'labels', 'format', 'scaleOf', 'rangeOf'].map(get);
const state = get('state'), data = get('data');
const loss = () => get('panels').find(p => p.panel.title === 'Loss');
const drawn = (p, kind) => (p.svg.innerHTML.match(new RegExp(`<path class=${kind} [^>]* d="([^"]*)"`, 'g')) || []);
const points = text => (text.match(/[ML]/g) || []).length;

/* smoothing */
for (const v of ema([3, 3, 3], 0.9)) near(v, 3);
same(ema([1, 2, 5], 0), [1, 2, 5]);
near(ema([0, 1], 0.5)[1], 2 / 3);
near(ema([4, 0, 0], 0.8)[0], 4);

/* lookup */
assert.strictEqual(nearest([1, 2, 4], 2.9), 1);
assert.strictEqual(nearest([1, 2, 4], 3.1), 2);
assert.strictEqual(nearest([5], 99), 0);
near(interpolate([1, 3], [10, 30], 2), 20);
near(interpolate([1, 3], [10, 30], 0), 10);
near(interpolate([1, 3], [10, 30], 9), 30);

/* axes */
same(ticks(0, 10, 5, false, ''), [0, 2, 4, 6, 8, 10]);
same(ticks(0, 600, 5, false, 'time'), [0, 120, 240, 360, 480, 600]);
same(labels([0, 120, 240], 'time'), ['0', '2min', '4min']);
same(labels([0, 5000, 10000], ''), ['0', '5k', '10k']); /* one unit */
same(labels([0, 5e-4, 1e-3], ''), ['0', '0.5e-3', '1e-3']);
same(labels([1, 1e3, 1e6], ''), ['1', '1000', '1M']);
same(ticks(1, 1000, 5, true, '').map(v => +v.toPrecision(3)), [1, 3, 10, 30, 100, 300, 1000]);
assert(ticks(7.3, 7.4, 5, true, '').length >= 3); /* less than a decade: as on a linear axis */
same(labels([7.3401, 7.3402, 7.3403], ''), ['7.3401', '7.3402', '7.3403']); /* zoomed far in */
assert.strictEqual(format(0.0003, ''), '3e-4');
assert.strictEqual(format(1234567, ''), '1.235M');
assert.strictEqual(format(3 * 2 ** 20, 'bytes'), '3 MiB');
for (const log of [false, true]) {
  const s = scaleOf(2, 2000, 50, 650, log);
  near(s.at(2), 50);
  near(s.at(2000), 650);
  near(s.value(s.at(77)), 77);
  if (log) near(s.at(Math.sqrt(2 * 2000)), 350);
}
const spike = Array.from({length: 1000}, (_, i) => i === 500 ? 1e6 : 1 + i / 1000);
assert(rangeOf([], spike, false, false)[1] < 3);
assert(rangeOf([], [0, 0.5, 1], true, false)[0] > 0);
const still = rangeOf([31, 31.000000000000004, 31], [], false, false); /* rounding is no curve */
assert(still[0] < 30 && still[1] > 32);

/* the page as it opens: faint, bold, and the validation's line of each run; a panel for each series there is */
same(data.runs.map(r => r.name), ['a', 'b']);
same(get('panels').map(p => p.panel.title), ['Loss', 'Validation perplexity', 'Learning rate', 'Gradient norm', 'Host memory']);
assert.strictEqual(drawn(loss(), 'raw').length, 1);
assert.strictEqual(drawn(loss(), 'area').length, 1); /* of the run that was thinned */
assert.strictEqual(drawn(loss(), 'bold').length, 2);
assert.strictEqual(drawn(loss(), 'val').length, 2);
assert.strictEqual(points(drawn(loss(), 'bold')[0]), 100);
assert(!get('panels').some(p => /NaN|Infinity|undefined/.test(p.svg.innerHTML)));
near(loss().x.high, 5000);
const perplexity = get('panels')[1].curves[0];
near(perplexity.bold[0], Math.exp(4));

/* the thinned run keeps its spike, faintly */
const b = loss().curves.find(c => c.run.name === 'b' && !c.dots);
assert.strictEqual(Math.max(...b.high), 50);
assert(b.x.length < 1000 && Math.max(...b.y) < 50);

/* a drag zooms all charts, and y follows; a short one does not; a double click is back */
const from = loss().x.at(1000), to = loss().x.at(3000);
loss().svg.onpointerdown({button: 0, clientX: from, pointerId: 1});
loss().svg.onpointermove({clientX: to});
loss().svg.onpointerup({clientX: to});
same(state.range.map(v => Math.round(v)), [1000, 3000]);
for (const p of get('panels')) same([p.x.low, p.x.high].map(Math.round), [1000, 3000]);
assert(points(drawn(loss(), 'bold')[1]) > 200 && points(drawn(loss(), 'bold')[1]) < 300);
assert(loss().y.high < 5.2);
assert.strictEqual(byId.reset.hidden, false);
loss().svg.onpointerdown({button: 0, clientX: 100, pointerId: 1});
loss().svg.onpointerup({clientX: 103});
same(state.range.map(v => Math.round(v)), [1000, 3000]);
loss().svg.ondblclick();
assert.strictEqual(state.range, null);
assert.strictEqual(byId.reset.hidden, true);

/* the pointer is at the same x in all charts, and at a step that was recorded */
loss().svg.onpointermove({clientX: loss().x.at(50.4)});
for (const p of get('panels')) assert(p.svg.querySelector('.tip').innerHTML.includes('step 50<'));
assert(loss().read.children.length === 4);
const tips = () => loss().svg.querySelector('.tip').innerHTML;
assert.strictEqual(tips().match(/<circle/g).length, 4);
loss().svg.onpointermove({clientX: loss().x.at(4000)}); /* run a has ended long before */
assert(Math.abs(get('state').hover - 4000) < 5 && tips().match(/<circle/g).length === 2);
loss().svg.onpointerleave();
assert(get('panels').every(p => p.svg.querySelector('.tip').innerHTML === ''));

/* x by tokens and by time; logarithmic axes; no smoothing; a hidden run */
const choose = (id, event, values) => { Object.assign(byId[id], values); byId[id][event](); };
choose('x', 'onchange', {value: 'tokens'});
near(loss().x.high, 50000);
near(loss().curves[0].x[49], 50 * 64);
choose('x', 'onchange', {value: 'time'});
near(loss().curves[0].x[49], 50 * 2);
choose('logx', 'onchange', {checked: true});
choose('logy', 'onchange', {checked: true});
assert(loss().x.log && loss().y.log && loss().x.low > 0);
near(loss().x.at(Math.sqrt(loss().x.low * loss().x.high)), (loss().x.at(loss().x.low) + loss().x.at(loss().x.high)) / 2);
assert(!get('panels').some(p => /NaN|Infinity|undefined/.test(p.svg.innerHTML)));
choose('smooth', 'oninput', {value: '0'});
assert.strictEqual(drawn(loss(), 'raw').length + drawn(loss(), 'area').length, 0);
same(loss().curves[0].bold, loss().curves[0].y);
data.runs[1].hidden = true;
get('draw')();
assert.strictEqual(drawn(loss(), 'bold').length, 1);
console.log('page: what its script computes is right');

/* A line of one record is a dot: else a run of few steps is not there. */
const one = load(process.argv[3], {})('panels').find(p => p.panel.title === 'Loss');
assert.strictEqual((one.svg.innerHTML.match(/<circle /g) || []).length, 1);
