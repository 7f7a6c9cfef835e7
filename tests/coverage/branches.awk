# SPDX-License-Identifier: Apache-2.0
# branches.awk - gcov's text (-b -c -t) of the files of one folder to a table. Called by coverage.sh with
# -v folder=ckpt/store -v list=FILE. Lines of the text that matter:
#	        -:    0:Source:ckpt/store/store.c
#	       12:   34:	if (x)
#	branch  0 taken 7 (fallthrough)
#	branch  1 taken 0
#	branch  0 never executed
function file_end() {
	if (all)
		printf "%6.1f %%  %5d of %5d  %s\n", 100 * taken / all, taken, all, file
	room_all += all
	room_taken += taken
	all = taken = 0
}
/^ *-: +0:Source:/ {
	file_end()
	file = $0
	sub(/^ *-: +0:Source:/, "", file)
	mine = index(file, folder "/") == 1 && file ~ /\.c$/ # not the headers
	next
}
/^branch +[0-9]+ / {
	if (!mine || text ~ /(^|[^_a-z])assert\(/)
		next
	all++
	if ($3 == "taken" && $4 + 0 > 0)
		taken++
	else
		printf "%s:%d: way %d%s: %s\n", file, line, $2 + 1, $3 == "never" ? ", line not reached" : "", text >>list
	next
}
/^ *[^:]+: *[0-9]+:/ {
	line = $0
	sub(/^ *[^:]+: */, "", line)
	text = line
	sub(/:.*/, "", line)
	sub(/^[0-9]+:[ \t]*/, "", text)
}
END {
	file_end()
	printf "%6.1f %%  %5d of %5d  %s, all\n", room_all ? 100 * room_taken / room_all : 0, room_taken, room_all, folder
}
