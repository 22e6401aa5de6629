#!/usr/bin/env bash
# From a bare Debian 12 to a trained language model: installs what is needed, builds, runs `ingot demo`.
# Arguments go to the demo (--minutes N, --text FILE). Ctrl-C saves; the same command resumes it.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install.sh build demo
log=build/quickstart.log
mkdir -p build
if ! { cmake --preset release -DBUILD_TESTING=OFF && cmake --build --preset release --target ingot; } >"$log" 2>&1; then
    tail -30 "$log" >&2
    echo "quickstart.sh: the build failed; the whole log is in $log" >&2
    exit 70
fi
exec build/release/ingot demo "$@"
