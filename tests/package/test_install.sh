#!/usr/bin/env bash
# `cmake --install`: all is there, the tree may be moved, man pages render without a warning, and one version is said everywhere.
root=$(realpath "$(dirname "$0")/../..")
build=$(dirname "$(realpath "$1")")
. "$(dirname "$0")/../shell.sh"

cmake --install "$build" --prefix "$work/first" >out 2>err || fail "cmake --install"
for file in bin/ingot share/doc/ingot/LICENSE share/doc/ingot/README.md share/doc/ingot/CHANGELOG.md share/doc/ingot/docs/GUIDE.md \
    share/doc/ingot/examples/small.yaml share/bash-completion/completions/ingot share/zsh/site-functions/_ingot \
    share/fish/vendor_completions.d/ingot.fish share/man/man1/ingot.1.gz share/man/man1/ingot-train.1.gz share/man/man5/ingot-keys.5.gz; do
    check "$file is installed" test -s "first/$file"
done
check "no file holds the prefix" test -z "$(grep -rlF "$work/first" first)"
mv first second
check "the moved program runs" env -i second/bin/ingot config --model.preset=nano --train.steps=1 >out 2>err
version=$(sed -nE 's/^project\(ingot VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
check "--version is CMakeLists.txt's" grep -q "^ingot $version\( \|$\)" <(second/bin/ingot --version)
check "the changelog's first section is this version" test "$(grep -m 1 '^## ' "$root/CHANGELOG.md" | sed -E 's/^## ([0-9.]+).*/\1/')" = "$version"

pages=$(ls second/share/man/man?/*.gz)
check "a page for each that the program has" test "$(wc -w <<<"$pages")" -eq "$("$ingot" man | wc -l)"
for page in $pages; do
    zcat "$page" | LC_ALL=C groff -man -ww -Tascii >out 2>err || fail "$page"
    [ -s err ] && fail "groff warns at $page"
    check "$page has a name, and tells the version" grep -q "^ingot $version" out
done
# Nothing of a table is left out.
zcat second/share/man/man1/ingot-data.1.gz | LC_ALL=C groff -man -Tascii | col -b >out
for option in $("$ingot" complete data build -- | cut -f1); do
    [ "$option" = --help ] || check "$option is on ingot-data(1)" grep -q -- "^ *\(-[a-z], \)\?$option" out
done
zcat second/share/man/man5/ingot-keys.5.gz | LC_ALL=C groff -man -Tascii | col -b >out
for key in $("$ingot" config --keys | awk '/^[a-z]+\./ { print $1 }'); do
    check "$key is on ingot-keys(5)" grep -q "^ *$key\( \|$\)" out
done
exit $failed
