/* SPDX-License-Identifier: Apache-2.0 */
/* cli_rig.c - see cli_rig.h. */
#include "tests/lib/cli_rig.h"
#include <dlfcn.h>
#include <pthread.h>
#include <regex.h>
#include <sys/syscall.h>
#include <termios.h>
#include "ckpt/cli/progress.h"
#include "daemon/part_file.h"
#include "tests/lib/libc.h"
#include "tests/lib/row.h"
#include "formats/native/native.h"

char top[SCRATCH_MAX], work[PATH_MAX];
#define NAMES_MAX 1024
static char origin[PATH_MAX]; /* the directory where the tests began: the repository's */

/* --- files --- */

struct ring {
	char buf[64][PATH_MAX];
	uint32_t next;
};

static const char *ring_put(struct ring *r, const char *fmt, va_list ap)
{
	char *p = r->buf[r->next++ % ARRAY_LEN(r->buf)];

	vsnprintf(p, PATH_MAX, fmt, ap);
	return p;
}

const char *path_of(const char *fmt, ...)
{
	static struct ring ring;
	const char *p;
	va_list ap;

	va_start(ap, fmt);
	p = ring_put(&ring, fmt, ap);
	va_end(ap);
	return p;
}

/* The rig's own: what tests have of path_of stays. */
__attribute__((format(printf, 1, 2))) static const char *own(const char *fmt, ...)
{
	static struct ring ring;
	const char *p;
	va_list ap;

	va_start(ap, fmt);
	p = ring_put(&ring, fmt, ap);
	va_end(ap);
	return p;
}

char *place(const char *name)
{
	static char buf[64][PATH_MAX];
	static uint32_t n;

	assert_true(n < ARRAY_LEN(buf));
	snprintf(buf[n], PATH_MAX, "%s/%s", top, name);
	return buf[n++];
}

bool exists(const char *path)
{
	struct stat st;

	return !lstat(path, &st);
}

/* The names in a directory, sorted, those that are hidden too; they end with NULL, and last until
 * the next call. */
static void names_in(const char *dir, const char *ret[static NAMES_MAX])
{
	static char buf[NAMES_MAX][NAME_MAX + 1];
	struct dirent **list;
	int n = scandir(dir, &list, NULL, alphasort);
	uint32_t found = 0;

	assert_true(n >= 0 && n < NAMES_MAX);
	for (int i = 0; i < n; i++) {
		if (strcmp(list[i]->d_name, ".") && strcmp(list[i]->d_name, "..")) {
			ret[found] = strcpy(buf[found], list[i]->d_name);
			found++;
		}
		free(list[i]);
	}
	ret[found] = NULL;
	free(list);
}

uint32_t entries(const char *dir)
{
	DIR *d = opendir(dir);
	uint32_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

void spill(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

char *file_bytes(const char *path, size_t *ret_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *p;

	if (fd < 0 || fstat(fd, &st))
		fail_msg("%s: %s", path, strerror(errno));
	*ret_len = (size_t)st.st_size;
	p = calloc(1, *ret_len + 1);
	assert_non_null(p);
	assert_int_equal(read(fd, p, *ret_len), *ret_len);
	close(fd);
	return p;
}

char *slurp(const char *path)
{
	static char *kept[64];
	static uint32_t n;
	size_t len;
	char **slot = &kept[n++ % ARRAY_LEN(kept)];

	free(*slot);
	return *slot = file_bytes(path, &len);
}

void flip(const char *path, int64_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t b;

	assert_true(fd >= 0);
	if (at < 0)
		at += lseek(fd, 0, SEEK_END);
	assert_int_equal(pread(fd, &b, 1, at), 1);
	b ^= 0x10;
	assert_int_equal(pwrite(fd, &b, 1, at), 1);
	close(fd);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	return remove(path);
}

void remove_tree(const char *path)
{
	assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void copy_file(const char *from, const char *to)
{
	static char buf[1 << 20];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
	ssize_t n;

	assert_true(in >= 0 && out >= 0);
	while ((n = read(in, buf, sizeof buf)) > 0)
		assert_int_equal(write(out, buf, (size_t)n), n);
	close(in);
	close(out);
}

void copy_step(const char *from, const char *to)
{
	const char *name[NAMES_MAX];

	assert_int_equal(mkdir(to, 0700), 0);
	names_in(from, name);
	for (const char **p = name; *p; p++)
		if (**p != '.')
			copy_file(own("%s/%s", from, *p), own("%s/%s", to, *p));
}

/* A piece at a time: a sanitizer gives each large piece of memory anew. */
static bool same_bytes(const char *a, const char *b)
{
	static char buf[2][64 << 10];
	int fd[2] = { open(a, O_RDONLY), open(b, O_RDONLY) };
	ssize_t n[2];
	bool same;

	assert_true(fd[0] >= 0 && fd[1] >= 0);
	do {
		for (int i = 0; i < 2; i++) {
			n[i] = read(fd[i], buf[i], sizeof buf[i]);
			assert_true(n[i] >= 0);
		}
		same = n[0] == n[1] && !memcmp(buf[0], buf[1], (size_t)n[0]);
	} while (same && n[0] > 0);
	close(fd[0]);
	close(fd[1]);
	return same;
}

bool same_files(const char *a, const char *b)
{
	DIR *d = opendir(a);
	uint32_t n = 0;
	bool same = d && exists(b);

	for (struct dirent *x; same && (x = readdir(d));) {
		if (x->d_name[0] == '.')
			continue;
		n++;
		same = exists(own("%s/%s", b, x->d_name)) &&
		       same_bytes(own("%s/%s", a, x->d_name), own("%s/%s", b, x->d_name));
	}
	closedir(d);
	d = opendir(b);
	for (struct dirent *x; d && (x = readdir(d));)
		n -= x->d_name[0] != '.';
	closedir(d);
	return same && n == 0;
}

void become_nobody(bool yes)
{
	if (!getuid())
		assert_int_equal(seteuid(yes ? 65534 : 0), 0);
}

bool only_root(void)
{
	if (!geteuid())
		return true;
	print_message("skipped: only root can become another user\n");
	return false;
}

void open_to_all(const char *dir)
{
	DIR *d = opendir(dir);

	for (struct dirent *e; (e = readdir(d));)
		if (e->d_type == DT_REG)
			assert_int_equal(fchmodat(dirfd(d), e->d_name, 0644, 0), 0);
	closedir(d);
	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(chmod(top, 0755), 0);
}

static int give_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	return lchown(path, 65534, 65534);
}

void give_away(const char *tree)
{
	assert_int_equal(nftw(tree, give_one, 16, FTW_PHYS), 0);
}

/* --- stores --- */

void (*declare)(struct table *decl);
void (*lie)(struct table *part);
double rig_loss = 2.5;
uint64_t rig_scale = 1;
static bool not_the_samples; /* the values of the tensors */

void declare_some(struct table *t, bool (*is)(const struct table *, const struct table_tensor *))
{
	struct table y = { 0 };
	uint32_t *id = calloc(t->ntensor, sizeof *id);

	for (uint32_t i = 0; i < t->nmesh; i++)
		assert_int_equal(table_add_mesh(&y, &t->mesh[i], NULL, NULL), 0);
	for (uint32_t i = 0; i < t->nlayout; i++)
		assert_int_equal(table_add_layout(&y, &t->layout[i], NULL, NULL), 0);
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (is(t, &t->tensor[i]))
			assert_int_equal(table_add_tensor(&y, &t->tensor[i], &id[i], NULL), 0);
	for (uint32_t i = 0; i < t->nplace; i++)
		assert_int_equal(table_add_place(&y, &t->place[i], NULL, NULL), 0);
	for (uint32_t i = 0; i < t->npiece; i++) {
		struct table_piece p = t->piece[i];

		if (!is(t, &t->tensor[p.tensor]))
			continue;
		p.tensor = id[p.tensor];
		assert_int_equal(table_add_piece(&y, &p, NULL), 0);
	}
	assert_int_equal(table_seal(&y, NULL), 0);
	free(id);
	table_free(t);
	*t = y;
}

static bool is_plain(const struct table *t, const struct table_tensor *x)
{
	(void)t;
	return x->dtype != CKPT_C128;
}

void declare_plain(struct table *t)
{
	declare_some(t, is_plain);
}

/* What a rank declares, and for steps whose values are nobody's truth, bytes to begin with. Made
 * once. */
struct declared {
	char mesh[32];
	uint32_t rank;
	struct sample s;
	uint8_t *raw;
};

static struct declared *declared(const char *mesh, uint32_t rank)
{
	static struct declared all[64];
	struct declared *d = all;

	while (d->mesh[0] && (strcmp(d->mesh, mesh) || d->rank != rank))
		d++;
	assert_true(d < all + ARRAY_LEN(all) - 1);
	if (d->mesh[0])
		return d;
	assert_int_equal(sample_make(mesh, rank, SEED, 1, &d->s), 0);
	free(d->s.mem);
	d->s.mem = NULL;
	snprintf(d->mesh, sizeof d->mesh, "%s", mesh);
	d->rank = rank;
	return d;
}

/* The bytes of a part's place, to be freed. */
static uint8_t *fill(const struct table *t, struct declared *known, uint64_t step)
{
	uint64_t bytes = MAX(align_up(t->place[0].bytes, 4096), UINT64_C(4096));
	uint8_t *raw = aligned_alloc(4096, bytes);

	assert_non_null(raw);
	if (known && known->raw) {
		memcpy(raw, known->raw, bytes);
	} else {
		memset(raw, 0, bytes);
		for (uint32_t i = 0; i < t->npiece; i++)
			sample_piece(SEED, t, &t->piece[i], step, raw + t->piece[i].off);
	}
	if (!known)
		return raw;
	if (!known->raw) {
		known->raw = aligned_alloc(4096, bytes);
		memcpy(known->raw, raw, bytes);
	}
	for (uint32_t i = 0; i < t->npiece; i++)
		memcpy(raw + t->piece[i].off, &step, MIN(t->piece[i].len, sizeof step));
	return raw;
}

static int no_sync(void *ctx, int fd)
{
	(void)ctx;
	(void)fd;
	return 0;
}

const struct io_ops *quick_ops(void)
{
	static struct io_ops ops;

	ops = io_ops_posix;
	ops.sync = no_sync;
	return &ops;
}

/* A part of a transaction. */
static void part_write(struct store_txn *x, uint32_t rank, const struct native_info *info,
		       struct table *t, const void *raw, struct native_part *ret)
{
	struct part_file_opts how = { .ops = quick_ops(), .engine = IO_INLINE };
	struct ckpt_err err;
	bool direct = false;
	int fd;

	assert_ok(store_part_create(x, rank, native_part_bytes_max(t, 0), &direct, ret->name, &fd,
				    &err));
	assert_int_equal(part_file_write(&how, fd, raw, t, info, rank, ret, &err), 0);
	assert_int_equal(store_part_finish(x, ret->name, fd, ret->file_bytes, NULL, &err), 0);
}

/* What rank r of the mesh owns. The table stays for the manifest. */
static void write_part(struct store_txn *x, const char *mesh, uint32_t rank,
		       const struct native_info *info, struct table *t, struct native_part *ret)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct declared *known = declare || lie || rig_scale > 1 ? NULL : declared(mesh, rank);
	struct sample s = { 0 };
	struct ckpt_err err;
	uint8_t *raw;

	if (!known)
		assert_int_equal(sample_make(mesh, rank, SEED, rig_scale, &s), 0);
	if (declare)
		declare(&s.decl);
	assert_ok(native_part_table(known ? &known->s.decl : &s.decl, rank, t, &list, &err));
	if (lie)
		lie(t);
	raw = fill(t, not_the_samples ? known : NULL, info->step);
	part_write(x, rank, info, t, raw, ret);
	free(raw);
	sample_free(&s);
	ckpt_errlist_free(&list);
}

/* Of the committed step of that number; zeros: there is none. */
static void parent_id(const struct store *s, uint64_t step, uint8_t ret[16])
{
	struct store_step *all;
	uint32_t n;

	assert_int_equal(store_scan(s, false, &all, &n, NULL), 0);
	for (uint32_t i = 0; i < n; i++)
		if (all[i].step == step && all[i].state == STORE_COMMITTED)
			memcpy(ret, all[i].id, 16);
	free(all);
}

/* A transaction of a job below root. */
struct making {
	int root_fd;
	struct store *s;
	struct store_txn *x;
};

static void making_begin(struct making *m, const char *root, const char *job, uint64_t step)
{
	struct ckpt_err err = { 0 };
	uint64_t generation;

	if (!exists(root))
		assert_int_equal(mkdir(root, 0700), 0);
	m->root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(m->root_fd >= 0);
	assert_int_equal(
		store_open(quick_ops(), &format_native, m->root_fd, job, true, &m->s, &err), 0);
	assert_int_equal(store_claim(m->s, 0, false, &generation, &err), 0);
	assert_int_equal(store_begin(m->s, step, &m->x, &err), 0);
}

static void making_commit(struct making *m, const struct native_info *info,
			  const struct native_part *p, const struct native_lineage *lineage,
			  uint64_t rewind)
{
	struct ckpt_err err = { 0 };
	uint8_t id[16];
	uint64_t bytes;
	void *manifest;

	assert_ok_err(native_manifest(info, p, info->world, lineage, &manifest, &bytes, id, &err),
		      &err);
	assert_ok_err(store_commit(m->x, manifest, bytes, rewind, &err), &err);
	free(manifest);
}

/* The writer has died, so nobody ends the transaction; only its memory is ours to forget. */
static void making_leave(struct making *m, const char *job_dir)
{
	const char *name[NAMES_MAX], **tmp = name;

	names_in(job_dir, name);
	while (*tmp && strncmp(*tmp, ".tmp-", 5))
		tmp++;
	assert_non_null(*tmp);
	assert_int_equal(rename(own("%s/%s", job_dir, *tmp), own("%s/kept", top)), 0);
	store_abort(m->x);
	assert_int_equal(rename(own("%s/kept", top), own("%s/%s", job_dir, *tmp)), 0);
}

static void making_end(struct making *m)
{
	store_close(m->s);
	close(m->root_fd);
}

void make_step(const char *root, const struct how *h)
{
	const struct ckpt_note note[] = { { "loss", rig_loss }, { "lr", 3e-4 } };
	struct native_lineage lineage = ROW(.seq = h->seq, .parent_step = h->parent,
					    .tool = "ckptd 0.2.0", .nnote = 2, .note = note);
	struct native_info info = ROW(.job = h->job, .step = h->step, .generation = 1,
				      .wall_ns = WALL_NS + h->step * NS_PER_S);
	struct native_part p[RANKS_MAX] = { 0 };
	struct table table[RANKS_MAX] = { 0 };
	struct making m;

	memset(info.uuid, (int)h->step + 1, sizeof info.uuid);
	info.world = declared(h->mesh, 0)->s.world;
	making_begin(&m, root, h->job, h->step);
	parent_id(m.s, h->parent, lineage.parent_id);
	for (uint32_t r = 0; r < info.world; r++) {
		write_part(m.x, h->mesh, r, &info, &table[r], &p[r]);
		p[r].table = &table[r];
	}
	if (h->leave)
		making_leave(&m, own("%s/%s", root, h->job));
	else
		making_commit(&m, &info, p, &lineage, h->rewind);
	making_end(&m);
	for (uint32_t r = 0; r < info.world; r++)
		table_free(&table[r]);
}

const char *line(const char *root, const char *job, uint64_t n)
{
	char *path = place("");

	snprintf(path, PATH_MAX, "%s/%s", root, job);
	not_the_samples = true;
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t before = i == 1 ? UINT64_MAX : 10 * (i - 1);

		make_step(root, &(struct how){ job, "fsdp=2", 10 * i, i, before, before, false });
	}
	not_the_samples = false;
	return path;
}

const char *step_path(const char *job, uint64_t step)
{
	return path_of("%s/step-%012" PRIu64, job, step);
}

bool there(const char *job, uint64_t step)
{
	return exists(step_path(job, step));
}

const char *part(const char *step, uint32_t n)
{
	const char *name[NAMES_MAX];

	names_in(step, name);
	for (const char **p = name; *p; p++)
		if (strstr(*p, ".part") && !n--)
			return path_of("%s/%s", step, *p);
	fail_msg("%s has no such part", step);
	return NULL;
}

int reading(const char *job, uint64_t step)
{
	struct store s = ROW(.ops = &io_ops_posix, .format = &format_native, .root_fd = -1,
			     .job_fd = open(job, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	struct ckpt_err err = { 0 };
	char dir[STORE_DIR_MAX];
	int fd;

	snprintf(s.job, sizeof s.job, "%s", strrchr(job, '/') + 1);
	snprintf(dir, sizeof dir, "step-%012" PRIu64, step);
	assert_int_equal(store_step_open(&s, dir, &fd, &err), 0);
	close(s.job_fd);
	return fd;
}

/* --- made-up tensors --- */

static uint64_t made_bytes(const struct made *m)
{
	uint64_t n = dtype_bytes(m->dtype);

	for (uint32_t d = 0; d < m->ndim; d++)
		n *= m->shape[d];
	return n;
}

static void made_table(const struct made *made, uint32_t n, struct table *ret)
{
	struct table_place at = { .name = "memory", .bytes = 1 };
	struct ckpt_err err = { 0 };
	struct mesh mesh;
	struct layout l = { 0 };
	uint64_t start[4] = { 0 }, off = 0;
	uint32_t layout;

	for (uint32_t i = 0; i < n; i++)
		at.bytes += made_bytes(&made[i]);
	assert_int_equal(mesh_parse("fsdp=1", &ret->arena, &mesh, &err), 0);
	assert_int_equal(table_add_mesh(ret, &mesh, &l.mesh, &err), 0);
	assert_int_equal(table_add_layout(ret, &l, &layout, &err), 0);
	assert_int_equal(table_add_place(ret, &at, NULL, &err), 0);
	for (uint32_t i = 0; i < n; off += made_bytes(&made[i++])) {
		struct table_tensor x =
			ROW(.component = made[i].component, .name = made[i].name, .of = "",
			    .dtype = made[i].dtype, .role = made[i].role, .layout = TABLE_NONE,
			    .rank = TABLE_NONE, .ndim = made[i].ndim, .shape = made[i].shape);
		struct table_piece p = { .off = off };

		if (made[i].role >= MADE_BLOB(0)) {
			x.role = CKPT_OTHER;
			x.flags = TENSOR_BLOB;
			x.cls = CKPT_VOLATILE;
			x.media = made[i].role - MADE_BLOB(0);
		}
		assert_ok_err(table_add_tensor(ret, &x, &p.tensor, &err), &err);
		assert_int_equal(indexset_box(x.ndim, start, x.shape, &ret->arena, &p.set), 0);
		assert_int_equal(table_add_piece(ret, &p, &err), 0);
	}
	assert_int_equal(table_seal(ret, &err), 0);
}

static const struct made *made_find(const struct made *made, uint32_t n,
				    const struct table_tensor *x)
{
	for (uint32_t k = 0; k < n; k++)
		if (!strcmp(made[k].name, x->name) && !strcmp(made[k].component, x->component))
			return &made[k];
	fail_msg("%s was not made", x->name);
	return NULL;
}

const char *make_made(const char *root, const char *job, uint64_t step, const struct made *made,
		      uint32_t n)
{
	struct native_lineage lineage =
		ROW(.seq = 1, .parent_step = UINT64_MAX, .tool = "ckptd 0.2.0");
	struct native_info info =
		ROW(.job = job, .step = step, .generation = 1, .wall_ns = WALL_NS, .world = 1);
	struct table decl = { 0 }, table = { 0 };
	struct native_part p = { .table = &table };
	struct ckpt_err err = { 0 };
	struct making m;
	uint64_t bytes;
	uint8_t *raw;

	made_table(made, n, &decl);
	assert_int_equal(native_part_table(&decl, 0, &table, NULL, &err), 0);
	bytes = MAX(align_up(table.place[0].bytes, 4096), UINT64_C(4096));
	raw = aligned_alloc(4096, bytes);
	assert_non_null(raw);
	memset(raw, 0, bytes);
	for (uint32_t i = 0; i < table.npiece; i++) {
		const struct made *x = made_find(made, n, &table.tensor[table.piece[i].tensor]);

		memcpy(raw + table.piece[i].off, x->bytes, made_bytes(x));
	}
	making_begin(&m, root, job, step);
	part_write(m.x, 0, &info, &table, raw, &p);
	making_commit(&m, &info, &p, &lineage, UINT64_MAX);
	making_end(&m);
	free(raw);
	table_free(&decl);
	table_free(&table);
	return step_path(own("%s/%s", root, job), step);
}

/* --- running the command --- */

struct got got;

void run_argv(int argc, char **argv)
{
	FILE *out, *err;

	free(got.out);
	free(got.err);
	out = open_memstream(&got.out, &got.out_len);
	err = open_memstream(&got.err, &got.err_len);
	got.code = cli_run(argc, argv, out, err);
	fclose(out);
	fclose(err);
}

#define WORDS_MAX 32
#define WORDS(argv, argc, word)                                                   \
	do {                                                                      \
		va_list ap_;                                                      \
		va_start(ap_, word);                                              \
		for (const char *w_ = word; w_; w_ = va_arg(ap_, const char *)) { \
			assert_true(argc < WORDS_MAX - 1);                        \
			argv[argc++] = (char *)w_;                                \
		}                                                                 \
		va_end(ap_);                                                      \
	} while (0)

int run(const char *word, ...)
{
	char *argv[WORDS_MAX] = { (char *)"ckptctl" };
	int argc = 1;

	WORDS(argv, argc, word);
	run_argv(argc, argv);
	return got.code;
}

const char *dims_of(const char *mesh)
{
	static char dims[256];
	char *to = dims;

	for (const char *p = mesh; *p; p += strcspn(p, ",")) {
		size_t n = strcspn(p, "=");

		assert_true(to + n < dims + sizeof dims);
		memcpy(to, p, n);
		to += n;
		p += n;
	}
	*to = 0;
	return dims;
}

void exit_is(int have, int want, const char *file, int line_)
{
	if (have != want) {
		print_error("exit %d, not %d: %s%s\n", have, want, got.out, got.err);
		_fail(file, line_);
	}
}

int run_verb(const struct io_ops *ops, const struct cli_verb *verb, const char *const *arg,
	     const struct verb_option *option)
{
	struct cli c = ROW(.ops = ops, .verb = verb, .arg = (char **)(uintptr_t)arg, .where = ".",
			   .quiet = true);

	while (arg[c.narg])
		c.narg++;
	for (; option->id != OPT_NONE; option++)
		c.value[option->id] = option->value;
	free(got.out);
	free(got.err);
	c.out = open_memstream(&got.out, &got.out_len);
	c.err = open_memstream(&got.err, &got.err_len);
	c.o = output_text_new(c.out, &c.out_screen, c.err, &c.err_screen);
	got.code = verb->run(&c);
	c.o->ops->free(c.o);
	fclose(c.out);
	fclose(c.err);
	return got.code;
}

/* --- a terminal of 80 columns --- */

struct terminal {
	int master, slave;
	char *text;
	size_t len;
	pthread_t reader;
};

static void *terminal_read(void *arg)
{
	struct terminal *t = arg;
	FILE *mem = open_memstream(&t->text, &t->len);
	char buf[4096];
	ssize_t n;

	while ((n = read(t->master, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)n, mem);
	fclose(mem);
	return NULL;
}

static void terminal_open(struct terminal *t)
{
	struct winsize size = { .ws_row = 40, .ws_col = 80 };
	struct termios how;

	assert_int_equal(openpty(&t->master, &t->slave, NULL, NULL, &size), 0);
	assert_int_equal(tcgetattr(t->slave, &how), 0);
	how.c_oflag &= ~(tcflag_t)OPOST;
	how.c_lflag &= ~(tcflag_t)ECHO;
	assert_int_equal(tcsetattr(t->slave, TCSANOW, &how), 0);
	assert_int_equal(pthread_create(&t->reader, NULL, terminal_read, t), 0);
}

/* Nobody else may have the slave any more. */
static void terminal_close(struct terminal *t)
{
	close(t->slave);
	pthread_join(t->reader, NULL);
	close(t->master);
}

/* stdin is what has been typed; NULL: nobody can be asked. err NULL: out's. */
static void run_typed(struct terminal *out, struct terminal *err, const char *typed, int argc,
		      char **argv)
{
	struct terminal *talk = err ? err : out;
	int saved = dup(STDIN_FILENO), none = open("/dev/null", O_RDONLY);
	FILE *to, *say;

	free(got.out);
	free(got.err);
	terminal_open(out);
	if (err)
		terminal_open(err);
	if (typed)
		assert_int_equal(write(talk->master, typed, strlen(typed)), strlen(typed));
	dup2(typed ? talk->slave : none, STDIN_FILENO);
	close(none);
	to = fdopen(dup(out->slave), "w");
	say = fdopen(dup(talk->slave), "w");
	got.code = cli_run(argc, argv, to, say);
	fclose(to);
	fclose(say);
	/* The last of its ends; a read of the other one ends then. */
	if (saved >= 0)
		dup2(saved, STDIN_FILENO);
	else
		close(STDIN_FILENO);
	if (saved >= 0)
		close(saved);
	terminal_close(out);
	if (err)
		terminal_close(err);
	got.out = out->text;
	got.out_len = out->len;
	got.err = err ? err->text : strdup("");
	got.err_len = err ? err->len : 0;
}

int at_terminal(const char *typed, const char *word, ...)
{
	char *argv[WORDS_MAX] = { (char *)"ckptctl" };
	struct terminal t;
	int argc = 1;

	WORDS(argv, argc, word);
	setenv("TERM", "xterm", 1);
	run_typed(&t, NULL, typed, argc, argv);
	return got.code;
}

void assert_narrow(const char *text, uint32_t width)
{
	for (const char *p = text; *p;) {
		size_t len = strcspn(p, "\r\n"), n = 0;
		char *copy = calloc(1, len + 1);

		for (size_t i = 0; i < len; i++)
			if (p[i] == '\033')
				i += strcspn(p + i, "mK");
			else
				copy[n++] = p[i];
		if (screen_columns(copy) > width && !strstr(copy, top) && !strstr(copy, "/step-"))
			fail_msg("wider than %u columns: %s", width, copy);
		free(copy);
		p += len + (p[len] != 0);
	}
}

/* --- what a person sees --- */

#define HERE RIG_HERE
#define HERE_SHOWN "/data/training" /* as long */
#define HEAD_LINES 70
#define TAIL_LINES 12

const char *rig_here;

/* With rig_here, what lies below top has a name that does not depend on where that is. */

static char *path_here(const char *path, char *ret)
{
	static char *(*real_one)(const char *, char *);
	char *abs, *to;
	size_t len;

	if (!real_one)
		*(void **)&real_one = dlsym(RTLD_NEXT, "realpath");
	abs = real_one(path, ret);
	if (!abs || !rig_here || !*top)
		return abs;
	to = real_one(top, NULL);
	len = to ? strlen(to) : 0;
	if (to && !strncmp(abs, to, len) && (abs[len] == '/' || !abs[len]))
		(void)snprintf(ret, PATH_MAX, "%s%s", rig_here, path_of("%s", abs + len));
	free(to);
	return abs;
}

char *realpath(const char *restrict path, char *restrict ret)
{
	return path_here(path, ret);
}

char *__realpath_chk(const char *path, char *ret, size_t bytes);
char *__realpath_chk(const char *path, char *ret, size_t bytes)
{
	(void)bytes;
	return path_here(path, ret);
}

/* What differs by run, with as many characters as it has. */
static const struct {
	const char *pattern, *as;
} masks[] = ROW({ "w[0-9]{4}-([0-9a-f]{8})-[0-9]{3}", "00c0ffee" },
		{ "([0-9a-f]{32})", "00112233445566778899aabbccddeeff" },
		{ "id[ \n]+([0-9a-f]{16})", "0011223344556677" },
		{ "[.]old-[0-9]{12}-s[0-9]+-t([0-9a-f]+)", NULL },
		{ "[.]trash-([0-9a-f]{8})", "00c0ffee" }, { "([0-9]+[.][0-9]{2}) GB/s", NULL });

static void mask(char *text)
{
	for (size_t i = 0; i < ARRAY_LEN(masks); i++) {
		regmatch_t m[3];
		regex_t re;

		assert_int_equal(regcomp(&re, masks[i].pattern, REG_EXTENDED), 0);
		for (char *p = text; !regexec(&re, p, 3, m, 0); p += m[0].rm_eo) {
			regmatch_t *x = &m[re.re_nsub];

			for (regoff_t k = x->rm_so; k < x->rm_eo; k++)
				if (masks[i].as)
					p[k] = masks[i].as[k - x->rm_so];
				else if (p[k] != '.')
					p[k] = '#';
		}
		regfree(&re);
	}
	for (size_t n = strlen(HERE); n > 8; n--) /* it may have been shortened */
		for (char *p; (p = strstr(text, own("%.*s", (int)n, HERE)));)
			memcpy(p, HERE_SHOWN, n);
}

/* Lines as they are, the middle of many left out, blanks at the end of each too. */
static void put_text(FILE *f, char *text, bool whole)
{
	size_t n = 0, at = 0;

	mask(text);
	for (const char *p = text; *p; p++)
		n += *p == '\n';
	for (char *save, *l = text; *l; l = save, at++) {
		size_t len = strcspn(l, "\n");

		save = l + len + (l[len] != 0);
		while (len && l[len - 1] == ' ')
			len--;
		if (whole || n <= HEAD_LINES + TAIL_LINES || at < HEAD_LINES ||
		    at >= n - TAIL_LINES)
			fprintf(f, "%.*s\n", (int)len, l);
		else if (at == HEAD_LINES)
			fprintf(f, "[... %zu lines ...]\n", n - HEAD_LINES - TAIL_LINES);
	}
}

static void put_word(FILE *f, const char *w)
{
	char *copy = strdup(w);
	bool plain = *w && !w[strcspn(w, " \t\n'\"*?()[]{}<>&;|$#\\")];

	mask(copy);
	fprintf(f, plain ? " %s" : " '%s'", copy);
	free(copy);
}

static char *transcript(int argc, const char *const *argv, const char *typed, bool whole)
{
	size_t len;
	char *text;
	FILE *f = open_memstream(&text, &len);

	fputs("$ ckptctl", f);
	for (int i = 1; i < argc; i++)
		put_word(f, argv[i]);
	if (typed && *typed)
		fprintf(f, "    (typed: %.*s)", (int)strcspn(typed, "\n"), typed);
	fputc('\n', f);
	put_text(f, got.out, whole);
	put_text(f, got.err, whole);
	fprintf(f, "[exit %d]\n", got.code);
	fclose(f);
	return text;
}

/* A file of tests/golden, and how far the test has come in it. */
struct golden {
	char name[160];
	char *text;
	size_t at;
};
static struct golden golden[256];

/* GOLDEN=DIR: they are written there. Not set: those of tests/golden are compared. */
static bool golden_writes(void)
{
	return getenv("GOLDEN") != NULL;
}

static const char *golden_path(const char *name)
{
	const char *dir = getenv("GOLDEN");

	if (dir && *dir == '/')
		return own("%s/%s", dir, name);
	return own("%s/%s/%s", origin, dir ? dir : "tests/golden", name);
}

static struct golden *golden_open(const char *name)
{
	struct golden *g = golden;
	size_t len;

	while (g->name[0] && strcmp(g->name, name))
		g++;
	assert_true(g < golden + ARRAY_LEN(golden) - 1);
	if (g->name[0])
		return g;
	snprintf(g->name, sizeof g->name, "%s", name);
	if (golden_writes()) {
		(void)mkdir(golden_path(""), 0755);
		(void)mkdir(golden_path(own("%.*s", (int)strcspn(name, "/"), name)), 0755);
		spill(golden_path(name), "");
	} else if (exists(golden_path(name))) {
		g->text = file_bytes(golden_path(name), &len);
	} else {
		fail_msg("there is no tests/golden/%s: make golden", name);
	}
	return g;
}

static bool golden_differed;

static void golden_differs(const struct golden *g, size_t len, const char *now)
{
	char *want = strndup(g->text + g->at, len), line_[512];
	FILE *diff;

	golden_differed = true;
	spill(own("%s/.want", top), want);
	spill(own("%s/.now", top), now);
	diff = popen(own("diff -U99 --label tests/golden/%s --label now '%s/.want' '%s/.now'",
			 g->name, top, top),
		     "r");
	while (diff && fgets(line_, sizeof line_, diff))
		print_error("%s", line_);
	if (diff)
		pclose(diff);
	free(want);
	fail_msg("tests/golden/%s is not what appears (make golden writes it anew)", g->name);
}

static void golden_compare(const char *name, const char *now)
{
	struct golden *g = golden_open(name);
	const char *begin, *end;

	if (golden_writes()) {
		FILE *f = fopen(golden_path(name), "a");

		assert_non_null(f);
		fprintf(f, "%s%s", g->at ? "\n" : "", now);
		fclose(f);
		g->at = 1;
		return;
	}
	g->at += g->at && g->text[g->at] == '\n';
	begin = g->text + g->at;
	end = strstr(begin, "\n\n$ ckptctl");
	end = end ? end + 1 : begin + strlen(begin);
	if (strlen(now) != (size_t)(end - begin) || memcmp(now, begin, strlen(now)))
		golden_differs(g, (size_t)(end - begin), now);
	g->at = (size_t)(end - g->text);
}

/* Is what the tests read of their files all that these hold? */
static bool golden_ends(void)
{
	bool good = true;

	if (golden_differed)
		return true;
	for (struct golden *g = golden; g->name[0]; g++) {
		if (g->text && g->text[g->at])
			print_error("tests/golden/%s has more than its test asks for, from here "
				    "on (make golden writes it anew):\n%s",
				    g->name, g->text + g->at);
		good &= !g->text || !g->text[g->at];
		free(g->text);
	}
	return good;
}

static uint64_t no_time(void)
{
	return NS_PER_S;
}

/* A word of the command line, or a variable, as it would be below HERE. */
static char *from_here(const char *word)
{
	const char *p = word ? strstr(word, top) : NULL;

	return p ? (char *)own("%.*s" HERE "%s", (int)(p - word), word, p + strlen(top))
		 : (char *)word;
}

static const char *verb_of(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (cli_verb_find(argv[i]))
			return cli_verb_find(argv[i])->name;
	return "ckptctl";
}

int shown(const char *test, const char *typed, const char *word, ...)
{
	static const char *const name[] = { "CKPTD_STORE", "CKPTD_SOCKET" };
	char *argv[WORDS_MAX] = { (char *)"ckptctl" }, *was[ARRAY_LEN(name)], *now;
	const char *given[WORDS_MAX];
	struct terminal out, err;
	int argc = 1, back = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool whole, nobody;

	WORDS(argv, argc, word);
	for (int i = 1; i < argc; i++)
		argv[i] = from_here(argv[i]);
	memcpy(given, argv, sizeof given); /* getopt(3) sorts argv */
	for (size_t i = 0; i < ARRAY_LEN(name); i++) {
		was[i] = getenv(name[i]) ? strdup(getenv(name[i])) : NULL;
		if (was[i])
			setenv(name[i], from_here(was[i]), 1);
	}
	setenv("TERM", "dumb", 1);
	assert_int_equal(chdir(top), 0);
	rig_here = HERE;
	progress_clock = no_time;
	run_typed(&out, &err, typed, argc, argv);
	progress_clock = now_ns;
	rig_here = NULL;
	assert_int_equal(fchdir(back), 0);
	close(back);
	for (size_t i = 0; i < ARRAY_LEN(name); i++) {
		if (was[i])
			setenv(name[i], was[i], 1);
		free(was[i]);
	}
	whole = !strcmp(given[argc - 1], "-h") || argc == 1;
	now = transcript(argc, given, typed, whole);
	nobody = !getuid() && geteuid();
	if (nobody) /* only root writes here */
		become_nobody(false);
	golden_compare(own("%s/%s.txt", verb_of(argc, argv), test), now);
	if (nobody)
		become_nobody(true);
	free(now);
	return got.code;
}

/* --- JSON --- */

json_t *json_out(const char *schema)
{
	const char *last = got.out;
	json_error_t e;
	json_t *j;

	for (const char *p = got.out; p && (p = strchr(p, '\n')) && p[1]; p++)
		last = p + 1;
	j = json_loads(last, JSON_REJECT_DUPLICATES, &e);
	if (!j)
		fail_msg("%s in: %s", e.text, last);
	assert_string_equal(json_string_value(json_object_get(j, "schema")), schema);
	return j;
}

static json_t *kept[16];

json_t *json_kept(json_t *j)
{
	static uint32_t n;

	json_decref(kept[n % ARRAY_LEN(kept)]);
	return kept[n++ % ARRAY_LEN(kept)] = j;
}

void assert_json_error(int code)
{
	json_t *j = json_loads(got.err, 0, NULL);

	if (!j)
		fail_msg("no JSON: %s", got.err);
	assert_string_equal(json_string_value(json_object_get(j, "schema")), "ckptd.error/1");
	assert_int_equal(json_integer_value(json_object_get(j, "code")), code);
	assert_true(json_is_string(json_object_get(j, "message")));
	json_decref(j);
}

const json_t *member(const json_t *j, const char *key, json_type type)
{
	const json_t *v = json_object_get(j, key);

	if (!v)
		fail_msg("there is no key \"%s\"", key);
	if (json_typeof(v) != type)
		fail_msg("key \"%s\" is of JSON type %d, not %d", key, json_typeof(v), type);
	return v;
}

uint64_t number(const json_t *j, const char *key)
{
	return (uint64_t)json_integer_value(member(j, key, JSON_INTEGER));
}

double real(const json_t *j, const char *key)
{
	return json_real_value(member(j, key, JSON_REAL));
}

const char *string(const json_t *j, const char *key)
{
	return json_string_value(member(j, key, JSON_STRING));
}

size_t count(const json_t *j, const char *list)
{
	return json_array_size(member(j, list, JSON_ARRAY));
}

json_t *item(const json_t *j, const char *list, size_t i)
{
	return json_array_get(member(j, list, JSON_ARRAY), i);
}

/* NULL, or the path to what is not as it should be. */
static const char *json_lacks(const json_t *have, const json_t *want, const char *path)
{
	const char *lacks = NULL, *key;
	json_t *v;
	size_t i;

	if (json_is_object(want) && json_is_object(have)) {
		json_object_foreach((json_t *)(uintptr_t)want, key, v) if (!lacks) lacks =
			json_lacks(json_object_get(have, key), v, own("%s.%s", path, key));
		return lacks;
	}
	if (json_is_array(want) && json_is_array(have)) {
		json_array_foreach(want, i, v) if (!lacks) lacks =
			json_lacks(json_array_get(have, i), v, own("%s[%zu]", path, i));
		return lacks ? lacks : i != json_array_size(have) ? path : NULL;
	}
	return have && json_equal(have, want) ? NULL : path;
}

void assert_json_has(const json_t *have, const char *text)
{
	char *copy = strdup(text);
	const char *lacks;
	json_error_t why;
	json_t *want;

	for (char *p = copy; *p; p++)
		*p = *p == '\'' ? '"' : *p;
	want = json_loads(copy, 0, &why);
	if (!want)
		fail_msg("%s in: %s", why.text, copy);
	lacks = json_lacks(have, want, "");
	if (lacks)
		fail_msg("%s is not as in %s: %s", lacks, copy, got.out);
	json_decref(want);
	free(copy);
}

void assert_json(int code, const char *schema, const char *text)
{
	json_t *have;

	if (got.code != code)
		fail_msg("exit %d: %s%s", got.code, got.out, got.err);
	have = json_out(schema);
	assert_json_has(have, text);
	json_decref(have);
}

const char *steps_of(const char *job)
{
	static char buf[1024];
	const json_t *x;
	json_t *j;
	size_t n = 0, i;

	buf[0] = 0;
	assert_int_equal(RUN("ls", job, "--json") & ~CLI_WARNINGS, 0);
	j = json_out("ckptd.ls/1");
	json_array_foreach(json_object_get(j, "checkpoints"), i,
			   x) if (!strcmp(string(x, "state"), "committed")) n +=
		(size_t)snprintf(buf + n, sizeof buf - n, "%" PRIu64 " ", number(x, "step"));
	json_decref(j);
	return buf;
}

json_t *of_step(json_t *list, uint64_t step)
{
	json_t *x;
	size_t i;

	json_array_foreach(list, i, x) if (number(x, "step") == step) return x;
	fail_msg("step %" PRIu64 " is not in the list", step);
	return NULL;
}

json_t *listed(const char *job, uint64_t step, json_t **ret_doc)
{
	assert_int_equal(RUN("ls", job, "--all", "--json") & ~CLI_WARNINGS, 0);
	*ret_doc = json_out("ckptd.ls/1");
	return of_step(json_object_get(*ret_doc, "checkpoints"), step);
}

/* --- the beginning and the end --- */

static int wall_clock(clockid_t id, struct timespec *ret)
{
	if (id != CLOCK_REALTIME)
		return (int)syscall(SYS_clock_gettime, id, ret);
	*ret = (struct timespec){ .tv_sec = (time_t)(RIG_NOW_NS / NS_PER_S) };
	return 0;
}

int make_top(void **state)
{
	static const char *const none[] = { "CKPTD_STORE", "NO_COLOR", "COLUMNS", "LC_ALL",
					    "LC_CTYPE",	   "LANG",     "LINES" };

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(none); i++)
		unsetenv(none[i]);
	setenv("TZ", "UTC", 1);
	libc_instead.clock_gettime = wall_clock;
	scratch_make(top);
	if (!getcwd(origin, sizeof origin))
		return -1;
	setenv("CKPTD_SOCKET", own("%s/nobody-listens", top), 1);
	return 0;
}

int make_all(void **state)
{
	static const struct how standard[] = {
		{ "alpha", "fsdp=4", 10, 1, UINT64_MAX, UINT64_MAX, false },
		{ "alpha", "fsdp=4", 20, 2, 10, 10, false },
		{ "beta", "dp=2,fsdp=2", 25, 1, UINT64_MAX, UINT64_MAX, false },
		{ "alpha", "fsdp=4", 30, 3, 20, 20, false },
	};

	if (make_top(state))
		return -1;
	snprintf(work, sizeof work, "%s/work", top);
	for (size_t i = 0; i < ARRAY_LEN(standard); i++)
		make_step(work, &standard[i]);
	return 0;
}

int drop_all(void **state)
{
	(void)state;
	free(got.out);
	free(got.err);
	for (uint32_t i = 0; i < ARRAY_LEN(kept); i++)
		json_decref(kept[i]);
	assert_int_equal(scratch_remove(top), 0);
	if (!golden_ends())
		exit(1); /* cmocka does not count what fails here */
	return 0;
}
