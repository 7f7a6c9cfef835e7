/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_names.c - names that come from directories and from people: entries of a job directory and of
 * its claims, job names, part names. What is taken for ours is one component, is printed as it was
 * read, and leads nowhere else.
 */
#include "ckpt/store/store_impl.h"
#include "formats/native/native_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one_component(const char *s)
{
	assert(*s && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0);
}

static void entry(const char *s)
{
	struct store_claimed claimed;
	struct store_name x, again;

	store_name_parse(s, &x);
	assert(x.kind == STORE_FOREIGN || x.kind == STORE_STEP || x.kind == STORE_TMP ||
	       x.kind == STORE_OLD || x.kind == STORE_TRASH);
	if (x.kind != STORE_FOREIGN) {
		one_component(s);
		assert(!strcmp(x.dir, s) && strlen(s) < STORE_DIR_MAX);
		store_name_parse(x.dir, &again);
		assert(again.kind == x.kind && again.step == x.step &&
		       again.generation == x.generation && again.seq == x.seq &&
		       again.nonce == x.nonce);
	} else {
		assert(!x.dir[0]);
	}
	if (store_claimed_parse(s, &claimed)) {
		one_component(s);
		assert(x.kind == STORE_FOREIGN);
	}
}

static void job(const char *s)
{
	struct ckpt_err err = { 0 };
	struct store_name x;

	if (store_job_check(s, &err) < 0) {
		assert(err.code == -EINVAL && err.msg[0]);
		return;
	}
	one_component(s);
	store_name_parse(s, &x);
	assert(s[0] != '.' && strlen(s) <= CKPT_JOB_MAX && x.kind == STORE_FOREIGN);
	for (const char *p = s; *p; p++)
		assert((unsigned char)*p > ' ' && (unsigned char)*p < 127);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *s = malloc(size + 1);

	assert(s);
	if (size)
		memcpy(s, data, size);
	s[size] = 0;
	entry(s);
	job(s);
	if (native_name_ok(s)) {
		one_component(s);
		assert(s[0] != '.' && strlen(s) <= NATIVE_NAME_MAX &&
		       strcmp(s, NATIVE_MANIFEST) != 0);
	}
	free(s);
	return 0;
}
