/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_verify.c - ckptctl verify: is a checkpoint what was committed? Its structure always, every
 * byte of it with --data, some with --data-subset.
 * Invariant: damage hides no other damage, neither of a checkpoint nor of a file in it: all that
 * was asked for is checked and all faults are listed, and the exit code is 4 then. Nothing is
 * called good that was not read.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/subject.h"
#include "ckpt/engine/shared_files.h"
#include "ckpt/engine/verify.h"
#include "formats/registry/registry.h"
#include <limits.h>
#include <sys/random.h>

#define FAULTS_MAX 10000u  /* of one checkpoint that are kept: a lost disk must not fill memory */
#define FAULTS_SAID 50u	   /* of one checkpoint that people see */
#define PARTS_MAX 1000000u /* N of K/N */

struct fault {
	char *kind, *file, *tensor, *text, *path;
	uint64_t offset, length, step;
	bool has_step;
};

/* What --data-subset asked for. */
struct part {
	struct move_subset subset; /* RANDOM: bytes and percent: one of them is 0 */
	double percent;
	char text[96]; /* as it can be given again: "5%@123456"; "": all data, or none */
};

struct verify {
	struct cli *c;
	bool data; /* all of them, or some */
	struct part part;
	struct fault *fault;
	uint64_t nfault, cap;
	struct engine_shared shared; /* files that several steps have */
	uint64_t checked_bytes;
	uint64_t data_bytes, data_checked; /* of the good ones: that there are, that were read */
	uint64_t unsummed;		   /* of them, too: that have no sum */
	uint32_t ngood, nfaulty, nother, nquarantined; /* quarantined: of the good ones */
	int code;
};

/* One checkpoint on its way through. */
struct one {
	struct verify *v;
	struct subject s;
	char job[CKPT_JOB_MAX + 1];
	uint64_t step;
	uint64_t bytes;
	bool has_step, has_bytes;
	uint64_t first,
		nfault; /* first: where its faults begin in v->fault; nfault: all that were found */
	struct engine_verified got;
	struct progress progress;
	bool begun; /* its data are read */
	double speed;
	const struct store *store; /* its place in a store, where the store named it */
	const struct store_step *at;
	enum { UNLABELLED, LABELLED_GOOD, LABELLED_BAD } label;
	bool quarantined; /* by somebody before */
	uint64_t nodd;	  /* printed beside its faults: bytes that nothing uses are not zero */
	bool unproven;	  /* a fault of it is none of a sum: it is not known to be damaged */
};

static void fault_free(struct fault *f)
{
	free(f->kind);
	free(f->file);
	free(f->tensor);
	free(f->text);
	free(f->path);
}

static void on_fault(void *arg, const struct format_fault *fault)
{
	struct one *x = arg;
	struct verify *v = x->v;
	struct fault *f;
	bool odd = format_fault_is_odd(fault);

	x->nodd += odd;
	x->nfault += !odd;
	if (x->nfault + x->nodd > FAULTS_MAX)
		return;
	if (!ARRAY_GROW(v->fault, v->nfault, v->cap))
		return;
	f = &v->fault[v->nfault++];
	*f = (struct fault){
		.kind = strdup(fault->kind ? fault->kind : ""),
		.file = strdup(fault->file ? fault->file : ""),
		.tensor = strdup(fault->tensor ? fault->tensor : ""),
		.text = strdup(fault->text ? fault->text : ""),
		.path = strdup(x->s.ref.path),
		.offset = fault->offset,
		.length = fault->length,
	};
	if (!f->kind || !f->file || !f->tensor || !f->text || !f->path) {
		fault_free(f);
		v->nfault--;
		v->c->o->failed = true;
	}
}

/* --- --data-subset --- */

/* Digits up to the end, or to `stop`. */
static bool number_parse(const char *s, char stop, uint64_t *ret, const char **ret_end)
{
	const char *p = s;

	for (*ret = 0; *p >= '0' && *p <= '9'; p++)
		if (ckpt_mul(*ret, 10, ret) < 0 || ckpt_add(*ret, (uint64_t)(*p - '0'), ret) < 0)
			return false;
	*ret_end = p;
	return p > s && *p == stop;
}

static int nth_parse(const char *word, struct part *ret)
{
	uint64_t k, n;
	const char *p;

	if (!number_parse(word, '/', &k, &p) || !number_parse(p + 1, 0, &n, &p) || !k || k > n ||
	    n > PARTS_MAX)
		return -EINVAL;
	ret->subset = (struct move_subset){ .how = SUBSET_NTH, .k = (uint32_t)k, .n = (uint32_t)n };
	snprintf(ret->text, sizeof ret->text, "%s", word);
	return 0;
}

/* "5%", "200G", and either with "@SEED". */
static int random_parse(const char *word, struct part *ret)
{
	size_t n = strcspn(word, "@");
	char size[64], *end;
	const char *p;

	if (!n || n >= sizeof size)
		return -EINVAL;
	memcpy(size, word, n);
	size[n] = 0;
	ret->subset = (struct move_subset){ .how = SUBSET_RANDOM };
	if (word[n]) {
		if (!number_parse(word + n + 1, 0, &ret->subset.seed, &p))
			return -EINVAL;
	} else {
		uint32_t seed;

		if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
			seed = (uint32_t)wall_ns();
		ret->subset.seed = seed;
	}
	if (size[n - 1] != '%')
		return human_parse_bytes(size, &ret->subset.bytes) || !ret->subset.bytes ? -EINVAL
											 : 0;
	if (size[0] < '0' || size[0] > '9' || strspn(size, "0123456789.") != n - 1)
		return -EINVAL;
	ret->percent = strtod(size, &end);
	return *end == '%' && ret->percent > 0 && ret->percent <= 100 ? 0 : -EINVAL;
}

static int part_parse(const char *word, struct part *ret, struct ckpt_err *err)
{
	int rc = strchr(word, '/') ? nth_parse(word, ret) : random_parse(word, ret);

	if (rc)
		return ckpt_error(
			err, rc,
			"--data-subset=%.60s is not valid: give 5%% or 200G (that much, chosen "
			"at random; 5%%@7 chooses the same again), or 1/7 (the first of seven "
			"parts)",
			word);
	if (ret->subset.how == SUBSET_RANDOM)
		snprintf(ret->text, sizeof ret->text, "%.*s@%llu", (int)strcspn(word, "@"), word,
			 (unsigned long long)ret->subset.seed);
	return 0;
}

/* --- one checkpoint --- */

static double share_of(uint64_t part, uint64_t all)
{
	return all ? (double)part / (double)all : 1;
}

static void verify_begin(void *arg, const struct checkpoint *k, uint64_t bytes)
{
	struct one *x = arg;
	char title[SUBJECT_TITLE];

	x->begun = true;
	progress_begin(&x->progress, x->v->c, bytes, "%s", subject_short(k, x->s.ref.path, title));
}

/* Which step it is: what the store called it, else its own metadata as far as they go, else the name of
 * its directory. */
static void one_identify(struct one *x)
{
	const struct checkpoint *k = x->s.ckpt;
	const char *base = strrchr(x->s.ref.path, '/');
	struct subject_brief brief = { 0 };
	unsigned long long n;
	bool steps = true;
	int end = 0;

	if (k) {
		brief = (struct subject_brief){ .step = k->step, .stored_bytes = k->stored_bytes };
		memcpy(brief.job, k->job, sizeof brief.job);
		steps = k->has & HAS_STEP;
	}
	if (k || subject_brief(&x->s, &brief)) {
		x->bytes = brief.stored_bytes;
		x->has_bytes = true;
	} else if (base && sscanf(base, "/step-%12llu%n", &n, &end) == 1 && end && !base[end]) {
		brief.step = n;
	} else {
		return;
	}
	if (!x->has_step && steps) {
		x->step = brief.step;
		x->has_step = true;
		memcpy(x->job, brief.job, sizeof x->job);
	}
}

/* 0 good, -EBADMSG with faults, other errors as they are. The subject is found already. */
static int one_check(struct one *x, struct ckpt_err *err)
{
	const struct engine e = { .ops = x->v->c->ops,
				  .io = IO_AUTO,
				  .format = formats,
				  .tick = progress_tick,
				  .arg = &x->progress };
	const struct engine_verify v = { .data = x->v->data,
					 .subset = x->v->part.subset,
					 .percent = x->v->part.percent,
					 .shared = &x->v->shared,
					 .begin = verify_begin,
					 .arg = x };
	int rc;

	x->s.partial = true;
	rc = subject_verify(&x->s, &e, &v, on_fault, x, &x->got, err);
	if (x->begun)
		x->speed = progress_end(&x->progress);
	one_identify(x);
	if (rc == -EBADMSG && !x->nfault) {
		on_fault(x, &(struct format_fault){ .kind = "malformed", .text = err->msg });
		/* engine_damage calls everything so; the error knows better. */
		x->unproven =
			err->code != -EBADMSG && err->code != -EPROTO && err->code != -EUCLEAN;
	}
	return rc;
}

static void say_fault(struct verify *v, const struct fault *f)
{
	char where[2 * CKPT_NAME_MAX + 512] = "", label[64];

	if (*f->file)
		human_add(where, 256, "", "%s", f->file);
	if (*f->file && (f->offset || f->length))
		human_add(where, sizeof where, "", ", byte %llu", (unsigned long long)f->offset);
	if (*f->file && f->length)
		human_add(where, sizeof where, "", " (%s)", BYTES_TEXT(f->length));
	if (*f->tensor)
		human_add(where, sizeof where, ", ", "tensor %s", f->tensor);
	snprintf(label, sizeof label, "  %s", f->kind);
	if (*where)
		cli_mark(v->c, STYLE_WARN, label, 4, "  %s\n%s", where, f->text);
	else
		cli_mark(v->c, STYLE_WARN, label, 4, "  %s", f->text);
}

/* Entries that are none of the checkpoint's. */
static uint32_t foreign_count(const struct one *x)
{
	return x->s.ckpt ? x->s.ckpt->nforeign : 0;
}

/* "1 foreign file ignored: .nfs0001"; "" where there is none. */
static void foreign_print(const struct one *x, char *buf, size_t bytes)
{
	uint32_t n = foreign_count(x), shown = MIN(n, (uint32_t)CHECKPOINT_FOREIGN);

	buf[0] = 0;
	if (!n)
		return;
	human_add(buf, bytes, "", "%u foreign file%s ignored", n, n == 1 ? "" : "s");
	for (uint32_t i = 0; i < shown; i++)
		human_add(buf, bytes, i ? ", " : ": ", "%.60s", x->s.ckpt->foreign[i]);
	if (n > shown)
		human_add(buf, bytes, ", ", "...");
}

static void say_before(const struct one *x)
{
	if (x->got.before_bytes)
		cli_say(x->v->c, STYLE_DIM,
			"  %s of it read with a checkpoint above: a shared file",
			BYTES_TEXT(x->got.before_bytes));
}

/* Pieces that the writer did not compare with what they are derived of: no checksum shows whether
 * they were equal. */
static void say_trusted(const struct one *x)
{
	const struct table *t = x->s.ckpt ? &x->s.ckpt->table : NULL;
	uint64_t n = 0;

	for (uint32_t i = 0; t && i < t->npiece; i++)
		n += (t->piece[i].flags & PIECE_TRUSTED) != 0;
	if (n)
		cli_say(x->v->c, STYLE_DIM,
			"  %llu piece%s of derived tensors: not all compared with the master in this step",
			(unsigned long long)n, n == 1 ? "" : "s");
}

/* --- what is wrong with other steps too --- */

enum { SHARERS_SAID = 4 }; /* steps of a file, and files */

/* "steps 10, 20 and 40 share this file", of a file that was seen with them. */
static void say_sharers(const struct one *x, const char *file, const struct io_stat *at,
			const struct file_links *links, const struct store_step *step, uint32_t n)
{
	char text[SHARERS_SAID * 24 + 32] = "";
	uint64_t said[SHARERS_SAID];
	uint32_t count = 0;

	for (uint32_t i = n; i-- > 0;) {
		bool has = false;

		for (uint32_t k = 0; k < step[i].nlink && !has; k++) {
			const struct link_file *f =
				&links->file[links->use[step[i].link_first + k]];

			has = f->dev == at->dev && f->ino == at->ino;
		}
		if (has && count < SHARERS_SAID)
			said[count] = step[i].step;
		count += has;
	}
	if (count < 2) {
		cli_say(x->v->c, STYLE_PLAIN, "  %s: %u other name%s elsewhere lead%s to this file",
			file, at->nlink - 1, at->nlink == 2 ? "" : "s", at->nlink == 2 ? "s" : "");
		return;
	}
	for (uint32_t i = 0; i < MIN(count, (uint32_t)SHARERS_SAID); i++)
		human_add(text, sizeof text, i + 1 == count ? " and " : ", ", "%llu",
			  (unsigned long long)said[i]);
	if (count > SHARERS_SAID)
		human_add(text, sizeof text, " and ", "%u more", count - SHARERS_SAID);
	cli_say(x->v->c, STYLE_PLAIN, "  %s: steps %s share this file%s", file, text,
		at->nlink > count ? ", and it has names elsewhere" : "");
}

/* The other steps of its job are scanned only if it is damaged; with --all each of them has its own
 * lines. */
static void say_shared(const struct one *x)
{
	struct verify *v = x->v;
	uint64_t end = MIN(v->nfault, x->first + FAULTS_SAID);
	cleanup_free struct store_step *step = NULL;
	struct file_links links = { 0 };
	struct ckpt_err err = { 0 };
	struct store_home m = { .s.job_fd = -1 };
	bool looked = false;
	uint32_t n = 0, nfile = 0;

	for (uint64_t i = x->first; i < end && nfile < SHARERS_SAID && !v->c->value[OPT_ALL]; i++) {
		const char *file = v->fault[i].file;
		bool again = false;
		struct io_stat st;

		for (uint64_t k = x->first; k < i; k++)
			again |= !strcmp(v->fault[k].file, file);
		if (again || !*file || strchr(file, '/') ||
		    io_stat_at(v->c->ops, x->s.ref.step_fd, file, &st) || st.nlink < 2)
			continue;
		if (!looked) {
			if (store_home_open(v->c->ops, formats[0], &x->s.ref, &m, &err))
				return;
			looked = true;
			if (store_scan_parts(&m.s, true, &links, &step, &n, &err))
				n = 0;
		}
		say_sharers(x, file, &st, &links, step, n);
		nfile++;
	}
	file_links_free(&links);
	if (looked)
		store_home_close(&m);
}

/* What was done, and how many bytes have no checksum. */
static void what_print(const struct one *x, char *buf, size_t bytes)
{
	char summed[HUMAN_BYTES], unsummed[HUMAN_BYTES];
	size_t n;

	if (*x->v->part.text)
		snprintf(buf, bytes, "%.3g %% of the data",
			 100 * share_of(x->got.data.bytes, x->got.data.all_bytes));
	else
		snprintf(buf, bytes, "%s",
			 !x->v->data	    ? "structure checked"
			 : !x->got.unsummed ? "every byte checked"
					    : "every byte read");
	n = strlen(buf);
	if (x->v->data && x->got.unsummed)
		snprintf(buf + n, bytes - n, ": %s have checksums, %s have none",
			 human_bytes(x->got.summed, summed),
			 human_bytes(x->got.unsummed, unsummed));
}

static void say_one(const struct one *x, int rc)
{
	struct verify *v = x->v;
	struct cli *c = v->c;
	char size[HUMAN_BYTES] = "", speed[HUMAN_BYTES] = "", name[SUBJECT_TITLE];
	char foreign[CHECKPOINT_FOREIGN * 62 + 64];

	if (x->has_step)
		snprintf(name, sizeof name, "step %llu%s%s", (unsigned long long)x->step,
			 x->job[0] ? " of " : "", x->job);
	else
		snprintf(name, sizeof name, "checkpoint");
	foreign_print(x, foreign, sizeof foreign);
	if (x->has_bytes)
		human_bytes(x->bytes, size);
	if (v->data && c->out_screen.terminal && x->speed > 0)
		snprintf(speed, sizeof speed, "  %.2f GB/s", x->speed / 1e9);
	if (!rc) {
		bool read = v->data && x->got.unsummed;
		char what[128], title[SUBJECT_TITLE];

		what_print(x, what, sizeof what);
		if (!x->has_step && x->s.ckpt)
			snprintf(name, sizeof name, "%s",
				 subject_title(x->s.ckpt, x->s.ref.path, title));
		cli_mark(c, read || x->quarantined ? STYLE_WARN : STYLE_GOOD,
			 x->quarantined ? "quarantined"
			 : read		? "read"
					: "ok",
			 8, "%s%s%s%-24s  %10s  %s%s", *foreign ? " (" : "", foreign,
			 *foreign	  ? ")  "
			 : x->quarantined ? "  "
					  : "      ",
			 name, size, what, speed);
		for (uint64_t i = x->first; i < v->nfault && i < x->first + FAULTS_SAID; i++)
			say_fault(v, &v->fault[i]);
		if (x->nodd)
			cli_say(c, STYLE_DIM, "  No tensor lies there.");
		say_before(x);
		say_trusted(x);
		if (x->quarantined)
			cli_hint(
				c,
				"%s is quarantined: latest passes it over; ckptctl repair %s reads "
				"all of it, and releases it if every byte is right",
				name, x->s.ref.path);
		return;
	}
	cli_mark(c, STYLE_BAD, "FAULTY", 8, "  %-24s  %10s  %llu fault%s%s", name, size,
		 (unsigned long long)x->nfault, x->nfault == 1 ? "" : "s", speed);
	cli_say(c, STYLE_DIM, "  %s", x->s.ref.path);
	say_before(x);
	for (uint64_t i = x->first; i < v->nfault && i < x->first + FAULTS_SAID; i++)
		say_fault(v, &v->fault[i]);
	say_shared(x);
	if (*foreign)
		cli_say(c, STYLE_DIM, "  %s", foreign);
	if (!x->s.ckpt && v->data)
		cli_say(c, STYLE_DIM,
			"  Its data was not read: without its tables it cannot be checked.");
	else if (v->data && x->s.ckpt->partial)
		cli_say(c, STYLE_DIM, "  Data was read only from the files without such faults.");
	if (x->nfault + x->nodd > FAULTS_SAID)
		cli_say(c, STYLE_PLAIN, "  and %llu more; --json lists them",
			(unsigned long long)(x->nfault + x->nodd - FAULTS_SAID));
	if (x->label == LABELLED_BAD)
		cli_say(c, STYLE_PLAIN,
			"  It is quarantined: latest skips it, and prune does not rely on it.");
	cli_mark(c, STYLE_STRONG, "  next:", 8,
		 " use another checkpoint (ckptctl ls); keep this one if it has no copy");
}

static void put_one(const struct one *x, int rc)
{
	struct output *o = x->v->c->o;

	output_row(o);
	output_key(o, "path", cell_text(x->s.ref.path));
	output_key(o, "job", cell_word(x->job));
	output_key(o, "step", cell_if(x->has_step, cell_number(x->step)));
	output_key(o, "ok", cell_flag(!rc && !x->quarantined));
	output_key(o, "bytes", cell_if(x->has_bytes, cell_bytes(x->bytes)));
	output_key(o, "checked_bytes", cell_bytes(x->got.bytes));
	output_key(o, "data_read",
		   cell_text(!x->got.data.chunks			  ? "none"
			     : x->got.data.bytes == x->got.data.all_bytes ? "all"
									  : "some"));
	output_key(o, "data_bytes", cell_if(x->s.ckpt, cell_bytes(x->got.data.all_bytes)));
	output_key(o, "checked_data_bytes", cell_bytes(x->got.data.bytes));
	output_key(o, "shared_data_bytes", cell_bytes(x->got.before_bytes));
	output_key(o, "summed_bytes", cell_if(x->s.ckpt, cell_bytes(x->got.summed)));
	output_key(o, "unsummed_bytes", cell_if(x->s.ckpt, cell_bytes(x->got.unsummed)));
	output_key(o, "chunk_count", cell_if(x->s.ckpt, cell_number(x->got.data.all_chunks)));
	output_key(o, "checked_chunk_count", cell_number(x->got.data.chunks));
	output_key(o, "piece_count", cell_if(x->s.ckpt, cell_number(x->got.data.all_pieces)));
	output_key(o, "checked_piece_count", cell_number(x->got.data.pieces));
	output_key(o, "fault_count", cell_number(x->nfault));
	output_key(o, "padding_count", cell_number(x->nodd));
	output_key(o, "foreign_count", cell_if(x->s.ckpt, cell_number(x->s.ckpt->nforeign)));
	output_list(o, "foreign", NULL, 0);
	for (uint32_t i = 0; i < MIN(foreign_count(x), (uint32_t)CHECKPOINT_FOREIGN); i++) {
		output_row(o);
		output_key(o, "file", cell_text(x->s.ckpt->foreign[i]));
		output_close(o);
	}
	output_close(o);
	output_key(o, "mark",
		   cell_word(x->label == LABELLED_GOOD	? "verified"
			     : x->label == LABELLED_BAD ? "bad"
							: NULL));
	output_close(o);
}

static void verify_interrupted(struct verify *v)
{
	struct ckpt_err err;

	ckpt_error(&err, -ECANCELED, "interrupted before everything was checked");
	v->code = cli_worse(v->code, cli_fail(v->c, -ECANCELED, &err, NULL));
}

static void set_label(struct one *x, int rc, const struct store *s, const struct store_step *st)
{
	struct verify *v = x->v;
	const struct fault *f = x->first < v->nfault ? &v->fault[x->first] : NULL;
	enum store_label_kind kind = rc ? LABEL_BAD : LABEL_VERIFIED;
	struct ckpt_err err = { 0 };
	char why[400] = "";

	if (st->state != STORE_COMMITTED && st->state != STORE_SET_ASIDE)
		return;
	if (rc && f)
		snprintf(why, sizeof why, "%.100s%s%.250s", f->file, *f->file ? ": " : "", f->text);
	rc = store_label_set(s, st, kind, NULL, 0, rc ? why : NULL, &err);
	if (rc)
		cli_hint(v->c, "step %llu of %s could not be labelled as %s: %s",
			 (unsigned long long)st->step, s->job,
			 kind == LABEL_BAD ? "quarantined" : "verified", err.msg);
	else
		x->label = kind == LABEL_BAD ? LABELLED_BAD : LABELLED_GOOD;
}

/*
 * Keep what was found, where the step lies in a store: that every byte is right, or that it is
 * damaged: a sum is wrong. What could not be read or contradicts itself is not known to be damaged,
 * and some of the bytes are not all.
 */
static void keep_label(struct one *x, int rc)
{
	struct verify *v = x->v;
	struct ckpt_err err = { 0 };
	struct store_home m;
	int r;

	if (!v->data || v->c->value[OPT_NO_MARK] || (rc && rc != -EBADMSG) ||
	    (!rc && (x->got.data.bytes != x->got.data.all_bytes || x->got.unsummed)) ||
	    (rc && !x->got.damaged) || (rc && x->nfault == x->got.nunread + x->unproven))
		return;
	if (x->at) {
		set_label(x, rc, x->store, x->at);
		return;
	}
	r = store_home_find(v->c->ops, formats[0], &x->s.ref, &m, &err);
	if (r < 0)
		cli_hint(v->c, "the result is not kept: %s", err.msg);
	if (!r)
		set_label(x, rc, &m.s, &m.step);
	if (!r)
		store_home_close(&m);
}

/* Has somebody found damage in it before? What is not in a store has no labels. */
static bool is_quarantined(const struct one *x)
{
	struct store_step now;
	struct store_home m;
	bool is;

	if (x->at)
		return x->at->state == STORE_QUARANTINED;
	if (store_home_open(x->v->c->ops, formats[0], &x->s.ref, &m, NULL))
		return false;
	is = !store_step_judge(&m.s, m.step.dir, &now, NULL) && now.state == STORE_QUARANTINED;
	store_home_close(&m);
	return is;
}

/* Nothing but its own files, and of what was asked for nothing that cannot be checked. */
static bool is_plain(const struct one *x)
{
	return !foreign_count(x) && !x->nodd && !(x->v->data && x->got.unsummed);
}

/* Check what x->s has found, print it, and close it. why: what the store's scan found already (""
 * nothing). */
static void verify_one(struct one *x, const char *why)
{
	struct verify *v = x->v;
	struct ckpt_err err = { 0 };
	int rc;

	x->first = v->nfault;
	rc = one_check(x, &err);
	if (!rc && *why) {
		on_fault(x, &(struct format_fault){ .kind = "mismatch", .text = why });
		rc = -EBADMSG;
	}
	for (uint64_t i = x->first; i < v->nfault; i++) {
		v->fault[i].step = x->step;
		v->fault[i].has_step = x->has_step;
	}
	v->checked_bytes += x->got.bytes;
	v->data_bytes += rc ? 0 : x->got.data.all_bytes;
	v->data_checked += rc ? 0 : x->got.data.bytes;
	v->unsummed += rc || !v->data ? 0 : x->got.unsummed;
	x->quarantined = !rc && x->s.is_step && is_quarantined(x);
	v->ngood += !rc;
	v->nquarantined += x->quarantined;
	v->nfaulty += rc == -EBADMSG;
	v->nother += rc && rc != -EBADMSG;
	if (!rc || rc == -EBADMSG) {
		v->code = cli_worse(v->code, rc				      ? cli_exit(rc)
					     : is_plain(x) && !x->quarantined ? CLI_OK
									      : CLI_WARNINGS);
		keep_label(x, rc);
		put_one(x, rc);
		say_one(x, rc);
	} else if (rc == -ECANCELED) {
		verify_interrupted(v);
	} else {
		if (x->at)
			ckpt_error_prefix(&err, rc, "step %llu of %s", (unsigned long long)x->step,
					  x->job);
		v->code =
			cli_worse(v->code, subject_tell_read(&x->s, v->c, rc, &err, x->s.ref.path));
	}
	subject_close(&x->s);
}

/* Asked before each checkpoint: some are left then. */
static bool verify_stopped(struct verify *v)
{
	if (cli_stopped() && !v->nother++)
		verify_interrupted(v);
	return cli_stopped();
}

static void verify_name(struct verify *v, const char *name)
{
	struct one x = { .v = v };
	struct ckpt_err err = { 0 };
	const struct format *force = NULL;
	int rc;

	x.s = (struct subject){ .ref.step_fd = -1 };
	rc = subject_from(v->c, &force, &err);
	if (!rc)
		rc = subject_find(&x.s, v->c->ops, v->c->where, name, force, &err);

	if (!rc) {
		/* what lies at this path is another step or another job's */
		bool misplaced = strchr(name, '/') && x.s.ref.note[0] && !x.s.ref.passed;

		subject_note(v->c, &x.s.ref);
		verify_one(&x, "");
		if (misplaced)
			v->code = cli_worse(v->code, CLI_WARNINGS);
		return;
	}
	subject_close(&x.s);
	v->nother++;
	v->code = cli_worse(v->code, subject_tell(v->c, rc, &err, name));
}

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct verify *v = arg;
	struct store s = subject_store(v->c->ops, job, job_fd);
	cleanup_free struct store_step *step = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	int rc;

	rc = store_scan(&s, false, &step, &n, &err);
	if (rc)
		v->code = cli_worse(v->code, cli_fail(v->c, rc, &err, NULL));
	for (uint32_t i = 0; !rc && i < n && !verify_stopped(v); i++) {
		struct one x = {
			.v = v, .step = step[i].step, .has_step = true, .store = &s, .at = &step[i]
		};
		char path[4096];
		int fd, r = store_step_open(&s, step[i].dir, &fd, &err);

		/* Set aside or pruned since the scan: it is no committed step any more. */
		if (r == -ENOENT)
			continue;
		snprintf(x.job, sizeof x.job, "%s", job);
		snprintf(path, sizeof path, "%s/%s", abs_path, step[i].dir);
		if (!r) {
			subject_take(&x.s, v->c->ops, fd, path);
			verify_one(&x, step[i].state == STORE_DAMAGED ||
						       step[i].state == STORE_MISPLACED
					       ? step[i].why
					       : "");
			continue;
		}
		v->nother++;
		v->code = cli_worse(v->code, cli_fail(v->c, r, &err, NULL));
	}
	return 0;
}

/* Jobs that may not be read are not checked: that is no success. */
static int check_store(struct verify *v, const char *where, struct ckpt_err *err)
{
	int rc = store_jobs(v->c->ops, where, each_job, v, err);

	return rc ? rc : store_jobs_closed(v->c->ops, where, err);
}

static void put_faults(struct verify *v)
{
	struct output *o = v->c->o;

	output_list(o, "faults", NULL, 0);
	for (uint64_t i = 0; i < v->nfault; i++) {
		const struct fault *f = &v->fault[i];

		output_row(o);
		output_key(o, "kind", cell_text(f->kind));
		output_key(o, "file", cell_word(f->file));
		output_key(o, "offset", cell_number(f->offset));
		output_key(o, "length", cell_number(f->length));
		output_key(o, "tensor", cell_word(f->tensor));
		output_key(o, "step", cell_if(f->has_step, cell_number(f->step)));
		output_key(o, "path", cell_text(f->path));
		output_key(o, "text", cell_text(f->text));
		output_close(o);
	}
	output_close(o);
}

static void summary_say(struct verify *v)
{
	uint32_t n = v->ngood + v->nfaulty + v->nother;
	char size[HUMAN_BYTES];

	human_bytes(v->checked_bytes, size);
	if (!n && !v->code)
		cli_say(v->c, STYLE_PLAIN,
			"There is no committed checkpoint yet: nothing to check.");
	else if (v->nfaulty)
		cli_say(v->c, STYLE_PLAIN, "%u of %u checkpoints FAULTY, %s read", v->nfaulty, n,
			size);
	else if (v->nquarantined)
		cli_say(v->c, STYLE_PLAIN, "%u of %u checkpoints quarantined, %s read",
			v->nquarantined, n, size);
	else if (v->ngood && !v->nother && *v->part.text)
		cli_say(v->c, STYLE_DIM,
			"%u checkpoint%s, no fault in what was read: %.3g %% of the data (%s)", n,
			n == 1 ? "" : "s", 100 * share_of(v->data_checked, v->data_bytes),
			v->part.text);
	else if (v->ngood && !v->nother)
		cli_say(v->c, STYLE_DIM, "%u checkpoint%s %s, %s read", n, n == 1 ? "" : "s",
			v->unsummed ? "without a fault in what has checksums" : "good", size);
	if (v->ngood && !v->data && !v->nfaulty)
		cli_hint(v->c, "--data also reads and checks every byte of the data");
}

static int verify_run(struct cli *c)
{
	const char *part = c->value[OPT_DATA_SUBSET];
	struct verify v = { .c = c, .data = c->value[OPT_DATA] || part };
	struct ckpt_err err = { 0 };
	int rc = 0;

	if (part && part_parse(part, &v.part, &err))
		return cli_fail(c, -EINVAL, &err, "ckptctl verify -h");
	for (uint32_t i = 0; i < c->narg; i++)
		if (!*c->arg[i])
			return cli_usage(c, NULL,
					 "a CKPT argument is empty: is a shell variable not set?");

	if (c->value[OPT_ALL] && c->narg > 1)
		return cli_usage(c, NULL, "--all takes one PATH, a store or a job's directory");
	if (c->value[OPT_ALL] && subject_is_checkpoint(c, c->narg ? c->arg[0] : c->where))
		return cli_usage(c, "ckptctl verify PATH, without --all",
				 "--all takes a store or a job, but %s is a checkpoint",
				 c->narg ? c->arg[0] : c->where);
	output_line(c->o, "ckptd.verify/1", "summary");
	output_key(c->o, "data", cell_flag(v.data && !part));
	output_key(c->o, "data_subset", cell_if(part, cell_text(v.part.text)));
	output_list(c->o, "checkpoints", NULL, 0);
	if (c->value[OPT_ALL])
		rc = check_store(&v, c->narg ? c->arg[0] : c->where, &err);
	else if (!c->narg)
		verify_name(&v, "latest");
	for (uint32_t i = 0; i < c->narg && !c->value[OPT_ALL] && !verify_stopped(&v); i++)
		verify_name(&v, c->arg[i]);
	output_close(c->o);
	output_key(c->o, "checked_bytes", cell_bytes(v.checked_bytes));
	put_faults(&v);
	if (rc)
		v.code = cli_worse(v.code, cli_fail(c, rc, &err,
						    rc == -ENOENT || rc == -ENOTDIR
							    ? "check the path; ckptctl ls"
						    : rc == -EACCES ? CLI_NEXT_USER
								    : NULL));
	/* Where nothing could be checked there is nothing to print but the error. */
	if (!v.code || v.ngood || v.nfaulty) {
		summary_say(&v);
		output_end(c->o);
	}
	for (uint64_t i = 0; i < v.nfault; i++)
		fault_free(&v.fault[i]);
	free(v.fault);
	engine_shared_free(&v.shared);
	return v.code;
}

const struct cli_verb verb_verify = {
	.name = "verify",
	.help = "check that checkpoints are still what was committed",
	.synonyms = (const char *const[]){ "check", "validate", NULL },
	.synopsis = (const char *const[]){ "[--data | --data-subset=PART] [CKPT...]",
					   "[--data | --data-subset=PART] --all [PATH]", NULL },
	.about =
		"Checks that a checkpoint is complete: its files, their sizes, headers, tables "
		"and hashes, and that every element of every tensor is stored exactly once. With "
		"--data it also reads every byte and checks it against its checksums, and prints how "
		"many bytes have none, as in most foreign formats. With --data-subset it reads "
		"some of them: 5% or 200G, chosen at random from every file (verify prints the number of the sample: 5%@123 chooses the same again), "
		"or 1/7, the first of seven parts that together are everything. CKPT is latest "
		"(the default), latest~1, step:12000, tag:best, or the path of a step directory, "
		"also of a copied or renamed one. Unfinished steps and steps that were set aside "
		"are no faults. A foreign file in a step's directory (.nfs0001, an editor's "
		"backup, a directory, a link) is ignored, and is a warning.\n"
		"In a store, verify keeps the result of --data with the step. If the step is "
		"good, it is labelled as verified: ckptctl prune needs that before it removes "
		"older steps. If it is damaged, it is quarantined, and latest skips it.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl verify", "the newest checkpoint's structure" },
			{ "ckptctl verify --data step:12000", "every byte of one" },
			{ "ckptctl verify --data --all runs/",
			  "every byte of all steps, for example from cron" },
			{ "ckptctl verify --data-subset=$(date +%u)/7 --all runs/",
			  "the same, a seventh each day" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DATA, "read and check every byte" },
			{ OPT_DATA_SUBSET, "read and check a part of the bytes: 5%, 200G or 1/7" },
			{ OPT_ALL, "every committed step of PATH, a store or a job's directory" },
			{ OPT_NO_MARK, "with --data: keep no result in the store" },
			{ OPT_FROM, FROM_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 all are good (--all: also if there is none yet); 3 no fault, but one is quarantined, foreign files were "
		"ignored, or bytes that were read have no checksum; 4 one is damaged; 5 one is not committed; 10 there is no such store or "
		"checkpoint; 12 it cannot be read; 130 interrupted.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = UINT32_MAX,
	.run = verify_run,
};
