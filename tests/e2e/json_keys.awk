# SPDX-License-Identifier: Apache-2.0
# json_keys.awk - which keys JSON documents have, one document a line as ckptctl prints them. For each value of an object a line
#	SCHEMA <tab> PATH <tab> TYPE
# and for each object that is not empty a line
#	SCHEMA <tab> PATH, "." for the document <tab> {KEY KEY ...}, as they were printed but for schema and type
# PATH is like checkpoints[].step. Arrays are entered where an object stands in them directly, so index sets and shapes are one
# value. SCHEMA is the document's "schema" without its number; ckptd.progress for all verbs' lines of that type. A line that is
# no JSON ends the program with 1.
function fail(why) {
	printf "line %d: %s at character %d: %s\n", NR, why, at, substr(text, at, 60) >"/dev/stderr"
	bad = 1
	exit 1
}
function string(    from) {
	from = ++at
	while (substr(text, at, 1) != "\"") {
		if (at > length(text)) fail("a string that does not end")
		at += substr(text, at, 1) == "\\" ? 2 : 1
	}
	at++
	return substr(text, from, at - from - 1)
}
# One value; returns its type. path "": it is not reported.
function value(path, inside,    c, word, key, keys, n, type) {
	c = substr(text, at, 1)
	if (c == "{") {
		at++
		if (substr(text, at, 1) == "}") { at++; return "object" }
		for (;;) {
			if (substr(text, at, 1) != "\"") fail("no key")
			key = string()
			if (substr(text, at, 1) != ":") fail("no colon")
			at++
			word = path == "" ? key : path "." key
			type = value(word, inside)
			if (word == "schema") schema = last
			else if (word == "type") kind = last
			if (inside) found[++count] = word "\t" type
			if (word !~ /^(schema|type)$/) keys = keys " " key
			c = substr(text, at++, 1)
			if (c == "}") {
				if (inside) found[++count] = (path == "" ? "." : path) "\t{" substr(keys, 2) "}"
				return "object"
			}
			if (c != ",") fail("no comma")
		}
	}
	if (c == "[") {
		at++
		if (substr(text, at, 1) == "]") { at++; return "array" }
		for (;;) {
			value(path "[]", inside && substr(text, at, 1) == "{")
			c = substr(text, at++, 1)
			if (c == "]") return "array"
			if (c != ",") fail("no comma")
		}
	}
	if (c == "\"") { last = string(); return "string" }
	if (match(substr(text, at, 40), /^(true|false)/)) { at += RLENGTH; return "boolean" }
	if (match(substr(text, at, 40), /^null/)) { at += RLENGTH; return "null" }
	if (match(substr(text, at, 40), /^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?/)) {
		n = substr(text, at, RLENGTH)
		at += RLENGTH
		return n ~ /[.eE]/ ? "number" : "integer"
	}
	fail("no value")
}
{
	text = $0
	at = 1
	count = 0
	schema = kind = ""
	if (value("", 1) != "object" || at <= length(text)) fail("more than a document")
	sub(/\/[0-9]+$/, "", schema)
	if (kind == "progress") schema = "ckptd.progress"
	for (i = 1; i <= count; i++)
		if (!seen[schema "\t" found[i]]++) print schema "\t" found[i]
}
END { exit bad }
