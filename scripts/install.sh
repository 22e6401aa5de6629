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
[[ ${missing[*]} != *:arm64* ]] || $sudo dpkg --add-architecture arm64
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
