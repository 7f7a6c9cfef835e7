/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links.h - what it costs to bring bytes from one rank to another: latency and bandwidth of each
 * tier of a machine, and which tier lies between two ranks. A text file, a preset, or measured
 * (ckptctl doctor --links).
 *
 *	# comment
 *	per_host 8                # ranks of a host: rank / 8 is the host
 *	per_switch 4              # hosts behind one switch; without it: all
 *	memory  .2us  1600GB/s    # tier, latency, bandwidth of one rank in each direction
 *	host    .6us  400GB/s
 *	switch  2.7us 48GB/s
 *	network as h100           # taken from a preset
 *	disk    100us 3GB/s
 *
 * Latencies are in ns, us, ms or s; bandwidths in B/s, kB/s, MB/s, GB/s, TB/s (powers of 1000),
 * KiB/s, MiB/s, GiB/s, TiB/s (of 1024). Numbers are decimal, with an exponent or without one. Each
 * tier and per_host once. A tier that is missing is an error: nothing is guessed.
 *
 * The limits below keep every cost finite: 2^64 bytes to each of 2^20 ranks at LINKS_RATE_MIN take
 * less than 10^32 us.
 */
#ifndef CKPT_PLAN_LINKS_H
#define CKPT_PLAN_LINKS_H
#include "ckpt/base/error.h"
#include <stddef.h>
#include <stdint.h>

#define LINKS_LATENCY_MAX 1e9 /* us: a quarter of an hour is no latency of a machine */
#define LINKS_RATE_MIN 1e-6   /* bytes per us: 1 B/s */
#define LINKS_RATE_MAX 1e12   /* 10^18 B/s */
#define LINKS_RANKS_MAX (1u << 20)
#define LINKS_PRINT_BYTES 512 /* are enough for links_print */

enum links_tier {
	LINKS_MEMORY,  /* within a rank */
	LINKS_HOST,    /* ranks of one host */
	LINKS_SWITCH,  /* hosts behind one switch */
	LINKS_NETWORK, /* any others */
	LINKS_DISK,    /* a rank and the store */
	LINKS_TIERS,
};

struct links_cost {
	double latency_us;
	double bytes_per_us; /* that a rank sends, and at the same time receives */
};

struct links {
	uint32_t per_host;   /* >= 1: ranks n * per_host ... (n + 1) * per_host - 1 share a host */
	uint32_t per_switch; /* hosts behind one switch; 0: all */
	struct links_cost tier[LINKS_TIERS];
};

/*
 * A preset by its name; NULL: there is none. links_preset_name(i) until NULL. The first is the
 * default. links.c says where the figures are from.
 */
#define LINKS_DEFAULT "h100"
const struct links *links_preset(const char *name);
const char *links_preset_name(uint32_t i);

/*
 * label: what errors call the text. -EINVAL: the sentence has all that is wrong, line by line, and
 * the tiers that are missing.
 */
int links_parse(const char *label, const char *text, size_t len, struct links *ret,
		struct ckpt_err *err);
/* The text from which links_parse reads the same. Returns its length, as snprintf does. */
size_t links_print(const struct links *l, char *buf, size_t bytes);
/* "h100, torch, cpu": the presets. Returns buf. */
char *links_presets_print(char *buf, size_t bytes);

/* MEMORY of a rank and itself. */
enum links_tier links_between(const struct links *l, uint32_t rank, uint32_t other);
const char *links_tier_name(enum links_tier t);
/* One message of so many bytes. */
double links_us(const struct links *l, enum links_tier t, double bytes);
#endif
