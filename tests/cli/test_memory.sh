#!/usr/bin/env bash
# Memory that is refused, a few times per verb; slow_memory_each.sh refuses each request once.
. "$(dirname "$0")/memory.sh" "$1" 12
