#!/usr/bin/env bash
# What a built program holds: sbom.sh DIR VERSION PROGRAM [ARCHIVE | ARCHIVE=NAME=VERSION]...
#
# Writes DIR/ingot.spdx.json (SPDX 2.3: the program, the archives linked into it with the Debian packages that they came from, and the
# oldest C library that has all that it calls) and DIR/copyright (the licence, and the notices of what is linked in). An archive that is no
# package's is named with its version. A program that loads other libraries is refused: build it with -DINGOT_STATIC=ON.
# SOURCE_DATE_EPOCH is the time that stands in it. Needs dpkg, so it runs on Debian and Ubuntu.
set -euo pipefail
export LC_ALL=C
fail() { echo "sbom.sh: $1" >&2; exit 1; }
[ $# -ge 3 ] || fail "usage: sbom.sh DIR VERSION PROGRAM [ARCHIVE | ARCHIVE=NAME=VERSION]..."
dir=$1 version=$2 program=$3
shift 3
[ -f "$program" ] || fail "$program is not there: build it first"
command -v dpkg-query >/dev/null || fail "dpkg-query is not there: it names the packages of the libraries; run this on Debian or Ubuntu"

# The licence of a library (not of its tools or tests), as its source says. A library that is not listed is looked up and added by a person.
licence_of() {
    case $1 in
    libyaml* | libjansson* | libbrotli*) echo MIT ;;
    libxxhash* | liblz4*) echo BSD-2-Clause ;;
    libzstd*) echo BSD-3-Clause ;;
    zlib1g*) echo Zlib ;;
    libhwloc*) echo BSD-3-Clause ;;
    libgcc* | libstdc++*) echo 'GPL-3.0-or-later WITH GCC-exception-3.1' ;;
    cuda-cudart) echo LicenseRef-NVIDIA-CUDA-EULA ;;
    *) return 1 ;;
    esac
}

# owner FILE: "package<TAB>version<TAB>source package<TAB>source version<TAB>architecture" of the package that FILE is from, under any of its names.
owner() {
    local name package=
    for name in "$1" "${1#/usr}" "$(readlink -f "$1")" "$(readlink -f "$1" | sed 's|^/usr||')"; do
        package=$(dpkg-query -S "$name" 2>/dev/null | sed -n 's/: .*//p' | head -n 1) || true
        [ -z "$package" ] || break
    done
    [ -n "$package" ] || return 1
    dpkg-query -W -f='${Package}\t${Version}\t${source:Package}\t${source:Version}\t${Architecture}\n' "$package" | head -n 1
}

sum() { sha256sum "$1" | cut -d' ' -f1; }
id() { printf 'SPDXRef-%s' "$(printf %s "$1" | tr -c 'A-Za-z0-9.\n' -)"; }

packages= relations= notices=() seen=' '
# add ARCHIVE PACKAGE VERSION SOURCE SOURCE_VERSION ARCHITECTURE: what is linked in, once for each package
add() {
    local file=$1 package=$2 number=$3 source=$4 source_version=$5 arch=$6 licence reference=
    licence=$(licence_of "$package") || fail "no licence is known for $package ($file): read its copyright file and add it to licence_of"
    case $seen in *" $package "*) return ;; esac
    seen+="$package "
    if [ -n "$source" ]; then
        reference=",
      \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\",
        \"referenceLocator\": \"pkg:deb/${ID:-debian}/${package//+/%2B}@${number//+/%2B}?arch=$arch\"}]"
    fi
    packages+=",
    {\"SPDXID\": \"$(id "$package")\", \"name\": \"$package\", \"versionInfo\": \"$number\",
      \"supplier\": \"NOASSERTION\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false,
      \"licenseConcluded\": \"$licence\", \"licenseDeclared\": \"$licence\", \"copyrightText\": \"NOASSERTION\",
      \"sourceInfo\": \"$(basename "$file")${source:+, from source package $source $source_version}\",
      \"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"$(sum "$file")\"}]$reference}"
    relations+=",
    {\"spdxElementId\": \"SPDXRef-ingot\", \"relationshipType\": \"STATIC_LINK\", \"relatedSpdxElement\": \"$(id "$package")\"}"
    notices+=("$package")
}

ID=$(. /etc/os-release 2>/dev/null && echo "${ID:-debian}")
for archive in "$@"; do
    [ -n "$archive" ] || continue
    case $archive in
    *=*=*)
        IFS='=' read -r file name number <<<"$archive"
        add "$file" "$name" "$number" '' '' ''
        ;;
    *)
        line=$(owner "$archive") || fail "no package holds $archive: give it as ARCHIVE=NAME=VERSION"
        IFS=$'\t' read -r p v s sv a <<<"$line"
        add "$archive" "$p" "$v" "$s" "$sv" "$a"
        ;;
    esac
done
needed=$(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }')
other=$(grep -vE '^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux[a-z0-9-]*)\.so' <<<"$needed" | paste -sd' ') || true
[ -z "$other" ] || fail "$program loads $other: a package's program needs the C and C++ libraries alone (INGOT_STATIC=ON)"
# system NAME LICENCE SYMBOLS: a library of the system, and the oldest version that has all symbols
system() {
    local number
    number=$(objdump -T "$program" | grep -oE "\($3_[0-9.]+\)" | tr -d '()' | sort -uV | tail -n 1)
    packages+=",
    {\"SPDXID\": \"$(id "$1")\", \"name\": \"$1\", \"versionInfo\": \"${number#"$3"_}\",
      \"supplier\": \"NOASSERTION\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false,
      \"licenseConcluded\": \"$2\", \"licenseDeclared\": \"$2\", \"copyrightText\": \"NOASSERTION\",
      \"comment\": \"The system's; the version is that of the newest symbols ($3) which the program needs.\"}"
    relations+=",
    {\"spdxElementId\": \"SPDXRef-ingot\", \"relationshipType\": \"DYNAMIC_LINK\", \"relatedSpdxElement\": \"$(id "$1")\"}"
}
system glibc LGPL-2.1-or-later GLIBC
[[ $needed != *libstdc++* ]] || system libstdc++ 'GPL-3.0-or-later WITH GCC-exception-3.1' GLIBCXX
[[ $needed != *libgcc_s* ]] || system libgcc_s 'GPL-3.0-or-later WITH GCC-exception-3.1' GCC

created=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)
program_sum=$(sum "$program")
extracted=
case $packages in
*LicenseRef-NVIDIA*) extracted=",
  \"hasExtractedLicensingInfos\": [{\"licenseId\": \"LicenseRef-NVIDIA-CUDA-EULA\", \"name\": \"NVIDIA CUDA Toolkit EULA\",
    \"extractedText\": \"https://docs.nvidia.com/cuda/eula/ : cudart_static is on the list of what may be distributed with a program.\"}]" ;;
esac
mkdir -p "$dir"
cat >"$dir/ingot.spdx.json" <<JSON
{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "ingot-$version",
  "documentNamespace": "https://spdx.org/spdxdocs/ingot-$version-$program_sum",
  "creationInfo": {"created": "$created", "creators": ["Tool: ingot-sbom.sh-$version"]},
  "documentDescribes": ["SPDXRef-ingot"],
  "packages": [
    {"SPDXID": "SPDXRef-ingot", "name": "ingot", "versionInfo": "$version", "primaryPackagePurpose": "APPLICATION",
      "supplier": "NOASSERTION", "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
      "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
      "checksums": [{"algorithm": "SHA256", "checksumValue": "$program_sum"}]}$packages
  ],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-ingot"}$relations
  ]$extracted
}
JSON

{
    cat <<'TEXT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ingot

Files: *
Copyright: the authors of ingot
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0; it is in the file LICENSE beside this one, too.
TEXT
    if [ ${#notices[@]} -gt 0 ]; then
        printf 'Comment:\n The program holds libraries of others (versions: ingot.spdx.json). The notices of their packages follow.\n'
        for package in "${notices[@]}"; do
            printf '\n==== %s\n\n' "$package"
            if [ "$package" = cuda-cudart ]; then
                echo 'CUDA runtime, Copyright NVIDIA Corporation; distributed under the CUDA Toolkit EULA: https://docs.nvidia.com/cuda/eula/'
            else
                cat "/usr/share/doc/$package/copyright" || fail "/usr/share/doc/$package/copyright is not there: the notice must go with the program"
            fi
        done
    fi
} >"$dir/copyright"
