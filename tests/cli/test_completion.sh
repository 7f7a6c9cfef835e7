#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The scripts of ckptctl completion, in the shells that they are for: what the key for completion makes of a line.
# What is offered for which words is unit-cli_complete's.
# shellcheck disable=SC2016,SC2317,SC2329 # what is typed is not expanded here; the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/../e2e/ckptd_tap.sh"

# A store whose job has the steps 10 and 12, and a directory called steps; ckptctl in PATH.
daemon_start --quiet
# The last step of a run waits for a slot; one before it may be skipped.
"$trainer" --params 60K --root "$store" --job a --socket "$socket" --mesh fsdp=2 --steps 10 >/dev/null
"$trainer" --params 60K --root "$store" --job a --socket "$socket" --mesh fsdp=2 --steps 12 --resume latest >/dev/null
unset CKPTD_STORE NO_COLOR
mkdir -p "$tmp/here/steps" "$tmp/bin" "$tmp/home"
ln -s "$ckptctl" "$tmp/bin/ckptctl"
export PATH=$tmp/bin:$PATH HOME=$tmp/home
cd "$tmp/here"
mkdir "my \$runs"
cp -r "$store/a" "my \$runs/a"
cp -r "$store/a" "my \$runs/b"

# is SENTENCE WANT COMMAND...: it prints exactly this.
is() {
	local sentence=$1 want=$2
	shift 2
	same() {
		local got
		got=$("$@") || true
		[ "$got" = "$want" ] || { echo "wanted: '$want'"; echo "got:    '$got'"; return 1; }
	}
	check "$sentence" same "$@"
}

# --- bash: the function, called as readline calls it ---

# The words of a line as readline cuts it, '=', ':' and '@' being words too; prints the replies, blanks between them.
bash_completes() { # WORD...: joined they are the line, blanks included
	bash --norc -c '
		source <(ckptctl completion bash) || exit 1
		COMP_LINE= COMP_WORDS=() COMP_WORDBREAKS=${BREAKS-$COMP_WORDBREAKS}
		for word; do
			COMP_LINE+=$word
			[[ $word == " " ]] || COMP_WORDS+=("$word")
		done
		[[ $word != " " ]] || COMP_WORDS+=("")
		COMP_POINT=${#COMP_LINE} COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
		compopt() { [[ $* != *filenames* ]] || echo -n "(files) "; }
		_ckptctl "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" ""
		echo "${COMPREPLY[*]}"
	' bash "$@"
}
without_at() {
	BREAKS=' =:' bash_completes "$@"
}
c=ckptctl
is "bash: a verb" "verify version" bash_completes $c ' ' ver
is "bash: an option of the verb" "--all" bash_completes $c ' ' verify ' ' --al
is "bash: behind the = that readline takes for a word, only the argument is given back" "always" \
	bash_completes $c ' ' ls ' ' --color = al
is "bash: a step, behind the : that is a word too" "12 10" bash_completes $c ' ' -C ' ' "$store/a" ' ' verify ' ' step : 1
is "bash: steps and directories together" "step:12 step:10 steps/" bash_completes $c ' ' -C ' ' "$store/a" ' ' verify ' ' st
is "bash: directories alone are the shell's" "(files) $store/a" bash_completes $c ' ' ls ' ' "$store/"
is "bash: and behind --store=" "(files) $store/a" bash_completes $c ' ' ls ' ' --store = "$store/"
is "bash: a tensor" "optim/kind.weight.master" bash_completes $c ' ' show ' ' "$store/a/step-000000000012" ' ' optim/kind.weight.m
is "bash: a step of a job, behind the @ that is a word too" "12" bash_completes $c ' ' -C ' ' "$store" ' ' verify ' ' a @ 12
is "bash: and of a job at a path with blanks" "12" bash_completes $c ' ' verify ' ' 'my\ \$runs/a' @ 12
is "bash: where @ is no end of a word, the blanks are quoted" "my\\ \\\$runs/a@12" \
	without_at $c ' ' verify ' ' 'my\ \$runs/a@12'
is "bash: in quotes they are as they are" 'my $runs/a@12' \
	bash_completes $c ' ' verify ' ' "'my \$runs/a@12"
is "bash: in double quotes only what these do not hold is quoted" 'my \$runs/a@12' \
	bash_completes $c ' ' verify ' ' '"my \$runs/a@12'
is "bash: a job, which the daemon knows" "a" bash_completes $c ' ' forget ' ' -S ' ' "$socket" ' '
is "bash: nothing, without a word, where nothing can be" "" bash_completes $c ' ' nonsense ' '
is "bash: what is on the line is never run" "" bash_completes $c ' ' -C ' ' '$(touch' ' ' "$tmp/ran)" ' ' verify ' ' x
check "bash: really not" [ ! -e "$tmp/ran" ]

# --- fish: its own completion, asked ---

fish_completes() { # LINE
	fish --no-config -c 'ckptctl completion fish | source; complete -C $argv[1]' "$1" | cut -f1 | tr '\n' ' '
}
if command -v fish >/dev/null; then
	is "fish: a verb" "verify version " fish_completes "$c ver"
	check "fish: with what it does" grep -q 'what was committed' <(fish --no-config -c 'ckptctl completion fish | source; complete -C "ckptctl ver"')
	is "fish: an option of the verb" "--all " fish_completes "$c verify --al"
	is "fish: an argument of an option" "--color=always " fish_completes "$c ls --color=al"
	is "fish: steps and directories together" "step:12 step:10 steps/ " fish_completes "$c -C $store/a verify st"
	is "fish: directories" "$store/a/ " fish_completes "$c ls $store/"
	is "fish: and behind --store=" "--store=$store/a/ " fish_completes "$c ls --store=$store/"
	is "fish: a tensor" "optim/kind.weight.master " fish_completes "$c show $store/a/step-000000000012 optim/kind.weight.m"
	is "fish: nothing, without a word, where nothing can be" "" fish_completes "$c nonsense "
else
	skip "there is no fish" "fish completes verbs, options, steps, directories, tensors"
fi

# --- zsh: a real one, on a terminal of its own, is typed into ---

# Types KEYS and tab into a zsh, and prints the line that it has then. Ctrl-X prints and leaves.
zsh_completes() { # KEYS
	cat >"$tmp/home/.zshrc" <<-'END'
	PS1=
	unsetopt zle_bracketed_paste 2>/dev/null
	autoload -Uz compinit && compinit -u -D
	source <(ckptctl completion zsh)
	say() { print -rn -- "<<$BUFFER>>"; exit }
	zle -N say
	bindkey '^X' say
	print READY
	END
	timeout 20 zsh -f -c '
		zmodload zsh/zpty
		zpty z "ZDOTDIR=$HOME TERM=dumb zsh -i"
		zpty -r z out "*READY*"
		zpty -n -w z "$1"$'"'\\t'"'
		zpty -n -w z $'"'\\x18'"'
		zpty -r z out "*<<*>>*"
		print -r -- ${${out##*<<}%%>>*}
		zpty -d z
	' zsh "$1"
}
if command -v zsh >/dev/null && zsh -f -c 'zmodload zsh/zpty' 2>/dev/null; then
	is "zsh: a verb" "$c verify " zsh_completes "$c veri"
	is "zsh: an option of the verb" "$c verify --all " zsh_completes "$c verify --al"
	is "zsh: an argument of an option" "$c ls --color=always " zsh_completes "$c ls --color=al"
	is "zsh: a step" "$c -C $store/a verify step:12 " zsh_completes "$c -C $store/a verify step:12"
	is "zsh: what steps have in common" "$c -C $store/a verify step:1" zsh_completes "$c -C $store/a verify step:"
	is "zsh: a directory" "$c ls $store/a/" zsh_completes "$c ls $store/"
	is "zsh: and behind --store=" "$c ls --store=$store/a/" zsh_completes "$c ls --store=$store/"
	is "zsh: a tensor" "$c show $store/a/step-000000000012 optim/kind.weight.master " \
		zsh_completes "$c show $store/a/step-000000000012 optim/kind.weight.m"
else
	skip "there is no zsh" "zsh completes verbs, options, steps, directories, tensors"
fi
tap_end
