#!/usr/bin/env bash
# The packages: what they hold, that they need the C library alone, and that their program trains. The static program is linked of objects
# that the build with preset cpu has left in ccache.
root=$(realpath "$(dirname "$0")/../..")
build=$(dirname "$(dirname "$(realpath "$1")")")/package-test
. "$(dirname "$0")/../shell.sh"
command -v dpkg-shlibdeps >/dev/null || { echo "skipped: there is no dpkg-dev"; exit 77; }

cmake -S "$root" --preset package -B "$build" >out 2>err && cmake --build "$build" >out 2>err &&
    (rm -f "$build"/ingot[_-]*.* && cd "$build" && SOURCE_DATE_EPOCH=1700000000 cpack) >out 2>err || { fail "the packages are not made"; exit 1; }
deb=$(ls "$build"/ingot_*.deb) archive=$(ls "$build"/ingot-*.tar.xz)
dpkg-deb -I "$deb" >out
check "the package needs the C library alone" grep -qE '^ Depends: libc6 \(>= 2\.3[0-4]\)$' out
dpkg-deb -x "$deb" deb
mkdir tar && tar -C tar -xJf "$archive"
check "one top directory" test "$(ls tar)" = "$(basename "$archive" .tar.xz)"
mv tar/* moved
check "the same program in both" cmp deb/usr/bin/ingot moved/bin/ingot
check "no library but the C library's" test -z "$(objdump -p moved/bin/ingot | awk '$1 == "NEEDED" { print $2 }' | grep -vE '^(lib[cm]|ld-linux-x86-64)\.so')"
check "a man page" test -s deb/usr/share/man/man1/ingot.1.gz
check "Debian's zsh finds the completion" test -s deb/usr/share/zsh/vendor-completions/_ingot

spdx=moved/share/doc/ingot/ingot.spdx.json
check "SPDX 2.3" test "$(jq -r .spdxVersion $spdx)" = SPDX-2.3
check "the list's program is this one" test "$(jq -r '.packages[0].checksums[0].checksumValue' $spdx)" = "$(sha256sum <moved/bin/ingot | cut -d' ' -f1)"
for name in libjansson libyaml libxxhash libzstd liblz4 libbrotli zlib1g libgcc glibc; do
    check "$name is on the list" test "$(jq "[.packages[] | select(.name | startswith(\"$name\"))] | length" $spdx)" -eq 1
done
check "each has a licence and a relation" test "$(jq '[.packages[] | select(.licenseDeclared == null or .licenseDeclared == "NOASSERTION")] | length' $spdx)" -eq 0
check "each has a relation" test "$(jq '.relationships | length' $spdx)" -eq "$(jq '.packages | length' $spdx)"
arch=$(dpkg --print-architecture)
check "each library is of this architecture" test "$(jq "[.packages[].externalRefs[]?.referenceLocator | select(endswith(\"?arch=$arch\") | not)] | length" $spdx)" -eq 0
check "notices go with the program" grep -q 'Petri Lehtinen' moved/share/doc/ingot/copyright

ingot=$work/moved/bin/ingot
make_corpus
run 0 train r.yaml --train.steps=6 --run.dir=runs/p
run 0 generate runs/p --prompt king --tokens 4
exit $failed
