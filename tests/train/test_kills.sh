#!/usr/bin/env bash
# Three ranks killed or stopped at random moments: see rank_kills.sh. SEED=N repeats the moments, as far as the machine does.
. "$(dirname "$0")/rank_kills.sh"
rank_kills 3
exit $failed
