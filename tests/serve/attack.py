#!/usr/bin/env python3
"""attack.py PORT TOKEN [REQUESTS]: what a hostile network does to ingot serve. Slow sockets, fuzzed requests, wrong names,
cross-site requests. Prints one line per finding and ends with 1 if there is one."""
import random
import socket
import sys
import time

from mangle import mangled

port, token = int(sys.argv[1]), sys.argv[2]
requests = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
bad = []


def talk(data, timeout=60, pause=0):
    out = b''
    try:
        s = socket.create_connection(('127.0.0.1', port), timeout)
    except OSError:
        return out
    try:
        for part in data if isinstance(data, list) else [data]:
            s.sendall(part)
            if pause:
                time.sleep(pause)
        while True:
            got = s.recv(65536)
            if not got:
                break
            out += got
    except OSError:
        pass
    s.close()
    return out


def get(path, headers=(), method='GET', host='127.0.0.1', body=b''):
    lines = [f'{method} {path} HTTP/1.1', f'Host: {host}', 'Connection: close', *headers]
    if body:
        lines.append(f'Content-Length: {len(body)}')
    return talk('\r\n'.join(lines).encode() + b'\r\n\r\n' + body)


def expect(what, answer, code):
    got = answer.split(b' ', 2)[1:2]
    if got != [str(code).encode()]:
        bad.append(f'{what}: {got or answer[:60]}, not {code}')


auth = f'Authorization: Bearer {token}'
expect('page', get('/'), 200)
expect('healthz', get('/healthz'), 200)
expect('no token', get('/api/runs'), 401)
expect('wrong token', get('/api/runs', [auth[:-1] + ('0' if auth[-1] != '0' else '1')]), 401)
expect('short token', get('/api/runs', ['Authorization: Bearer ' + token[:-1]]), 401)
expect('empty token', get('/metrics', ['Authorization: Bearer ']), 401)
expect('token', get('/api/runs', [auth]), 200)
expect('localhost', get('/api/runs', [auth], host=f'localhost:{port}'), 200)
expect('another port, as through ssh', get('/api/runs', [auth], host='localhost:1234'), 200)
for host in ('evil.example', '127.0.0.1.evil.example', 'localhost.evil', '', 'localhost:80x', '[::1', '127.0.0.1@evil'):
    expect(f'host {host!r}', get('/api/runs', [auth], host=host), 403)
expect('no host', talk(f'GET /api/runs HTTP/1.0\r\n{auth}\r\n\r\n'.encode()), 403)
expect('origin of another site', get('/api/runs', [auth, 'Origin: http://evil.example']), 403)
expect('origin null', get('/api/runs', [auth, 'Origin: null']), 403)
expect('own origin', get('/api/runs', [auth, f'Origin: http://127.0.0.1:{port}']), 200)
expect('cross-site', get('/api/runs', [auth, 'Sec-Fetch-Site: cross-site']), 403)
expect('POST', get('/api/runs', [auth], 'POST', body=b'x=1'), 405)
expect('cross-site POST', get('/', ['Origin: http://evil.example'], 'POST', body=b'x=1'), 403)
expect('DELETE', get('/api/runs/0', [auth], 'DELETE'), 405)
expect('OPTIONS', get('/api/runs', ['Origin: http://evil.example'], 'OPTIONS'), 403)
for path in ('/../etc/passwd', '/api/runs/../../etc/passwd', '/api/runs/%2e%2e', '/api/runs/-1', '/api/runs/99', '/api/runs/0x0',
             '/api/runs/99999999999999999999', '/nothing', '/api/', '//'):
    expect(path, get(path, [auth]), 404)
for answer in (get('/', []), get('/api/runs', [auth])):
    if b'Access-Control' in answer or b'Content-Security-Policy' not in answer:
        bad.append('headers: CORS, or no policy')
if get('/' + 'a' * 20000, [auth]).split(b' ')[1:2] not in ([b'414'], [b'413'], [b'431'], []):
    bad.append('a long address is answered')
expect('a hundred headers', get('/api/runs', [auth] + [f'X-{i}: 1' for i in range(100)]), 431)
if b' 200 ' in get('/api/runs', [auth, 'X-Big: ' + 'a' * 40000])[:20]:
    bad.append('a large header is answered')

# Slow heads: a byte a second keeps no connection longer than the head may take.
begin = time.time()
slow = talk([b'GET / HTTP/1.1\r\n'] + [b'X-%d: 1\r\n' % i for i in range(12)], pause=1)
if time.time() - begin > 60 or b' 200 ' in slow[:20]:
    bad.append(f'a slow head lasts {time.time() - begin:.0f} s')
# Two hundred of them at once; a friend is served as soon as they are gone.
herd = []
for i in range(200):
    try:
        s = socket.create_connection(('127.0.0.1', port), 2)
        s.sendall(b'GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ')
        herd.append(s)
    except OSError:
        pass
for _ in range(60):  # a busy machine accepts the last of them late
    time.sleep(1)
    friend = get('/healthz')
    if b' 200 ' in friend[:20]:
        break
expect('a friend after the herd', friend, 200)
for s in herd:
    s.close()

# Nonsense: it answers or closes, and lives.
random.seed(7)
seed = f'GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n{auth}\r\nConnection: close\r\n\r\n'.encode()
for i in range(requests):
    data = mangled(seed, 7)
    try:
        s = socket.create_connection(('127.0.0.1', port), 5)
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        s.settimeout(0.02)
        s.recv(4096)
        s.close()
    except OSError:
        pass
expect('alive', get('/healthz'), 200)
print('\n'.join(bad) or f'nothing found: {requests} fuzzed requests')
sys.exit(1 if bad else 0)
