/* SPDX-License-Identifier: Apache-2.0 */
/*
 * corpus.c - reads the folder of text files. Called once, by the parent, before the ranks exist:
 * they share its pages. Invariant: the same folder gives the same bytes, whatever readdir's order.
 */
#include "corpus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int corpus_error(int r, const char *dir, const char *name)
{
	fprintf(stderr,
		"trainer: cannot read the text %s%s%s: %s; on Debian the package base-files brings "
		"" CORPUS_DIR ", or name another folder of text files with --text DIR\n",
		dir, *name ? "/" : "", name, strerror(-r));
	return r;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Appends the file, when it is a regular one. */
static int corpus_append(struct corpus *c, int dirfd, const char *name)
{
	struct stat st;
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), r = 0;

	if (fd < 0)
		return errno == ELOOP ? 0 : -errno;
	if (fstat(fd, &st) < 0) {
		r = -errno;
	} else if (S_ISREG(st.st_mode)) {
		uint64_t want = (uint64_t)st.st_size;
		uint8_t *grown = NULL;

		if (want > CORPUS_BYTES_MAX - c->bytes)
			r = -EFBIG;
		else if (!(grown = realloc(c->byte, (size_t)(c->bytes + want + 1))))
			r = -ENOMEM;
		if (grown)
			c->byte = grown;
		while (r == 0 && want > 0) {
			ssize_t n = read(fd, c->byte + c->bytes, (size_t)want);

			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0) {
				r = n < 0 ? -errno : 0;
				break;
			}
			c->bytes += (uint64_t)n;
			want -= (uint64_t)n;
		}
	}
	close(fd);
	return r;
}

int corpus_load(const char *dir, struct corpus *ret_corpus)
{
	struct corpus c = { 0 };
	struct dirent **entry = NULL;
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;

	if (dirfd < 0)
		return corpus_error(-errno, dir, "");
	int n = scandir(dir, &entry, NULL, by_name);

	if (n < 0)
		r = corpus_error(-errno, dir, "");
	for (int i = 0; i < n; i++) {
		if (r == 0 && (r = corpus_append(&c, dirfd, entry[i]->d_name)) < 0)
			corpus_error(r, dir, entry[i]->d_name);
		free(entry[i]);
	}
	free(entry);
	close(dirfd);
	if (r == 0 && c.bytes < CORPUS_BYTES_MIN) {
		fprintf(stderr,
			"trainer: the folder %s holds %llu bytes of text in regular files, at least %llu "
			"are needed; name a folder of text files with --text DIR\n",
			dir, (unsigned long long)c.bytes, (unsigned long long)CORPUS_BYTES_MIN);
		r = -ENOENT;
	}
	if (r < 0) {
		free(c.byte);
		return r;
	}
	for (uint64_t i = 0; i < c.bytes; i++)
		c.hash = mix64(c.hash ^ c.byte[i]);
	*ret_corpus = c;
	return 0;
}
