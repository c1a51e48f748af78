#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that the simulation finds faults: makes one after the other in a copy of the sources and counts the schedules until
# it is found. bash test/sim/mutate.sh [NUMBER...]; LW_BUILD_DIR is a tree that is built (build/release).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=${LW_BUILD_DIR:-build/release}
schedules=100000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# file, or folder of the file | what is wrong then | the text that is there | the text in its place. A text that is there several times is changed at
# its first place.
mutations=(
	'lib/sched|a slice is not given back|	TAILQ_INSERT_HEAD(&worker->free_slices, slice, link);|'
	'lib/sched|the count of slices in use only grows|	worker->slices_held--;|'
	'lib/sched|a task ends twice|	if (task->slices == 0 \&\& (task->flags \& LW_TASK_QUEUED) == 0)|	if (task->slices == 0)'
	'lib/sched|a task ends with slices on lanes|	if (task->slices == 0 \&\& (task->flags \& LW_TASK_QUEUED) == 0)|	if ((task->flags \& LW_TASK_QUEUED) == 0)'
	'lib/sched|a WRITE is repeated on any lane|	slice->only = may_arrive(lane, slice) ? lane : NULL;|	slice->only = NULL;'
	'lib/sched|a WRITE is repeated without a fence|	return slice->op == LW_WRITE \&\& (slice->started|	return lane->fenced \&\& slice->op == LW_WRITE \&\& (slice->started'
	'lib/sched|a WRITE that broke and is over does not wait for a fence|	if (!lane->fenced \|\| !lw_path_may_fence(lane->path)|	if (true'
	'lib/sched|a WRITE that waits to be repeated and is canceled does not wait for its fence|		if (lw_path_fence(path, slice, abort->reason))|		if (false)'
	'lib/sched|the same, where its memory is unregistered|		if (lw_path_fence(path, slice, abort->reason))|		if (!abort->now \&\& lw_path_fence(path, slice, abort->reason))'
	'lib/sched|a WRITE that is taken back does not wait for the fence of its first try|			lw_slice_give_up(lane, slice, abort->reason);|			lw_slice_done(lane, slice, abort->reason);'
	'lib/sched|a WRITE whose task failed elsewhere does not wait for its fence|		if (lw_task_is_over(slice->task) \&\& lw_path_fence|		if (slice->waits \&\& lw_path_fence'
	'lib/sched|a WRITE does not wait for its fence when no lane is left|		if (lw_path_fence(path, slice, reason))|		if (false)'
	'lib/sched|a path falls back while its WRITEs may still be stored|		if (lw_path_fence(path, slice, LW_REASON_RESET)) {|		if (false) {'
	'lib/sched|what the peer was to check is not cut for the next route|	uncut_missed(worker, path);|	(void)uncut_missed;'
	'lib/sched|the fence of the connection before counts|	lane->fence_up = false;|	(void)lane->fence_up;'
	'lib/sched|a fence is waited for half as long|	slice->fence_ms = lane->worker->now_ms + FENCE_MS;|	slice->fence_ms = lane->worker->now_ms + FENCE_MS / 2;'
	'lib/sched|a connection that breaks is taken for a fence|		return ++slice->attempts == FENCE_TRIES;|		return true;'
	'lib/sched|a broken lane keeps its slices from the others|	TAILQ_INSERT_TAIL(\&lane->path->retry, slice, link);|'
	'lib/sched|credits are lost|	lane->credits++;|'
	'lib/sched|a READ that broke is not repeated|slice->attempts < ATTEMPTS_MAX|slice->attempts < 0'
	'lib/sched|what was aborted is repeated when its lane breaks|	if (lw_task_is_over(task)) {|	if (false) {'
	'lib/sched|a lane that broke is never made again|	lane->retry_at_ms = worker->now_ms + lane->backoff_ms;|	lane->retry_at_ms = worker->now_ms + 0x40000000;'
	'lib/sched|a restart of the peer is forgotten|		path->dead = reason;|		path->dead = LW_REASON_NONE;'
	'lib/sched|deadlines are not looked at|	if (path->timed \&\& lw_before(path->deadline_ms, worker->now_ms))|	if (false)'
	'lib/sched|a deadline comes early|	task->deadline_ms += worker->now_ms;|	task->deadline_ms = task->deadline_ms / 2 + worker->now_ms;'
	'lib/sched|the earliest deadline is not kept|	if (!path->timed \|\| lw_before(task->deadline_ms, path->deadline_ms))|	if (!path->timed)'
	'lib/sched|a lane is not cut after the grace|		lane->kill = true;|		lane->kill = false;'
	'lib/sched|ranges of the peer are not checked|!look_up(worker, \&path->hint, path->segment == 0 ? own : view->ranges, remote, length, access)|false'
	'lib/sched|local ranges are not checked|	if (!look_up(worker, \&worker->local_hint, own, local, length, 0) \&\&|	if (false \&\&'
	'lib/sched|a slice goes beyond a seam of the peer|		length = range->end - (task->remote + cut);|		length += 0;'
	'lib/sched|slices begin at the wrong place|	slice->local = task->local + list->cut;|	slice->local = task->local;'
	'lib/sched|more slices than credits|	if (lane->credits == 0 \|\| held >= worker->engine->config.lane_bytes)|	if (held >= worker->engine->config.lane_bytes)'
	'lib/sched|slices go to lanes that are not up|	return lw_lane_state(lane) == LW_LANE_UP \&\& !lane->watch.leaving;|	return !lane->watch.leaving;'
	'lib/sched|a probe is forgotten when its lane goes down|		lane->ops->probe_end(lane);|		(void)lane;'
	'lib/sched|a lane connects by a way that there is not any more|		path->lane[i]->way %= ways.count;|		(void)ways;'
	'lib/sched|bulk counts twice|	lane->bulk_bytes -= slice->length;|'
	'lib/sched|an aborted task is taken off the list and forgotten|		lw_task_fail(task, abort->reason);|		lw_task_fail(task, abort->reason); continue;'
	'lib/sched|an abort takes the whole list|		if (!matches(worker, path, abort, task, task->local, task->remote, task->length)) {|		if (false) {'
	'lib/sched|slices that wait for their lane are not aborted|		TAILQ_REMOVE(\&path->retry, slice, link);|		continue;'
	'lib/sched|what waits for a refresh is forgotten|		lw_tasks_append(worker->engine, \&path->waiting[task->priority], task);|'
	'lib/sched|requests of a closed segment stay|	path->dead = reason;|	path->dead = reason; return;'
	'lib/sched|the lanes of a closed segment are lost|		lw_worker_lane_give(worker, path->lane[i]);|'
	'lib/sched|the last batch of a pass is not counted|	tally->batch = LW_INDEX_NONE;|	(void)tally;'
	'lib/sched|the last task of a run is lost|	if (--run->count == 0)|	if (--run->count <= 1 \&\& (run->count = 0) == 0)'
	'lib/sched|the word counts before the task says so|	atomic_store_explicit(\&task->outcome, lw_outcome(state, reason, lane), memory_order_release);|	lw_worker_tally_flush(worker); atomic_store_explicit(\&task->outcome, lw_outcome(state, reason, lane), memory_order_release);'
	'lib/batch.c|an end is told twice|			word = (word \& ~(LW_WORD_TELL \| LW_WORD_NOTE)) + LW_WORD_TELLER;|			word = (word \& ~LW_WORD_NOTE) + LW_WORD_TELLER;'
	'lib/batch.c|an end is never told|	if (event \&\& take_queued(batch))|	if (event \&\& take_queued(batch) \&\& batch->capacity > 3)'
	'lib/submit.c|a full ring is overwritten|	if (count != 0 \&\& lw_spsc_space(channel->ring, 1) == 0)|	if (false)'
	'lib/cancel.c|a cancel reaches only what is on a path|		lw_worker_intake_drain(worker, \&worker->intakes[worker->intake_list[i]]);|		(void)i;'
	'lib/memory.c|unregistering does not stop what is under way|		lw_path_abort(worker, path, \&abort);|		(void)path;'
	'lib/segment.c|a restarted peer is taken for the old one|	if (!same_peer(old, view)) {|	if (false) {'
)

# Compiles the copy of $1 as the build tree does it, or all that include it.
compile() {
	local source object
	case $1 in
	*.h) sources=(lib/sched/*.c) ;;
	*) sources=("$1") ;;
	esac
	objects=()
	for source in "${sources[@]}"; do
		object=$work/$(basename "$source" .c).o
		[ -e "$work/tree/$source" ] || cp "$source" "$work/tree/$source"
		# shellcheck disable=SC2086 # flags are several words
		cc $flags -I"$work/tree" -I. -c "$work/tree/$source" -o "$object" -w || return 1
		objects+=("$object")
	done
}

flags=$(python3 - "$build/compile_commands.json" <<-'END'
	import json, shlex, sys
	for entry in json.load(open(sys.argv[1])):
	    if entry["file"].endswith("/lib/sched/path.c"):
	        words = shlex.split(entry["command"])[1:]
	        drop = {"-flto", "-ffat-lto-objects", "-Werror", "-MD", "-g"}
	        out, skip = [], False
	        for word in words:
	            if skip:
	                skip = False
	            elif word in ("-o", "-c", "-MT", "-MF"):
	                skip = True
	            elif word not in drop and not word.startswith("-I"):
	                out.append(word)
	        print(" ".join(out), "-Ilib/include")
	        break
END
)
link=$(ninja -C "$build" -t commands sim | tail -n 1 | sed 's/^: && //; s/ && :$//')
status=0
number=0
for mutation in "${mutations[@]}"; do
	number=$((number + 1))
	if [ $# -gt 0 ] && [[ " $* " != *" $number "* ]]; then
		continue
	fi
	rm -rf "$work/tree"
	mkdir -p "$work/tree/lib/sched" "$work/tree/lib/ring"
	file=$(
		python3 - "$mutation" "$work/tree" <<-'END'
			import glob, os, re, sys
			# \| and \& stand for themselves
			parts = re.split(r"(?<!\\)\|(?!\|)", sys.argv[1], maxsplit=3)
			file, what, old, new = [part.replace("\\|", "|").replace("\\&", "&") for part in parts]
			for name in sorted(glob.glob(f"{file}/*.[ch]")) if os.path.isdir(file) else [file]:
			    text = open(name).read()
			    if old in text:
			        open(f"{sys.argv[2]}/{name}", "w").write(text.replace(old, new, 1))
			        sys.exit(print(name))
			sys.exit(1)
		END
	) || {
		echo "$number: the place is gone: $(head -n 1 <<<"$mutation" | cut -d'|' -f2)"
		status=1
		continue
	}
	what=$(head -n 1 <<<"$mutation" | cut -d'|' -f2)
	if ! compile "$file"; then
		echo "$number: does not compile: $what"
		status=1
		continue
	fi
	(cd "$build" && eval "${link/ -o test\/sim\/sim/ ${objects[*]} -o $work/sim}") || exit 1
	seed=${LW_TEST_SEED:-1}
	output=$(timeout 120 "$work/sim" --seed "$seed" --count $schedules 2>&1)
	code=$?
	if [ $code = 0 ]; then
		echo "$number: NOT FOUND in $schedules schedules: $what"
		status=1
	elif [ $code = 124 ]; then
		echo "$number: found, it hangs: $what"
	else
		at=$(sed -n 's/^schedule \(0x[0-9a-f]*\) failed.*/\1/p' <<<"$output")
		said=$(grep -m 1 -o 'test/sim/[a-z]*\.c:[0-9]*: .*' <<<"$output" | sed 's/^[^ ]* //')
		echo "$number: found in $((${at:-$seed} - seed + 1)) schedules: $what: ${said:-status $code}"
	fi
done
exit $status
