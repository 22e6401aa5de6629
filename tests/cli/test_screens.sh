#!/usr/bin/env bash
# The pages of doctor and explain, and what a newcomer calls, on terminals of 60, 80 and 120 columns, and in a file: as in tests/fixtures/screens, no line too long, no word broken.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../shell.sh"
screens=$here/../fixtures/screens
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
screen() { # screen COLUMNS ARGS...: what ingot prints on a terminal, in out
    python3 - "$ingot" "$@" >out <<'PY'
import fcntl, os, pty, struct, subprocess, sys, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[2]), 0, 0))
child = subprocess.Popen([sys.argv[1], *sys.argv[3:]], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL)
os.close(slave)
text = b""
while True:
    try:
        part = os.read(master, 65536)
    except OSError:
        break
    if not part:
        break
    text += part
child.wait()
sys.stdout.write(text.decode().replace("\r\n", "\n"))
PY
}
words() { tr -s ' \n' '\n\n' <"$1"; }
look() { # look NAME ARGS...
    local name=$1 columns
    shift
    "$ingot" "$@" >plain 2>err
    check "$name in a file: at most 100 columns" [ "$(awk '{ n = length($0); if (n > m) m = n } END { print m }' plain)" -le 100 ]
    for columns in 60 80 120; do
        screen $columns "$@"
        if [ -n "${RECORD_SCREENS:-}" ]; then cp out "$screens/$name-$columns.txt"; fi
        diff "$screens/$name-$columns.txt" out >differ || fail "$name at $columns columns is not as recorded: $(cat differ)"
        check "$name at $columns columns: no line is longer" [ "$(awk '{ n = length($0); if (n > m) m = n } END { print m }' out)" -le $columns ]
        check "$name at $columns columns: the same words" cmp -s <(words plain) <(words out)
    done
}
cp -r "$screens/run" run
look explain explain run
look doctor doctor --replay "$screens/doctor.json"
# What a newcomer calls first. The words are those of the program's tables, so only the width is looked at.
for verb in 'help' 'help train' 'help plan' 'help ckpt' 'help bench' 'help fsdp' 'help moe' 'presets' 'config --keys' 'config --keys parallel'; do
    for columns in 60 80 120; do
        # shellcheck disable=SC2086 # words
        screen $columns $verb
        check "ingot $verb prints" [ "$(wc -l <out)" -ge 4 ]
        check "ingot $verb at $columns columns: no line is longer" [ "$(awk '{ n = length($0); if (n > m) m = n } END { print m }' out)" -le $columns ]
    done
done
run 0 presets
check "the table of presets in a file has all columns" grep -q '^preset .* heads/kv x d .* parameters' out
run 0 config --keys
check "the table of keys in a file has a line for each" grep -qE '^optim\.lr +' out
exit $failed
