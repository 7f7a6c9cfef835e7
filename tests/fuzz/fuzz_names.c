/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_names.c - names that come from directories and from people: entries of a job directory and
 * of its claims, job names, part names, addresses of checkpoints. What is taken for ours is one
 * component, is printed as it was read, and leads nowhere else.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/store/address.h"
#include "ckpt/store/store_impl.h"
#include "formats/native/native_impl.h"

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

/* What is in front of the '@' and what is behind it are the text, and the same step is meant when
 * the parts are put together again. */
static void address(const char *s)
{
	struct ckpt_err err = { 0 };
	struct address a, again;
	size_t n;

	if (address_parse(s, &a, &err) < 0) {
		assert(err.code && err.msg[0]);
		return;
	}
	n = strlen(a.job);
	if (a.kind == ADDRESS_PATH) {
		assert(a.what == s && !n);
		return;
	}
	assert(!strncmp(s, a.job, n) && a.what == s + n + (n > 0) && (!n || s[n] == '@'));
	assert(!strchr(a.what, '/') && !(a.bare && n));
	if (a.kind == ADDRESS_TAG)
		one_component(a.tag);
	if (n && !strchr(a.job, '/'))
		assert(store_job_check(a.job, NULL) == 0);
	assert(address_parse(a.what, &again, NULL) == 0);
	assert(again.kind == a.kind && again.n == a.n && again.tag == a.tag && !again.job[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *s = fuzz_text(data, size);

	entry(s);
	job(s);
	address(s);
	if (native_name_ok(s)) {
		one_component(s);
		assert(s[0] != '.' && strlen(s) <= NATIVE_NAME_MAX &&
		       strcmp(s, NATIVE_MANIFEST) != 0);
	}
	free(s);
	return 0;
}
