// SPDX-License-Identifier: Apache-2.0
// place.c - directories that launches write to, and the devices below them. Called by launch,
// restore, persist, keep, rescue and loop.
// Invariants: a launch commits to the directory that it claimed, or nowhere; a task that uses a
// store runs on the threads of that store's device.
#include "daemon/state.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define STUCK_NS NS_PER_S      /* that a task may show no progress */
#define LOOK_AGAIN_NS NS_PER_S /* from one look for a directory that was moved to the next */
#define OTHERS UINT64_MAX      /* dev of the device that stands for all beyond DEVICES_MAX */

static const struct {
	const char *name;
	uint32_t threads;
} lanes[LANES] = {
	[LANE_WRITE] = { "ckptd-io", 2 }, /* so that a small step need not wait for a large one */
	[LANE_ASK] = { "ckptd-ask", COPY_THREADS_MAX },
	[LANE_KEEP] = { "ckptd-keep", 1 },
};

/* --- devices --- */
int dir_look(int fd, uint64_t *ret_dev, uint64_t *ret_ino)
{
	struct statx st;
	struct stat plain; /* where statx is missing or forbidden */

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &st) == 0) {
		*ret_dev = makedev(st.stx_dev_major, st.stx_dev_minor);
		*ret_ino = st.stx_ino;
		return S_ISDIR(st.stx_mode) ? 0 : -ENOTDIR;
	}
	if (fstat(fd, &plain) < 0)
		return -errno;
	*ret_dev = plain.st_dev;
	*ret_ino = plain.st_ino;
	return S_ISDIR(plain.st_mode) ? 0 : -ENOTDIR;
}

/* One line of mountinfo: "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw". id: of
 * the mount; 0 where the kernel does not say: the first of the device. */
static bool mount_is(const char *line, uint64_t id, uint64_t dev, char *ret, size_t bytes)
{
	const char *rest = strstr(line, " - ");
	char type[32], source[256];
	uint64_t mine;
	uint32_t major, minor;

	if (sscanf(line, "%" SCNu64 " %*u %u:%u", &mine, &major, &minor) != 3 || !rest ||
	    (id ? mine != id : makedev(major, minor) != dev) ||
	    sscanf(rest, " - %31s %255s", type, source) != 2)
		return false;
	snprintf(ret, bytes, "%.*s (%s)", (int)(bytes - strlen(type) - 4), source, type);
	return true;
}

/* What is mounted there; "": not known. */
static void device_name(int fd, char *ret, size_t bytes)
{
	cleanup_free char *line = NULL;
	struct statx st = { 0 };
	uint64_t dev, ino;
	size_t capacity = 0;
	FILE *f;

	ret[0] = 0;
	if (dir_look(fd, &dev, &ino) < 0 || !(f = fopen("/proc/self/mountinfo", "re")))
		return;
	(void)statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &st);
	while (getline(&line, &capacity, f) > 0)
		if (mount_is(line, st.stx_mask & STATX_MNT_ID ? st.stx_mnt_id : 0, dev, ret, bytes))
			break;
	(void)fclose(f);
}

static struct device *device_find(const struct daemon *d, uint64_t dev, uint32_t *ret_n)
{
	struct device *found = NULL;

	*ret_n = 0;
	for (struct device *v = d->devices; v; v = v->next, ++*ret_n)
		if (v->dev == dev)
			found = v;
	return found;
}

struct device *device_get(struct daemon *d, int fd)
{
	struct io_stat st = { 0 };
	struct device *v;
	uint32_t n;

	(void)io_stat(d->opts.ops, fd, &st);
	v = device_find(d, st.dev, &n);
	if (!v && n >= DEVICES_MAX) {
		st.dev = OTHERS;
		v = device_find(d, st.dev, &n);
	}
	if (v) {
		v->refs++;
		return v;
	}
	v = calloc(1, sizeof *v);
	if (!v)
		return NULL;
	*v = (struct device){ .d = d, .dev = st.dev, .refs = 1, .next = d->devices };
	if (v->dev != OTHERS)
		device_name(fd, v->name, sizeof v->name);
	d->devices = v;
	return v;
}

void device_unref(struct device *v)
{
	struct device **at;

	if (!v || --v->refs)
		return;
	for (enum lane i = 0; i < LANES; i++)
		pool_stop(&v->lane[i]);
	for (at = &v->d->devices; *at != v; at = &(*at)->next)
		continue;
	*at = v->next;
	free(v);
}

/* Without a thread of its own it runs among the daemon's. */
void device_task(struct device *v, enum lane lane, struct task *t, task_fn *run, task_fn *done)
{
	struct pool *p = &v->lane[lane];

	if (!p->nworker) {
		pool_stop(p);
		(void)pool_start(v->d, p, lanes[lane].name, lanes[lane].threads);
	}
	daemon_task(p->nworker ? p : &v->d->work, t, run, done);
}

uint64_t device_stuck_ns(const struct device *v, uint64_t now)
{
	uint64_t most = 0;

	for (enum lane i = 0; i < LANES; i++)
		for (uint32_t k = 0; k < v->lane[i].nworker; k++) {
			uint64_t sign = atomic_load(&v->lane[i].worker[k].sign_ns);

			if (sign)
				most = MAX(most, elapsed_ns(sign, now));
		}
	return most > STUCK_NS ? most : 0;
}

/* --- places --- */
struct place *place_new(struct daemon *d, struct store *s)
{
	struct place *p = calloc(1, sizeof *p);
	struct device *v = p ? device_get(d, s->job_fd) : NULL;
	struct io_stat st = { 0 };

	if (!v) {
		store_close(s);
		free(p);
		return NULL;
	}
	(void)io_stat(d->opts.ops, s->job_fd, &st);
	*p = (struct place){
		.d = d, .refs = 1, .store = s, .device = v, .dev = st.dev, .ino = st.ino
	};
	return p;
}

struct place *place_ref(struct place *p)
{
	p->refs++;
	return p;
}

void place_unref(struct place *p)
{
	if (!p || --p->refs)
		return;
	store_close(p->store);
	device_unref(p->device);
	free(p);
}

/* --- is it back? --- */
struct look_back {
	struct task task;
	struct job *job; /* keeping: not freed */
	struct place *place;
	int rc;
};

static void look_back_run(struct task *t)
{
	struct look_back *x = (struct look_back *)t;

	x->rc = store_here(x->place->store, NULL);
}

static void look_back_done(struct task *t)
{
	struct look_back *x = (struct look_back *)t;
	struct place *p = x->place;

	x->job->keeping--;
	p->looking = false;
	p->looked_ns = now_ns();
	if (x->rc == 0 && p->away) {
		p->away = false;
		log_line(
			&p->d->opts.log, LOG_NOTICE,
			"place: the directory of job %s is back: ckptd writes the staged step again",
			x->job->name);
		job_write_again(x->job, p);
	}
	place_unref(p);
	free(x);
}

void place_tick(struct job *j, uint64_t now)
{
	for (struct snap *s = j->snaps; s; s = s->next) {
		struct place *p = s->launch->place;
		struct look_back *x;

		if (!p->away || p->looking || elapsed_ns(p->looked_ns, now) < LOOK_AGAIN_NS ||
		    !(x = calloc(1, sizeof *x)))
			continue;
		*x = (struct look_back){ .job = j, .place = place_ref(p) };
		p->looking = true;
		j->keeping++;
		device_task(p->device, LANE_ASK, &x->task, look_back_run, look_back_done);
	}
}
