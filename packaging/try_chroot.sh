#!/usr/bin/env bash
# Proves that the packages run on a bare system: try_chroot.sh DEB|TAR.XZ SUITE [DIR]      (as root; needs debootstrap and a network)
#
# SUITE: bookworm (Debian 12), jammy (Ubuntu 22.04), noble (24.04). Makes the system in DIR (a temporary directory) unless it is there,
# without a compiler; installs the package by apt-get, or unpacks the archive; then a tokenizer, shards, a tiny run, and a text of it.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2; exit 2; }
package=$1 suite=$2 dir=${3:-}
[ -f "$package" ] || { echo "try_chroot.sh: $package is not there" >&2; exit 2; }
if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
fi
case $suite in
bookworm | trixie) mirror=http://deb.debian.org/debian options=() ;;
jammy | noble)
    mirror=http://archive.ubuntu.com/ubuntu options=(--keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg)
    [ -f "${options[0]#--keyring=}" ] || options=(--no-check-gpg) # a system for a test, thrown away; Debian has no Ubuntu keys
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || options+=("--no-merged-usr")
    ;;
*) echo "try_chroot.sh: suite '$suite': bookworm, trixie, jammy, noble" >&2; exit 2 ;;
esac
script=()
[ -e "/usr/share/debootstrap/scripts/$suite" ] || script=(/usr/share/debootstrap/scripts/gutsy)
[ -x "$dir/bin/bash" ] || debootstrap --variant=minbase "${options[@]}" "$suite" "$dir" "$mirror" "${script[@]}" >/dev/null

mkdir -p "$dir/try"
name=$(basename "$package")
case $name in
*.deb) cp "$package" "$dir/try/" ;;
*) tar -C "$dir/try" -xJf "$package" ;; # a minimal system has no xz
esac
cat >"$dir/try/steps.sh" <<STEPS
set -euo pipefail
cd /try
export DEBIAN_FRONTEND=noninteractive
case $name in
*.deb) apt-get install -y -qq --no-install-recommends ./$name >/dev/null 2>&1 ;;
*) export PATH=/try/${name%.tar.xz}/bin:\$PATH ;;
esac
for tool in cc gcc c++ python3 nvcc; do
    if command -v \$tool >/dev/null; then echo "\$tool is there: no bare system" >&2; exit 1; fi
done
STEPS
cat >>"$dir/try/steps.sh" <<'STEPS'
. /etc/os-release
echo "$PRETTY_NAME, $(ldd --version | sed -n '1s/.* //p'): $(command -v ingot)"
ingot --version
for i in $(seq 400); do echo "In the beginning was the word, and the word number $i was with the $((i * 7919 % 1000)) others."; done >text.txt
ingot tokenizer train text.txt --vocab-size 280 -o tok 2>log || { cat log; exit 1; }
ingot data build text.txt --tokenizer tok --separator line --val-every-n 20 -o data/t --force 2>log || { cat log; exit 1; }
rm -rf runs
ingot train --model.layer_count=2 --model.hidden_size=64 --model.ffn_size=128 --model.head_count=2 \
    --model.context_length=64 --data.train='data/t_train_*.bin' --data.val='data/t_val_*.bin' --train.micro_batch=8 \
    --train.steps=60 --optim.lr=5e-3 --run.dir=runs/t 2>log || { cat log; exit 1; }
ingot generate runs/t --prompt 'In the' --tokens 24 --temperature 0 2>log || { cat log; exit 1; }
STEPS
chroot "$dir" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root /bin/bash /try/steps.sh
