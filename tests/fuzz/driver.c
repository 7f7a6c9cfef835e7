/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - runs a fuzz target in `make test`, without libFuzzer: every file of its corpus, then a
 * fixed number of mutations of them. usage: X [-n MUTATIONS] [-s SEED] [FILE-or-DIRECTORY...]
 *
 * Invariant: the same seed and files give the same inputs, in the same order. An input that ends
 * the program is left in the working directory (or $FUZZ_CRASHES) as crash-SEED-NUMBER, which can
 * be given as FILE.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MAX (1u << 20)
#define FILES_MAX 4096
#define MUTATIONS 4000
#define SECONDS_MAX 5 /* a slow target runs fewer mutations, and says how many */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern void __sanitizer_set_death_callback(void (*)(void)) __attribute__((weak));

struct input {
	uint8_t *data;
	size_t size;
};

static struct input file[FILES_MAX];
static size_t nfile;
static struct input now;
static uint64_t seed = 1, number, rng;

static uint64_t draw(void)
{
	uint64_t z = (rng += 0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static size_t below(size_t n)
{
	return n ? (size_t)(draw() % n) : 0;
}

/* The input that was running when the program dies. */
static void keep(void)
{
	const char *dir = getenv("FUZZ_CRASHES");
	char path[512];
	int fd;

	if (!now.data)
		return;
	snprintf(path, sizeof path, "%s/crash-%llu-%llu", dir ? dir : ".", (unsigned long long)seed,
		 (unsigned long long)number);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd >= 0 && write(fd, now.data, now.size) == (ssize_t)now.size)
		fprintf(stderr, "# the input that did it: %s\n", path);
	if (fd >= 0)
		(void)close(fd);
}

static void on_abort(int sig)
{
	keep();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void run(const uint8_t *data, size_t size)
{
	uint8_t *exact = malloc(size ? size : 1); /* so that one byte beyond is seen */

	if (!exact)
		abort();
	if (size)
		memcpy(exact, data, size);
	now = (struct input){ exact, size };
	number++;
	(void)LLVMFuzzerTestOneInput(exact, size);
	now = (struct input){ NULL, 0 };
	free(exact);
}

static void load(const char *path)
{
	FILE *f = fopen(path, "rbe");
	uint8_t *p = malloc(INPUT_MAX);

	if (!f || !p || nfile == FILES_MAX) {
		fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
		exit(1);
	}
	size_t n = fread(p, 1, INPUT_MAX, f);

	fclose(f);
	file[nfile++] = (struct input){ p, n };
}

/* A file, or all files of a directory in the order of their names. */
static void load_all(const char *path)
{
	struct dirent **entry;
	struct stat st;
	int n;

	if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
		load(path);
		return;
	}
	n = scandir(path, &entry, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		char full[4096];

		snprintf(full, sizeof full, "%s/%s", path, entry[i]->d_name);
		if (entry[i]->d_name[0] != '.')
			load(full);
		free(entry[i]);
	}
	if (n >= 0)
		free(entry);
}

/* One to four changes of the kinds that break parsers. */
static size_t mutate(const struct input *from, uint8_t *out)
{
	static const uint8_t telling[] = { 0, 1, 0x7f, 0x80, 0xff, ' ', ',', '=', '9', '-' };
	size_t n = from->size;

	if (n)
		memcpy(out, from->data, n);
	for (size_t k = 1 + below(4); k > 0; k--) {
		size_t at = below(n), len = 1 + below(8);
		const struct input *other = nfile ? &file[below(nfile)] : from;

		switch (draw() % 7) {
		case 0: /* a bit */
			if (n)
				out[at] = (uint8_t)(out[at] ^ 1u << draw() % 8);
			break;
		case 1: /* a byte that is often a limit */
			if (n)
				out[at] = telling[below(sizeof telling)];
			break;
		case 2: /* a whole number that is often a limit */
			for (size_t i = 0; i < len && at + i < n; i++)
				out[at + i] = i + 1 == len ? 0x7f : 0xff;
			break;
		case 3: /* cut */
			n = at;
			break;
		case 4: /* take out */
			if (at + len < n) {
				memmove(out + at, out + at + len, n - at - len);
				n -= len;
			}
			break;
		case 5: /* put in */
			if (n + len <= INPUT_MAX) {
				memmove(out + at + len, out + at, n - at);
				for (size_t i = 0; i < len; i++)
					out[at + i] = (uint8_t)draw();
				n += len;
			}
			break;
		case 6: /* a stretch of another file */
			len = below(64);
			for (size_t i = 0, o = below(other->size);
			     i < len && at + i < n && o + i < other->size; i++)
				out[at + i] = other->data[o + i];
			break;
		}
	}
	return n;
}

static uint64_t seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec;
}

int main(int argc, char **argv)
{
	uint8_t *out = malloc(INPUT_MAX + 16);
	static const struct input empty = { (uint8_t *)"", 0 };
	uint64_t mutations = MUTATIONS, done = 0, end;
	int opt;

	while ((opt = getopt(argc, argv, "n:s:")) != -1) {
		if (opt == 'n')
			mutations = strtoull(optarg, NULL, 0);
		else if (opt == 's')
			seed = strtoull(optarg, NULL, 0);
		else
			return 2;
	}
	if (!out)
		return 1;
	for (int i = optind; i < argc; i++)
		load_all(argv[i]);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(keep);
	signal(SIGABRT, on_abort);
	run(empty.data, 0);
	for (size_t i = 0; i < nfile; i++)
		run(file[i].data, file[i].size);
	printf("ok 1 - %zu files of the corpus\n", nfile);
	fflush(stdout);
	rng = seed;
	end = seconds() + SECONDS_MAX;
	for (; done < mutations && (done % 64 || seconds() <= end); done++)
		run(out, mutate(nfile ? &file[below(nfile)] : &empty, out));
	free(out);
	printf("ok 2 - %llu mutations, seed %llu\n1..2\n", (unsigned long long)done,
	       (unsigned long long)seed);
	return 0;
}
