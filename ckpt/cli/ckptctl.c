/* SPDX-License-Identifier: Apache-2.0 */
/* ckptctl.c - ckptctl. Everything is in cli_run, which tests call too. */
#include "ckpt/cli/cli.h"

int main(int argc, char **argv)
{
	return cli_run(argc, argv, stdout, stderr);
}
