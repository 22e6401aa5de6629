#!/usr/bin/env bash
# Memory that is refused while verbs look at runs and data: about 60 of their requests, each once alone and once with all that follow.
. "$(dirname "$0")/memory.sh" "$1" 60 report compare runs inspect step explain
