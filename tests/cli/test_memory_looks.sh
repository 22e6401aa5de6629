#!/usr/bin/env bash
# The same for verbs that look at runs and data: each request of `report` is refused, and many of the others.
. "$(dirname "$0")/memory.sh" "$1" 60 report compare runs inspect step explain
