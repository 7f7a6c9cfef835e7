/* SPDX-License-Identifier: Apache-2.0 */
/* verb_version.c - ckptctl version: what this program is and which formats it reads. */
#include "ckpt/base/util.h"
#include "ckpt/ckpt.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "formats/registry/registry.h"

static int version_run(struct cli *c)
{
	char names[256] = "";

	output_begin(c->o, "ckptd.version/1");
	output_key(c->o, "program", cell_text("ckptctl"));
	output_key(c->o, "version", cell_text(CLI_VERSION));
	output_list(c->o, "formats", NULL, 0);
	for (uint32_t i = 0; formats[i]; i++) {
		output_row(c->o);
		output_key(c->o, "format", cell_text(formats[i]->name));
		output_close(c->o);
		human_add(names, sizeof names, ", ", "%s", formats[i]->name);
	}
	output_close(c->o);
	cli_say(c, STYLE_PLAIN, "ckptctl %s", CLI_VERSION);
	output_field(c->o, "abi", "client interface", cell_number(CKPT_ABI));
	output_head(c->o, "formats", cell_text(names));
	output_end(c->o);
	return CLI_OK;
}

const struct cli_verb verb_version = {
	.name = "version",
	.help = "the version of this program, and the formats that it reads",
	.synopsis = (const char *const[]){ "", NULL },
	.about = "Prints the version, the version of the client interface, and the checkpoint "
		 "formats that this program reads.",
	.example = (const struct cli_example[]){ { "ckptctl version --json", "for a bug report" },
						 { NULL, NULL } },
	.exits = "0",
	.run = version_run,
};
