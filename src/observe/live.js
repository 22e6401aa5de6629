/* The live page of `ingot serve`, after report.js: events say what has changed, curves and tables are fetched again.
 * The token stands in the address behind #t=, which no browser sends; it is kept for this tab alone. */
const FETCH_EVERY = 5000;
const live = {token: '', version: -1, shown: -1, at: 0, waiting: 0, failures: 0};

function liveSay(text) {
  document.getElementById('said').textContent = text;
}

async function liveGet(path) {
  const r = await fetch(path, {headers: {Authorization: 'Bearer ' + live.token}, cache: 'no-store'});
  if (!r.ok) throw new Error(r.status === 401 ? 'the token is wrong: open the address that ingot serve printed' : path + ': ' + r.status);
  return r;
}

function liveRedraw(curves) {
  const hidden = new Set(data.runs.filter(r => r.hidden).map(r => r.name));
  data.runs.splice(0, data.runs.length, ...curves.runs);
  for (const run of data.runs) run.hidden = hidden.has(run.name);
  panels.length = 0;
  document.getElementById('charts').textContent = '';
  document.getElementById('legend').textContent = '';
  start();
  document.querySelectorAll('#legend input').forEach((box, i) => { box.checked = !data.runs[i].hidden; });
}

async function liveFetch() {
  live.waiting = 0;
  const version = live.version;
  try {
    const curves = await (await liveGet('/api/curves')).json(), view = await (await liveGet('/api/view')).text();
    liveRedraw(curves);
    document.getElementById('view').innerHTML = view; /* the program has escaped every text of a run */
    live.shown = version;
  } catch (e) { liveSay(e.message); }
  live.at = Date.now();
  liveLater();
}

function liveLater() {
  if (live.waiting || live.shown === live.version) return;
  live.waiting = setTimeout(liveFetch, Math.max(0, FETCH_EVERY - (Date.now() - live.at)));
}

function liveTime(s) {
  return s === undefined ? '' : s >= 3600 ? (s / 3600).toFixed(1) + ' h' : s >= 60 ? Math.round(s / 60) + ' min' : Math.round(s) + ' s';
}

/* One card per run: what it does now, and the alert that is on. */
function liveNow(runs) {
  const box = document.getElementById('now');
  box.textContent = '';
  box.className = 'cards';
  for (const r of runs) {
    const card = document.createElement('div');
    card.className = 'card';
    const add = (tag, text, name) => {
      const e = document.createElement(tag);
      e.textContent = text;
      if (name) e.className = name;
      card.append(e);
    };
    const on = r.alerts.filter(a => a.state === 'on' && a.verdict === 'fail').pop();
    add('span', r.run);
    add('b', r.loss === undefined ? 'step ' + r.step : 'loss ' + r.loss.toPrecision(4));
    add('small', `${r.state}, step ${r.step}` + (r.planned ? ` of ${r.planned}` : '') + (r.eta_s === undefined ? '' : `, ${liveTime(r.eta_s)} to go`));
    if (r.rates.tokens_per_s) add('small', `${format(r.rates.tokens_per_s, '')} tokens/s` + (r.energy.watts ? `, ${Math.round(r.energy.watts)} W` : ''));
    if (on) add('small', `${on.alert}: ${on.text}`, 'pill bad wrap');
    box.append(card);
  }
  const going = runs.filter(r => r.state === 'running').length;
  document.getElementById('title').textContent = runs.length === 1 ? runs[0].run : `${runs.length} runs`;
  document.title = `${runs.length === 1 ? runs[0].run : runs.length + ' runs'} - ingot`;
  liveSay(`${going} running; ${new Date().toLocaleTimeString()}`);
}

function liveEvent(text) {
  const lines = text.split('\n').filter(l => l.startsWith('data: ')).map(l => l.slice(6));
  if (!lines.length) return;
  const event = JSON.parse(lines.join('\n'));
  live.version = event.version;
  liveNow(event.runs);
  liveLater();
}

/* Server-sent events by fetch: EventSource cannot send the token. */
async function liveListen() {
  try {
    const reader = (await liveGet('/events')).body.getReader(), decoder = new TextDecoder();
    let rest = '';
    live.failures = 0;
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      rest += decoder.decode(value, {stream: true});
      const parts = rest.split('\n\n');
      rest = parts.pop();
      parts.forEach(liveEvent);
    }
    liveSay('the connection has ended; trying again');
  } catch (e) { liveSay(e.message); }
  setTimeout(liveListen, Math.min(30000, 1000 * 2 ** live.failures++));
}

const liveToken = new URLSearchParams(location.hash.slice(1)).get('t');
if (liveToken) {
  sessionStorage.setItem('ingot token', liveToken);
  history.replaceState(null, '', location.pathname);
}
live.token = liveToken || sessionStorage.getItem('ingot token') || '';
liveListen();
