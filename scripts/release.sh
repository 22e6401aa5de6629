#!/usr/bin/env bash
# Makes a release from a tag: release.sh [--cuda] [--arm] [-o DIR] [TAG]      (default: DIR dist, TAG v + the version of CMakeLists.txt)
#
#   ingot-VERSION.tar.xz                  the sources
#   ingot_VERSION-1_ARCH.deb, ingot-VERSION-linux-ARCH.tar.xz
#                                         the program for CPUs; --cuda: ingot-cuda of each, too (needs nvcc; ten minutes);
#                                         --arm: the program for CPUs for 64-bit ARM, too, cross-built
#   NAME.spdx.json                        what each program holds
#   SHA256SUMS                            sha256sum --check SHA256SUMS
#
# The tag is built in a directory of its own, so what is not committed has no part in it. The same tag and packages of Debian give the same
# bytes: SOURCE_DATE_EPOCH is the tag's commit, and no path stands in the program. Any commit does as TAG, to try it.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release.sh: $1" >&2; exit 2; }
out=dist tag= presets=(package) parts=(build package)
while [ $# -gt 0 ]; do
    case $1 in
    --cuda) presets+=(package-cuda) ;;
    --arm) presets+=(package-arm64) parts+=(arm) ;;
    -o) [ $# -gt 1 ] || fail "-o needs a directory"; out=$2 && shift ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' && exit 0 ;;
    -*) fail "unknown option $1" ;;
    *) [ -z "$tag" ] || fail "one tag at a time: $tag, $1"; tag=$1 ;;
    esac
    shift
done
version_of() { git show "$1:CMakeLists.txt" | sed -nE 's/^project\(ingot VERSION ([0-9.]+).*/\1/p'; }
tag=${tag:-v$(version_of HEAD)}
commit=$(git rev-parse --verify --quiet "$tag^{commit}") || fail "there is no tag or commit '$tag'"
version=$(version_of "$commit")
[ -n "$version" ] || fail "CMakeLists.txt of $tag has no version"
case $tag in v[0-9]*) [ "$tag" = "v$version" ] || fail "the tag is $tag, and CMakeLists.txt says $version" ;; esac
git show "$commit:CHANGELOG.md" | grep -q "^## $version" || fail "CHANGELOG.md of $tag has no section '## $version'"
case $tag in v[0-9]*)
    git show "$commit:CHANGELOG.md" | grep -qE "^## $version, [0-9]{4}-[0-9]{2}-[0-9]{2}$" || fail "CHANGELOG.md of $tag has no date: '## $version, YYYY-MM-DD'"
    ;;
esac
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$(ls -A "$out")" ] || fail "$out is not empty"

scripts/install.sh "${parts[@]}"
export SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export CCACHE_DISABLE=1 LC_ALL=C TZ=UTC
umask 022
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git archive --format=tar --prefix="ingot-$version/" "$commit" | xz -9 >"$out/ingot-$version.tar.xz"
tar -C "$tree" -xJf "$out/ingot-$version.tar.xz"
cd "$tree/ingot-$version"
described=$(git -C "$OLDPWD" describe --always --tags "$commit")
for preset in "${presets[@]}"; do
    cmake --preset "$preset" -DINGOT_GIT="$described" -DCMAKE_C_FLAGS="-ffile-prefix-map=$PWD/=" >/dev/null
    cmake --build --preset "$preset" -j "$(nproc)"
    cpack --preset "$preset" >/dev/null
    mv "build/$preset"/ingot*.deb "build/$preset"/ingot*.tar.xz "$out"
    name=$(sed -nE 's/^set\(CPACK_PACKAGE_NAME "(.*)"\)$/\1/p' "build/$preset/CPackConfig.cmake")
    case $preset in *-arm64) name+=-arm64 ;; esac
    cp "build/$preset/made/ingot.spdx.json" "$out/$name-$version.spdx.json"
done
cd "$out"
sha256sum -- *.deb *.tar.xz *.json >SHA256SUMS
cat SHA256SUMS
