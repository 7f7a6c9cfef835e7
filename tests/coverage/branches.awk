# SPDX-License-Identifier: Apache-2.0
# branches.awk - gcov's text (-b -c -t) of the files of one folder to a table. Called by coverage.sh with
# -v folder=ckpt/store -v list=FILE -v why=FILE. Why has lines FILE, part of a source line, reason, with tabs between them: branches of
# such lines that no test takes are explained. Lines of gcov's text that matter:
#	        -:    0:Source:ckpt/store/store.c
#	       12:   34:	if (x)
#	branch  0 taken 7 (fallthrough)
#	branch  1 taken 0
#	branch  0 never executed
BEGIN {
	FS = "\t"
	while ((getline < why) > 0)
		if ($0 !~ /^(#|$)/) {
			n++
			at[n] = $1
			of[n] = $2
		}
	FS = " "
}
function file_end() {
	if (all)
		row(taken, excused, all, file)
	room_all += all
	room_taken += taken
	room_excused += excused
	all = taken = excused = 0
}
function row(taken, excused, all, what) {
	printf "%6.1f %%  %5d of %5d  %4d explained  %4d open  %s\n", all ? 100 * taken / all : 0, taken, all, excused, all - taken - excused, what
}
function is_explained(i) {
	for (i = 1; i <= n; i++)
		if (at[i] == file && index(text, of[i]))
			return used[i] = 1
	return 0
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
	else if (is_explained())
		excused++
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
	row(room_taken, room_excused, room_all, folder ", all")
	for (i = 1; i <= n; i++)
		if (!used[i])
			printf "%s: explained, but there is no such line, or it is taken: %s\n", at[i], of[i] >>list
}
