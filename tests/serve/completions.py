#!/usr/bin/env python3
"""completions.py PORT TOKEN RUN SAMPLES GENERATED: POST /v1/completions of ingot serve, with the standard library alone. SAMPLES: what `ingot eval
--tasks perplexity=... --samples --per-token` wrote of the same model; GENERATED: `ingot generate --json --seed 3 --samples 2` of "the king". Prints a
line per finding and ends with 1 if there is one."""
import http.client
import json
import random
import select
import socket
import sys
import threading
import time

from mangle import mangled

port, token, run, samples, generated = int(sys.argv[1]), *sys.argv[2:6]
bad = []
AUTH = {'Authorization': f'Bearer {token}', 'Content-Type': 'application/json'}


def expect(what, right, got=''):
    if not right:
        bad.append(f'{what}: {str(got)[:300]}')


def post(body, headers=AUTH, raw=None, path='/v1/completions'):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    c.request('POST', path, raw if raw is not None else json.dumps(body), headers)
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, text


def ask(**fields):
    status, text = post({'model': run, **fields})
    expect(f'{fields} answered', status == 200, text)
    return json.loads(text) if status == 200 else {'choices': [], 'usage': {}}


# --- log-probabilities are those of ingot eval: float32 logits of another batch, summed over up to 64 tokens of 32 numbers: 1e-4 is far above
# their roundoff (measured: 1e-6) and far below a wrong token (1)
rows = [json.loads(line) for line in open(samples, encoding='utf-8')]
prompts = [[299] + row['tokens'][0]['ids'] for row in rows]  # 299: <|endoftext|>, the prefix token
answer = ask(prompt=prompts, max_tokens=1, logprobs=1, echo=True, temperature=0)
compared = 0
for row, prompt, choice in zip(rows, prompts, answer['choices']):
    got = choice['logprobs']
    expect('one more token', len(got['tokens']) == len(prompt) + 1, choice)
    expect('nothing of the first', got['token_logprobs'][0] is None and got['top_logprobs'][0] is None, got)
    for mine, theirs in zip(got['token_logprobs'][1:], row['tokens'][0]['logprobs']):
        compared += 1
        expect(f'line {row["line"]}', abs(mine - theirs) < 1e-4, (mine, theirs))
    greedy = all(a == max(t.values()) for a, t in zip(got['token_logprobs'][1:-1], got['top_logprobs'][1:-1]))
    expect(f'greedy of line {row["line"]}', greedy == row['greedy'][0], got)
expect('numbers compared', compared > 50, compared)

# --- texts are those of ingot generate
theirs = json.load(open(generated, encoding='utf-8'))['samples']
knobs = dict(prompt='the king', max_tokens=12, temperature=0.8, top_p=0.95, seed=3)
both = ask(n=2, logprobs=0, **knobs)
for i, sample in enumerate(theirs):
    choice = both['choices'][i]
    expect(f'text of seed {3 + i}', choice['text'] == sample['text'] and choice['index'] == i, (choice['text'], sample['text']))
    for mine, its in zip(choice['logprobs']['token_logprobs'], sample['tokens']):
        expect('its log-probabilities', abs(mine - its['logprob']) < 1e-9, (mine, its))
expect('usage', both['usage'] == {'prompt_tokens': 4, 'completion_tokens': 24, 'total_tokens': 28}, both['usage'])
text = both['choices'][0]['text']
expect('echo', ask(echo=True, **knobs)['choices'][0]['text'] == 'the king' + text)
expect('echo alone', ask(prompt='the king', max_tokens=0, echo=True)['choices'][0]['text'] == 'the king')
ids = prompts[0][1:20]
whole = ask(prompt=ids, max_tokens=0, echo=True)['choices'][0]['text']
expect('ids and their text', ask(**{**knobs, 'prompt': ids})['choices'][0] == ask(**{**knobs, 'prompt': whole})['choices'][0])

# --- streams
status, events = post({'model': run, 'stream': True, 'stream_options': {'include_usage': True}, 'n': 2, 'logprobs': 1, **knobs})
lines = [line[6:] for line in events.decode().split('\n') if line.startswith('data: ')]
expect('a stream ends', status == 200 and lines[-1:] == ['[DONE]'], lines[-2:])
parts = [json.loads(line) for line in lines[:-1]]
expect('usage at the end', parts[-1]['usage'] == both['usage'] and parts[-1]['choices'] == [], parts[-1])
for i in range(2):
    mine = [p['choices'][0] for p in parts if p['choices'] and p['choices'][0]['index'] == i]
    expect('several events', len(mine) > 3, mine)
    expect('the same text', ''.join(m['text'] for m in mine) == both['choices'][i]['text'], mine)
    names = [t for m in mine for t in m['logprobs']['tokens']]
    expect('the same tokens', names == both['choices'][i]['logprobs']['tokens'], names)
    expect('one finish', [m['finish_reason'] for m in mine][-1] == 'length' and not any(m['finish_reason'] for m in mine[:-1]), mine)

# --- stop: cut before the first of them, also where it spans tokens, and never shown in a stream
stop = text[3:6]
cut = text[:text.index(stop)]
one = ask(stop=['never this', stop], logprobs=0, **knobs)['choices'][0]
expect('stop', one['text'] == cut and one['finish_reason'] == 'stop', (one, text))
expect('no token behind it', not any(at >= len(cut) for at in one['logprobs']['text_offset']), one)
status, events = post({'model': run, 'stream': True, 'stop': stop, **knobs})
shown = [json.loads(line[6:]) for line in events.decode().split('\n') if line.startswith('data: {')]
expect('stop in a stream', ''.join(p['choices'][0]['text'] for p in shown) == cut, shown)

# --- what is refused, and how
def refused(status, field, code=None, headers=AUTH, raw=None, path='/v1/completions', **fields):
    got, text = post({'model': run, 'prompt': 'x', **fields}, headers, raw, path)
    try:
        e = json.loads(text)['error']
    except (ValueError, KeyError, TypeError):
        e = {}
    expect(f'{fields or raw or headers} refused', got == status and e.get('param') == field and e.get('code') == code and e.get('message') and
           e.get('type'), (got, text))


for field, values in {'max_tokens': [-1, 0, '3', 1.5, True], 'temperature': [-1, 'hot'], 'top_p': [0, 2], 'n': [0, 129], 'logprobs': [21, -1, True],
                      'prompt': [[], 3, None, [[]], ['a', 3], [1, 'a'], [-1], [[1], 'a'], {}], 'stop': [[''], '', ['a'] * 5, 3], 'echo': ['yes'],
                      'best_of': [2], 'suffix': ['x'], 'logit_bias': [{'5': 1}], 'presence_penalty': [0.5], 'seed': ['a', 1.5], 'unknown': [1],
                      'stream_options': [{'x': 1}, {'include_usage': True}], 'user': [3]}.items():
    for value in values:
        refused(400, field, **{field: value})
refused(400, 'prompt', prompt=[100000])
refused(400, 'prompt', 'context_length_exceeded', max_tokens=1000)
refused(400, 'prompt', 'context_length_exceeded', prompt=[1] * 65, max_tokens=0, echo=True)
refused(404, 'model', 'model_not_found', model='gpt-4')
refused(401, None, 'invalid_api_key', headers={'Content-Type': 'application/json'})
refused(401, None, 'invalid_api_key', headers={**AUTH, 'Authorization': 'Bearer ' + '0' * len(token)})
refused(403, None, headers={**AUTH, 'Origin': 'http://evil.example'})
refused(403, None, headers={**AUTH, 'Sec-Fetch-Site': 'cross-site'})
refused(403, None, headers={**AUTH, 'Host': 'evil.example'})
refused(415, None, headers={'Authorization': AUTH['Authorization']})
refused(415, None, headers={**AUTH, 'Content-Type': 'text/plain'})
refused(405, None, path='/v1/models')
for raw in (b'', b'[]', b'{', b'nul', b'{"model":"' + run.encode() + b'","prompt":"\xff"}', b'[' * 100000, b'{"a":' * 50000, b'{"model":1,"model":2}',
            b'{"model":"x\\u0000"}'):
    status, text = post(None, raw=raw)
    expect(f'{raw[:20]} refused', status == 400 and json.loads(text)['error']['message'], (status, text))


def talk(parts, pause=0.0):
    """What comes back for these bytes, and how long that took."""
    begin, out = time.time(), b''
    with socket.create_connection(('127.0.0.1', port), 240) as s:
        try:
            for part in parts:
                s.sendall(part)
                time.sleep(pause)
        except OSError:  # it was cut
            pass
        try:
            while got := s.recv(65536):
                out += got
        except OSError:
            pass
    return out, time.time() - begin


head = f'POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n'.encode()
out, _ = talk([head + b'Content-Length: 1048577\r\n\r\n'])  # said before it is sent
expect('a large body', b' 413 ' in out[:20] and b'larger than 1 MiB' in out, out)
slow = []  # a byte a second keeps no connection longer than a body may take; meanwhile the rest goes on
drip = threading.Thread(target=lambda: slow.extend(talk([head + b'Content-Length: 500\r\n\r\n'] + [b' '] * 400, 1)))
drip.start()
out, _ = talk([head + b'Transfer-Encoding: chunked\r\n\r\n'] + [b'10000\r\n' + b' ' * 65536 + b'\r\n'] * 40)
expect('a body without end', b' 200 ' not in out[:20], out[:60])
expect('a body beyond all numbers', b' 200 ' not in talk([head + b'Content-Length: 99999999999999999999\r\n\r\n'])[0][:20])

# --- nonsense: it answers or closes, and lives
random.seed(7)
seed = json.dumps({'model': run, 'prompt': [[1, 2], [3]], 'max_tokens': 2, 'stop': ['a'], 'logprobs': 1, 'seed': 1, 'echo': True}).encode()
for i in range(300):
    data = mangled(seed, 5)
    status, text = post(None, raw=data)
    expect(f'{data} answered', status in (200, 400, 404) and json.loads(text), (status, text))

# --- a full queue: one is in work, 8 wait, the others hear 429 at once; who hangs up is forgotten
heavy = json.dumps({'model': run, 'prompt': ['the king'] * 128, 'max_tokens': 60, 'temperature': 1}).encode()
crowd = [socket.create_connection(('127.0.0.1', port), 240) for _ in range(13)]
for s in crowd:
    s.sendall(head + b'Content-Length: %d\r\n\r\n' % len(heavy) + heavy)
    time.sleep(0.02)
heard = []
until = time.time() + 120
while time.time() < until and len(heard) < 2:
    heard += [s.recv(4096) for s in select.select(crowd, [], [], 1)[0]]
expect('too many wait', any(b' 429 ' in h[:20] and b'Retry-After' in h and b'rate_limit_error' in h for h in heard), heard)
for s in crowd:
    s.close()
begin = time.time()
while post({'model': run, 'prompt': 'x', 'max_tokens': 1})[0] != 200 and time.time() - begin < 240:
    time.sleep(0.2)
expect('a friend after the crowd', time.time() - begin < 240)
drip.join()
expect('a slow body', slow[1] < 300 and b' 200 ' not in slow[0][:20], slow)
print('\n'.join(bad) or 'nothing found')
sys.exit(1 if bad else 0)
