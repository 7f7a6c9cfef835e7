# SPDX-License-Identifier: Apache-2.0
# man_ckptd.awk - ckptd(8), made from what `ckptd --help` prints. Called by docs/install.sh.
#	ckptd --help | awk -f docs/man_ckptd.awk -v version=0.2.0 -v date=2026-11-21
function esc(s) {
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	gsub(/'/, "\\(aq", s)
	return s ~ /^\./ ? "\\&" s : s
}
function words(s, n, w, i, line) {
	n = split(s, w, /[ \t]+/)
	line = ""
	for (i = 1; i <= n; i++) {
		if (w[i] == "") continue
		if (line != "" && length(line) + length(w[i]) > 68) {
			print esc(line)
			line = ""
		}
		line = line == "" ? w[i] : line " " w[i]
	}
	if (line != "") print esc(line)
}
function head(s) { # options bold, their ARGUMENTS in italics
	s = esc(s)
	gsub(/\\-\\-[a-z\\-]+/, "\\fB&\\fR", s)
	gsub(/ [A-Z]+/, "\\fI&\\fR", s)
	print s
}
BEGIN {
	print ".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made from ckptd --help by docs/man_ckptd.awk."
	print ".TH CKPTD 8 " date " \"ckptd " version "\" \"ckptd manual\""
	print ".SH NAME\nckptd \\- the checkpoint daemon of a user on a host"
	print ".SH SYNOPSIS\n.B ckptd\n[\\fIoptions\\fR]\n.SH DESCRIPTION"
}
/^usage:/ || /^$/ { next }
/^  -/ {
	if (!options++) print ".SH OPTIONS"
	sub(/^  /, "")
	at = index($0, "  ")
	print ".TP"
	head(at ? substr($0, 1, at - 1) : $0)
	words(at ? substr($0, at) : "")
	next
}
/^  / { words($0); next } # an option's second line
/^Exit: / || exits != "" { exits = exits (exits == "" ? "" : " ") $0; next } # up to the end
{ words($0) }
END {
	print ".SH EXIT STATUS"
	sub(/^Exit: /, "", exits)
	sub(/\.$/, "", exits)
	n = split(exits, piece, ", ")
	for (i = 1; i <= n; i++) {
		if (piece[i] ~ /^[0-9]+ /) {
			number = piece[i]
			sub(/ .*/, "", number)
			sub(/^[0-9]+ /, "", piece[i])
			print ".TP\n.B " number
		}
		words(piece[i])
	}
	print ".SH SIGNALS\n.TP\n\\fBSIGTERM\\fR, \\fBSIGINT\\fR"
	words("ckptd writes the staged steps, within the time of --drain, and exits. After a second signal it exits at once; committed steps stay complete.")
	print ".SH ENVIRONMENT\n.TP\n.B CKPTD_SOCKET"
	words("The socket, if --socket is not given. It means the same to ckptctl and, with CKPT_USE_ENV, to the library.")
	print ".SH FILES\n.TP\n.I SOCKET"
	words("Trainers and ckptctl find the daemon here, in a directory that only its user can open. If a program that cleans temporary files removes the socket, or its lock SOCKET.lock, ckptd makes it again at once.")
	print ".TP\n.I SOCKET.log"
	words("The log of a ckptd that runs in the background.")
	print ".SH SEE ALSO\n.BR ckptctl (1),\n.BR ckpt (3)"
}
