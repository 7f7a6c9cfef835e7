// SPDX-License-Identifier: Apache-2.0
// exp_torch.c - E10: what torch_gpu.py measures.
#include "ckpt/base/util.h"
#include "tests/gpu/gpubench.h"
#include <stdio.h>
#include <sys/wait.h>

void e10_torch(void)
{
	char command[8192 + 256], line[4096];
	uint32_t rows = 0;
	int status;
	FILE *f;

	snprintf(
		command, sizeof command,
		"PYTHONPATH='%s/python' CKPTD_LIBRARY='%s/libckpt.so' CKPTD_SOCKET='%s/torch.socket' "
		"python3 '%s/torch_gpu.py' bench '%s/e10' 2>'%s/e10.err'",
		bench.programs, bench.programs, bench.dir, bench.programs, bench.dir, bench.dir);
	f = popen(command, "re");
	if (!f)
		gpu_die("no process for python3: %s", strerror(errno));
	while (fgets(line, sizeof line, f))
		if (*line == '{') {
			rows_line(line);
			rows++;
		}
	status = pclose(f);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
		row_skip("torch", "there is no python3 here");
		return;
	}
	if (status || !rows) {
		snprintf(command, sizeof command, "%s/e10.err", bench.dir);
		f = fopen(command, "re");
		*line = 0;
		while (f && fgets(command, sizeof command, f)) /* its last line says what */
			snprintf(line, sizeof line, "%.1000s", command);
		line[strcspn(line, "\n")] = 0;
		row_fail("torch", "torch_gpu.py ended with status %d after %u rows: %.1000s",
			 WIFEXITED(status) ? WEXITSTATUS(status) : -1, rows, line);
	}
}
