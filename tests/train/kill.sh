# Sourced by test_resume.sh and slow_kill.sh: runs that are killed with SIGKILL at random moments and resumed.
. "$(dirname "$0")/../shell.sh"

# One life of a run: it is killed after 0 to $span ms, or inside one of its system calls on files; code 0 when it came to its end.
life() { # life DIR KEYS...
    local dir=$1 code=0 pid
    shift
    if [ $((RANDOM % 3)) -eq 0 ]; then
        moment="call $((RANDOM % 400 + 1))"
        INGOT_IO_FAULT=${moment#call }:KILL "$ingot" train r.yaml --resume --run.dir="$dir" "$@" >out 2>err &
        pid=$!
    else
        local ms=$((RANDOM % (span + 1)))
        moment="$ms ms"
        "$ingot" train r.yaml --resume --run.dir="$dir" "$@" >out 2>err &
        pid=$!
        sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
        kill -KILL $pid 2>/dev/null
    fi
    wait $pid 2>/dev/null || code=$?
    case $code in
    0) return 0 ;;
    137) killed=$((killed + 1)) ;;
    *) fail "killed after $moment, it exits with $code" ;;
    esac
    return 1
}

# kill_and_resume NAME KILLS KEYS...: an uninterrupted run, then runs of the same configuration, until KILLS kills have hit.
kill_and_resume() {
    local name=$1 kills=$2 round=0 begin
    shift 2
    killed=0
    begin=$(date +%s%N)
    run 0 train r.yaml --run.dir="runs/$name" "$@"
    span=$((($(date +%s%N) - begin) / 1000000))
    while [ $failed -eq 0 ]; do
        local dir=runs/$name.$((round++)) done=0
        # A run that has been killed enough goes on to its end.
        while [ $done -eq 0 ] && [ $failed -eq 0 ]; do
            if [ $killed -ge "$kills" ]; then
                run 0 train r.yaml --resume --run.dir="$dir" "$@"
                done=1
            elif life "$dir" "$@"; then
                done=1
            fi
            all_sound "$name" "$dir"
        done
        same_run "$name" "runs/$name" "$dir"
        rm -rf "$dir"
        [ $killed -ge "$kills" ] && break
    done
    echo "$name: $killed kills in $round runs, uninterrupted run $span ms"
}
seed=${SEED:-$(date +%N | sed 's/^0*//')}
RANDOM=$((seed % 32768))
echo "SEED=$((seed % 32768))"
make_corpus
