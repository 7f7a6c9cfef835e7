/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complete_scripts.c - what a shell must do to ask for candidates. Called by ckptctl completion.
 * Invariant: a script holds no verb and no option: it asks the program that is on the line, so that
 * it cannot be older than that program.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/complete.h"

const char complete_shells[] = "bash|zsh|fish";

/* Readline takes '=', ':' and '@' for ends of words; a line is cut into words again here. What it
 * has of such a word before the last of them is not to be repeated in the reply. */
static const char bash[] =
	"# bash completion of ckptctl. Made by: ckptctl completion bash\n"
	"_ckptctl_quote() {\n" /* $say, for a word that begins with the quote $1, or with none */
	"	case $1 in\n"
	"	\\') say=${say//\\'/\"'\\\\''\"} ;;\n"
	"	'\"')\n"
	"		say=${say//\\\\/\\\\\\\\} say=${say//\\\"/\\\\\\\"}\n"
	"		say=${say//\\$/\\\\\\$} say=${say//\\`/\\\\\\`}\n"
	"		;;\n"
	"	*) printf -v say %q \"$say\" ;;\n"
	"	esac\n"
	"}\n"
	"_ckptctl() {\n"
	"	local prog=ckptctl line=${COMP_LINE:0:COMP_POINT} words=() word say cut= paths=() i\n"
	"	local quote= head rest\n"
	"	local breaks=${COMP_WORDBREAKS//[^:=@]/}\n"
	"	[[ -z $(type -P -- \"$1\") ]] || prog=$1\n"
	"	for ((i = 0; i <= COMP_CWORD; i++)); do\n"
	"		word=${line#\"${line%%[![:blank:]]*}\"}\n"
	"		if [[ $i -eq 0 || $word != \"$line\" ]]; then\n"
	"			words+=('')\n"
	"		fi\n"
	"		line=$word\n"
	"		[[ $i -eq COMP_CWORD ]] || word=${COMP_WORDS[i]}\n"
	"		words[${#words[@]}-1]+=$word\n"
	"		line=${line#\"$word\"}\n"
	"	done\n"
	"	word=${words[${#words[@]}-1]}\n"
	"	head=$word rest=${word#*[\\'\\\"]}\n"
	"	if [[ $rest != \"$word\" && $rest != *[\\'\\\"]* && ${word%%[\\'\\\"]*} != *\\\\ ]]; then\n"
	"		head=${word%%[\\'\\\"]*} quote=${word:${#head}:1}\n" /* it is open */
	"	fi\n"
	"	[[ -z $breaks ]] || cut=${head%\"${head##*[$breaks]}\"} cut=${cut//\\\\/}\n"
	"	COMPREPLY=()\n"
	"	while IFS= read -r say; do\n"
	"		case $say in\n"
	"		:dir | :file)\n"
	"			i=-f\n"
	"			[[ $say == :file ]] || i=-d\n"
	"			[[ $word == --*=* ]] && word=${word#*=}\n"
	"			mapfile -t paths < <(compgen $i -- \"$word\")\n"
	"			;;\n"
	"		?*)\n"
	"			say=${say%%$'\\t'*} say=${say#\"$cut\"}\n"
	"			_ckptctl_quote \"$quote\"\n"
	"			COMPREPLY+=(\"$say\")\n"
	"			;;\n"
	"		esac\n"
	"	done < <(\"$prog\" completion complete -- \"${words[@]:1}\" 2>/dev/null)\n"
	"	if [[ ${#COMPREPLY[@]} -eq 0 ]]; then\n"
	"		[[ ${#paths[@]} -eq 0 ]] || compopt -o filenames 2>/dev/null\n"
	"		COMPREPLY=(\"${paths[@]}\")\n"
	"	elif [[ ${#paths[@]} -gt 0 ]]; then\n"
	"		for say in \"${paths[@]}\"; do\n"
	"			_ckptctl_quote \"$quote\"\n"
	"			COMPREPLY+=(\"$say/\")\n"
	"		done\n"
	"	fi\n"
	"	compopt -o nosort 2>/dev/null\n"
	"}\n"
	"complete -F _ckptctl ckptctl\n";

static const char zsh[] =
	"#compdef ckptctl\n"
	"# zsh completion of ckptctl. Made by: ckptctl completion zsh\n"
	"_ckptctl() {\n"
	"	local prog=ckptctl line value paths= none=1\n"
	"	local -a said\n"
	"	(( ! $+commands[${words[1]}] )) && [[ ! -x ${words[1]} ]] || prog=${words[1]}\n"
	"	while IFS= read -r line; do\n"
	"		case $line in\n"
	"		:dir) paths=-/ ;;\n"
	"		:file) paths=-f ;;\n"
	"		?*)\n"
	"			value=${line%%$'\\t'*}\n"
	"			value=${value//\\\\/\\\\\\\\}\n"
	"			value=${value//:/\\\\:}\n"
	"			[[ $line != *$'\\t'* ]] || value+=:${line#*$'\\t'}\n"
	"			said+=(\"$value\")\n"
	"			;;\n"
	"		esac\n"
	"	done < <(\"$prog\" completion complete -- \"${(@)words[2,CURRENT-1]}\" \"$PREFIX\" 2>/dev/null)\n"
	"	(( ! $#said )) || _describe -V ckptctl said && none=0\n"
	"	if [[ -n $paths ]]; then\n"
	"		[[ $PREFIX != --*=* ]] || compset -P '*='\n"
	"		_files $paths && none=0\n"
	"	fi\n"
	"	return none\n"
	"}\n"
	"if [[ $funcstack[1] == _ckptctl ]]; then\n"
	"	_ckptctl \"$@\"\n"
	"else\n"
	"	compdef _ckptctl ckptctl\n"
	"fi\n";

static const char fish[] =
	"# fish completion of ckptctl. Made by: ckptctl completion fish\n"
	"function __ckptctl_complete\n"
	"	set -l words (commandline -opc)\n"
	"	set -l word (commandline -ct)\n"
	"	set -l prog $words[1]\n"
	"	set -e words[1]\n"
	"	command -q $prog; or set prog ckptctl\n"
	"	for line in ($prog completion complete -- $words \"$word\" 2>/dev/null)\n"
	"		switch $line\n"
	"			case ':dir' ':file'\n"
	"				set -l option (string match -r '^--[^=]*=' -- $word; or echo)\n"
	"				set -l path (string replace -r '^--[^=]*=' '' -- $word)\n"
	"				if test $line = ':dir'\n"
	"					printf '%s\\n' $option(__fish_complete_directories \"$path\" '')\n"
	"				else\n"
	"					printf '%s\\n' $option(__fish_complete_path \"$path\")\n"
	"				end\n"
	"			case '*'\n"
	"				printf '%s\\n' $line\n"
	"		end\n"
	"	end\n"
	"end\n"
	"complete -c ckptctl -f -k -a '(__ckptctl_complete)'\n";

const char *complete_script(const char *shell)
{
	static const struct {
		const char *name, *script;
	} known[] = { { "bash", bash }, { "zsh", zsh }, { "fish", fish } };

	for (uint32_t i = 0; i < ARRAY_LEN(known); i++)
		if (!strcmp(known[i].name, shell))
			return known[i].script;
	return NULL;
}
