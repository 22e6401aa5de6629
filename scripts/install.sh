#!/usr/bin/env bash
# Installs what ingot needs from Debian's packages: install.sh [build|test|bench|fuzz|arm|arm-cuda|browser|demo|package]... (default: build). Asks nothing; does nothing for what is there.
set -euo pipefail
packages=()
for part in "${@:-build}"; do
    case $part in
    build) packages+=(gcc libc6-dev cmake ninja-build pkg-config git ccache libmicrohttpd-dev libyaml-dev libjansson-dev libxxhash-dev zlib1g-dev libzstd-dev liblz4-dev libbrotli-dev libhwloc-dev) ;;
    test) packages+=(g++ libcmocka-dev libpcre2-dev clang-format openmpi-bin nodejs groff-base zsh fish jq dpkg-dev binutils xz-utils gzip) ;;
    bench) packages+=(libdnnl-dev) ;; # a peer of ingot bench gemm
    fuzz) packages+=(clang libclang-rt-14-dev libomp-dev) ;; # also for the tsan preset
    arm) # the cross build for 64-bit ARM, and qemu for its tests
        packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
        for p in libyaml-dev libjansson-dev libxxhash-dev zlib1g-dev libzstd-dev liblz4-dev libbrotli-dev libhwloc-dev libmicrohttpd-dev libcmocka-dev libpcre2-dev libgomp1; do packages+=("$p:arm64"); done
        ;;
    arm-cuda) packages+=(g++-aarch64-linux-gnu libstdc++6:arm64) ;; # beside arm: what nvcc and its host code need, for the preset arm64-cuda
    browser) packages+=(chromium curl jq) ;; # the page of ingot serve, looked at by its test
    demo) packages+=(bible-kjv bible-kjv-text gzip xz-utils) ;;
    package) packages+=(dpkg-dev binutils xz-utils gzip) ;; # cpack: dpkg-shlibdeps; archives
    *) echo "install.sh: unknown part '$part' (build, test, bench, fuzz, arm, arm-cuda, browser, demo, package)" >&2; exit 2 ;;
    esac
done
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "installing: ${missing[*]}" >&2
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
export DEBIAN_FRONTEND=noninteractive
# apt says how far it is in lines "dlstatus:...:PERCENT:..." and "pmstatus:PACKAGE:PERCENT:TEXT": one line that is redrawn on a terminal, a line
# for each tenth elsewhere. The descriptor for them is opened behind sudo, which closes all above 2.
apt() {
    local kind percent what tenth told='' code=0
    # shellcheck disable=SC2016 # the inner shell's words
    $sudo sh -c 'exec 3>&1 >/dev/null; exec apt-get -qq -o APT::Status-Fd=3 "$@"' sh "$@" | while IFS=: read -r kind _ percent _; do
        case $kind in dlstatus) what=downloading ;; pmstatus) what=installing ;; *) continue ;; esac
        percent=${percent%%.*}
        [[ $percent =~ ^[0-9]+$ ]] || continue
        tenth=$what$((percent / 10))
        if [ -t 2 ]; then printf '\r%s %d %%\033[K' $what "$percent" >&2; elif [ $tenth != "$told" ]; then echo "$what $percent %" >&2; fi
        told=$tenth
    done || code=$?
    [ ! -t 2 ] || printf '\r\033[K' >&2
    return $code
}
[[ ${missing[*]} != *:arm64* ]] || $sudo dpkg --add-architecture arm64
apt update
apt install -y --no-install-recommends "${missing[@]}"
