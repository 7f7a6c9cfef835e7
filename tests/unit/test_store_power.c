/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_power.c - the same promise on a real ext4: a file system in a loop file loses its
 * power (FS_IOC_SHUTDOWN without flushing its log) when the process died at its n-th mutating call,
 * is mounted again, and is looked at. Needs root, loop devices and mkfs.ext4; skipped, with the
 * reason, without. The disk is mounted in a namespace of the test's own, and is recognised by a
 * mark before its power is cut.
 */
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include "tests/crash/crash_step.h"
#include "tests/lib/unit.h"
#include "formats/native/native.h"

#define POWER_OFF _IOR('X', 125, uint32_t) /* FS_IOC_SHUTDOWN; 2: and do not flush the log */
#define DISK_MARK "this-disk-may-lose-its-power"
#define LOOP_MAJOR 7
#define CYCLES_MAX 40
#define TIME_MAX (4 * NS_PER_S)

static struct place place;

__attribute__((format(printf, 1, 2))) static bool run(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	return system(line) == 0;
}

static bool disk_mount(void)
{
	return run("mount -o loop %s/disk %s/at 2>/dev/null", place.path, place.path);
}

static bool disk_unmount(void)
{
	char at[256];

	(void)snprintf(at, sizeof at, "%s/at", place.path);
	return umount(at) == 0;
}

/* Is what fd is open on the disk that was made here, and nothing else of this machine? */
static bool disk_is_ours(int fd)
{
	struct stat at, below, root;

	return fstat(fd, &at) == 0 && stat(place.path, &below) == 0 && stat("/", &root) == 0 &&
	       major(at.st_dev) == LOOP_MAJOR && at.st_dev != below.st_dev &&
	       at.st_dev != root.st_dev && faccessat(fd, DISK_MARK, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool power_cut(void)
{
	uint32_t how = 2;
	int fd = openat(place.fd, "at", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool done = fd >= 0 && disk_is_ours(fd) && ioctl(fd, POWER_OFF, &how) == 0;

	if (fd >= 0)
		(void)close(fd);
	return done && disk_unmount();
}

/* NULL when a cycle can be made here; else why not. Nothing stays mounted. */
static const char *power_refused(void)
{
	if (geteuid() != 0)
		return "it needs root to mount a loop file";
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return "it needs a mount namespace of its own";
	(void)close(place.fd); /* it looked into the old one */
	place.fd = open(place.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (place.fd < 0)
		return "its directory cannot be opened again";
	if (!run("mkfs.ext4 -V >/dev/null 2>&1"))
		return "there is no mkfs.ext4";
	if (!run("cd %s && truncate -s 48M disk && mkfs.ext4 -q -F disk 2>/dev/null && mkdir at",
		 place.path))
		return "mkfs.ext4 failed";
	if (!disk_mount())
		return "no loop device could be mounted";
	if (!run("touch %s/at/" DISK_MARK, place.path) || !disk_unmount() || !disk_mount())
		return "the loop file could not be mounted twice";
	if (power_cut())
		return NULL;
	(void)disk_unmount();
	return "FS_IOC_SHUTDOWN was refused";
}

/* What one job knows of its steps; ack[i]: commit returned 0. */
struct job {
	struct crash_step step[CYCLES_MAX + 1];
	bool ack[CYCLES_MAX + 1];
	uint32_t n;
};

/* Every fourth launch goes back one step of the line. */
static int job_live(const struct io_ops *ops, int root_fd, struct job *j, struct ckpt_err *err)
{
	cleanup_free struct store_step *st = NULL;
	uint64_t generation, parent = UINT64_MAX;
	struct crash_step *c = &j->step[j->n];
	struct store *s;
	uint32_t n;
	int r = store_open(ops, &format_native, root_fd, CRASH_JOB, true, &s, err);

	if (r)
		return r;
	r = store_claim(s, 0, false, &generation, err);
	if (!r)
		r = store_scan(s, false, &st, &n, err);
	if (!r) {
		uint32_t back = j->n % 4 == 3;

		if (n > back)
			parent = st[back].step;
		r = crash_save(s, n > back ? parent + 1 : 0, j->n + 1, parent, c, err);
		j->ack[j->n++] = !r;
	}
	store_close(s);
	return r;
}

/* Acknowledged steps are there, set aside or not; nothing is damaged; what is listed is whole. */
static bool job_holds(int root_fd, const struct job *j, char why[CRASH_WHY])
{
	cleanup_free struct store_step *st = NULL;
	struct ckpt_err err;
	struct store *s;
	uint32_t n;
	bool good = true;

	if (store_open(&io_ops_posix, &format_native, root_fd, CRASH_JOB, false, &s, &err))
		return j->n == 0 || !j->ack[0];
	if (store_scan(s, true, &st, &n, &err))
		good = !snprintf(why, CRASH_WHY, "%.500s", err.msg);
	for (uint32_t i = 0; good && i < j->n; i++) {
		bool found = false;

		for (uint32_t k = 0; good && k < n; k++) {
			if (st[k].state == STORE_COLLECTING || st[k].seq != i + 1)
				continue;
			found = true;
			good = crash_step_same(s, st[k].dir, &j->step[i], why);
		}
		if (good && j->ack[i] && !found)
			good = !snprintf(why, CRASH_WHY, "step seq %" PRIu32 " is gone", i + 1);
	}
	for (uint32_t k = 0; good && k < n; k++)
		if (st[k].state == STORE_DAMAGED)
			good = !snprintf(why, CRASH_WHY, "%s is damaged: %.400s", st[k].dir,
					 st[k].why);
	store_close(s);
	return good;
}

/* One life, one death, one power cut, one look. Exit status: 0 it holds, 1 not, 2 alive to the
 * end. */
static int cycle(struct job *j, uint64_t nth)
{
	struct ckpt_err err = { 0 };
	char why[CRASH_WHY] = "";
	struct io_faults f;
	bool good, alive;
	int fd;

	if (!disk_mount())
		return -1;
	fd = openat(place.fd, "at", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	io_faults_init(&f, &io_ops_posix);
	io_faults_kill(&f, nth);
	(void)job_live(&f.ops, fd, j, &err);
	alive = !io_faults_hit(&f);
	(void)close(fd);
	if (!power_cut() || !disk_mount())
		return -1;
	fd = openat(place.fd, "at", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	good = job_holds(fd, j, why);
	(void)close(fd);
	if (!good)
		print_error("dead at call %" PRIu64 ": %s\n", nth, why);
	if (!disk_unmount())
		return -1;
	return good ? (alive ? 2 : 0) : 1;
}

TEST(after_power_loss_on_ext4_every_acknowledged_step_is_there)
{
	static struct job j;
	uint64_t begun = now_ns(), nth = 1;
	uint32_t cycles = 0, alive = 0;
	const char *refused;
	int r = 0;

	place_make(&place);
	refused = power_refused();
	if (refused) {
		print_message("skipped: %s\n", refused);
		place_remove(&place);
		skip();
	}
	while (cycles < CYCLES_MAX && now_ns() - begun < TIME_MAX) {
		r = cycle(&j, nth);
		if (r < 0 || r == 1)
			break;
		cycles++;
		alive += r == 2;
		/* Sparsely at first, then every call around the commit; after a whole life from the
		 * start. */
		nth = r == 2 ? 2 : nth < 16 ? nth + 5 : nth + 2;
	}
	for (uint32_t i = 0; i < j.n; i++)
		crash_step_free(&j.step[i]);
	place_remove(&place);
	print_message("%" PRIu32 " power cuts, %" PRIu32 " of them after a commit, in %" PRIu64
		      " ms\n",
		      cycles, alive, (now_ns() - begun) / NS_PER_MS);
	assert_true(r == 0 || r == 2);
	assert_true(cycles > 0);
}
