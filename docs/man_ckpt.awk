# SPDX-License-Identifier: Apache-2.0
# man_ckpt.awk - ckpt(3), made from the comments of ckpt/ckpt.h, which are the documentation. Called by docs/install.sh.
#	awk -f docs/man_ckpt.awk -v version=0.2.0 -v date=2026-11-21 ckpt/ckpt.h ckpt/ckpt.h
# The header is read twice: the first time for the names of its functions, which NAME lists.
# With -v names=1 only they are printed, a line each.
function esc(s) {
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	gsub(/'/, "\\(aq", s)
	gsub(/`/, "\\(ga", s)
	gsub(/\^/, "\\(ha", s)
	gsub(/~/, "\\(ti", s)
	return s ~ /^\./ ? "\\&" s : s
}
function words(s, n, w, i, line) { # a paragraph, filled
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
function literal(s, out, i, c) { # a line as it is, tabs every eight columns
	out = ""
	for (i = 1; i <= length(s); i++) {
		c = substr(s, i, 1)
		if (c == "\t")
			do out = out " "; while (length(out) % 8)
		else
			out = out c
	}
	sub(/ +$/, "", out)
	print esc(out)
}
# Lines of a comment, without its marks: paragraphs are filled, what is indented by a tab stays.
function prose(n, i, para, nf, s) {
	para = ""
	nf = 0
	for (i = 1; i <= n; i++) {
		s = text[i]
		if (s ~ /^\t/) {
			if (!nf) {
				words(para)
				para = ""
				print ".PP\n.RS 4\n.nf"
				nf = 1
			}
			literal(substr(s, 2))
			continue
		}
		if (nf) {
			print ".fi\n.RE"
			nf = 0
			print ".PP"
		}
		if (s == "") {
			words(para)
			if (para != "" && i < n && text[i + 1] !~ /^\t/) print ".PP"
			para = ""
		} else
			para = para " " s
	}
	words(para)
	if (nf) print ".fi\n.RE"
}
function function_name(s) {
	return match(s, /ckpt_[a-z_]+\(/) ? substr(s, RSTART, RLENGTH - 1) : ""
}
function types() {
	if (!ntypes) return
	print ".SH CONSTANTS AND TYPES\n.nf"
	for (t = 1; t <= ntypes; t++)
		if (type[t] != "" || (t > 1 && type[t - 1] != "" && t < ntypes)) literal(type[t])
	print ".fi"
	ntypes = 0
}
function begin_functions() {
	if (functions++) return
	types()
	print ".SH FUNCTIONS"
}

NR == FNR { # the first reading
	if (!comment && /^[a-z].*ckpt_[a-z_]+\(/ && !/^typedef/) {
		all = all (all == "" ? "" : ", ") function_name($0)
		if (names) print function_name($0)
	}
	if (FNR == 3) { sub(/^.* - /, ""); sub(/\..*$/, ""); what = $0 }
	comment = (/^\/\*/ || comment) && !/\*\//
	next
}
names { exit }
FNR == 1 {
	comment = 0
	print ".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Made from ckpt.h by docs/man_ckpt.awk."
	print ".TH CKPT 3 " date " \"ckptd " version "\" \"ckptd manual\"\n.SH NAME"
	words(all)
	print "\\- " esc(what)
	print ".SH SYNOPSIS\n.nf\n#include <ckpt.h>\n.PP\ncc $(pkg\\-config \\-\\-cflags \\-\\-libs ckpt) trainer.c\n.fi"
	print ".SH DESCRIPTION"
	next
}
# Comments at the left margin, gathered into text[1..ntext].
!comment && /^\/\*/ { comment = 1; ntext = 0; whole = $0; sub(/^\/\* ?/, "") }
comment {
	if (whole == "") whole = $0
	else if ($0 != whole && ntext) whole = whole "\n" $0
	last = /\*\//
	if (last) { closed = $0; sub(/[ \t]*\*\/.*/, "") }
	if (ntext || whole != $0) sub(/^ \* ?/, "")
	sub(/^ \*$/, "")
	if (!(last && $0 == "") && !(ntext == 0 && $0 == "")) text[++ntext] = $0
	if (!last) next
	comment = 0
	pending = 1
	if (FNR < 100 && !described) { # the header's own
		described = 1
		text[1] = ""
		prose(ntext)
		pending = 0
		ntext = 0
	}
	next
}
/^(#ifndef|#define CKPT_H|#include|#ifdef|#endif|#pragma|extern "C"|}$)/ { next }
# A prototype, perhaps of several lines.
/^[a-z].*ckpt_[a-z_]+\(/ && !/^typedef/ {
	begin_functions()
	if (!open) print ".SS " function_name($0)
	print ".nf"
	proto = 1
	open = 1
}
proto {
	line = $0
	tail = ""
	if (match(line, /[ \t]*\/\*.*\*\//)) {
		tail = substr(line, RSTART, RLENGTH)
		line = substr(line, 1, RSTART - 1)
		gsub(/^[ \t]*\/\* ?|[ \t]*\*\/$/, "", tail)
	}
	printf "\\fB"
	literal_bold(line)
	if (line ~ /;/) {
		proto = 0
		print ".fi"
		if (tail != "") { print ".PP"; words(tail) }
	}
	next
}
/^$/ && functions { # the block ends: its comment, which stood before it
	flush_block()
	next
}
!functions {
	if (pending) {
		n = split(whole, w, "\n")
		for (i = 1; i <= n; i++) type[++ntypes] = w[i]
		pending = 0
		whole = ""
	}
	type[++ntypes] = $0
}

function literal_bold(s) { sub(/^[ \t]+/, "        ", s); print esc(s) "\\fR" }
function flush_block() {
	open = 0
	if (!pending || !ntext) return
	print ".PP"
	prose(ntext)
	pending = 0
	ntext = 0
	whole = ""
}
END {
	if (names) exit
	flush_block()
	print ".SH SEE ALSO\n.BR ckptctl (1),\n.BR ckptd (8)"
}
