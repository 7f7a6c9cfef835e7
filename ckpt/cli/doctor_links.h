/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_links.h - ckptctl doctor --links: what messages cost on this host, measured and written to
 * a cost file (ckpt/plan/links.h). */
#ifndef CKPT_CLI_DOCTOR_LINKS_H
#define CKPT_CLI_DOCTOR_LINKS_H
#include "ckpt/cli/cli.h"
#include "ckpt/host/host_links.h"

#define LINKS_MARK "# Written by ckptctl doctor --links, which may overwrite it.\n"

/*
 * Measures, and writes the file that --links names. A file that begins with LINKS_MARK is replaced;
 * any other one stays as it is. Before the document begins. An exit code, after the error was
 * printed.
 */
int doctor_links_write(struct cli *c, const char *dir, struct host_links *ret);
/* In the document: the key "link_costs", null if l is NULL. */
void doctor_links_put(struct cli *c, const struct host_links *l);
#endif
