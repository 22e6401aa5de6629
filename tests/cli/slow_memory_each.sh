#!/usr/bin/env bash
# Each request for memory of a short train, resume, build, report, plan is refused, once alone and once with all that follow.
. "$(dirname "$0")/memory.sh" "$1" all
