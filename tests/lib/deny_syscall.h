/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deny_syscall.h - run a piece of a test in a child in which one system call fails with a chosen
 * errno, as in a sandbox or on an older kernel. Every fallback has a test that forces it with this.
 */
#ifndef CKPT_TESTS_LIB_DENY_SYSCALL_H
#define CKPT_TESTS_LIB_DENY_SYSCALL_H
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define DENY_NOT_POSSIBLE 120 /* this kernel takes no filter: skip */

/* For this process and its children, for ever. mask != 0: only when bits of argument arg that it
 * names are set. */
static inline int deny_install_if(unsigned nr, unsigned eno, unsigned arg, unsigned mask)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 4),
		BPF_JUMP(BPF_JMP | BPF_JA, mask ? 0 : 2, 0, 0),
		/* the low half: all that flags use */
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 (unsigned)offsetof(struct seccomp_data, args) + 8 * arg),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (eno & SECCOMP_RET_DATA)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { .len = sizeof(code) / sizeof(*code), .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog);
}

static inline int deny_install(unsigned nr, unsigned eno)
{
	return deny_install_if(nr, eno, 0, 0);
}

/* body's result (0..119) from a child where system call nr is -eno; body must not use the test
 * framework's asserts. */
static inline int deny_run(unsigned nr, int eno, int (*body)(void *arg), void *arg)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(deny_install(nr, (unsigned)eno) ? DENY_NOT_POSSIBLE : body(arg));
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return 119;
	return WEXITSTATUS(status);
}
#endif
