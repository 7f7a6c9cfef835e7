/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - what text and JSON have in common: see output.h. Called by verbs. */
#include "ckpt/output/output.h"
#include <stdarg.h>

#define LABEL_BYTES 8192 /* a longer line is cut: text's cells have as much */

void output_label(struct output *o, const char *head, enum cell_style style, const char *fmt, ...)
{
	char line[LABEL_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	output_head(o, head, cell_styled(cell_text(line), style));
}
