/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_export.c - ckptctl export (restore is its old name): a checkpoint as safetensors, complete
 * or a file for each rank of a mesh, for programs that do not use ckptd.
 * Invariant: the destination holds what it held before, or that and all files that were asked for.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/casts.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/export.h"
#include "ckpt/io/publish.h"
#include "ckpt/layout/human.h"
#include "ckpt/move/move.h"
#include "ckpt/plan/reshard.h"
#include "formats/registry/registry.h"

#define FORMAT_NAME "safetensors"

/* Keys without components must differ. Returns 0, or an exit code after the error was printed. */
static int check_names(struct export *r)
{
	struct ckpt_errlist clashes = { .code = -EMEDIUMTYPE };
	struct ckpt_err err = { 0 };
	int rc;

	if (!r->c->value[OPT_ONLY])
		return CLI_OK;
	rc = selection_clashes(&r->to.target, &clashes, &err);
	if (!rc)
		rc = ckpt_errlist_end(
			&clashes, &err,
			"files of --only have names without components, and several tensors would "
			"have one name");
	ckpt_errlist_free(&clashes);
	return rc ? cli_fail(r->c, rc, &err,
			     "export one component at a time, or rename tensors with --view")
		  : CLI_OK;
}

/* Refuse what can be refused before anything is written. */
static int target_prepare(struct export *r)
{
	struct ckpt_err err = { 0 };
	bool casts;
	int code = export_find(r);

	if (!code)
		code = casts_apply(r->c, &r->view, &r->to.target, &casts);
	if (!code)
		code = check_names(r);
	if (!code)
		code = explicit_option(r->c, &r->to, r->links, &r->explicit);
	if (code || !casts)
		return code;
	r->overflow = calloc((size_t)r->to.target.ntensor + 1, sizeof *r->overflow);
	return r->overflow
		       ? CLI_OK
		       : cli_fail(r->c,
				  ckpt_error(&err, -ENOMEM, "out of memory for the tensors' list"),
				  &err, NULL);
}

/* The ranks whose files are written: that of --rank, or all. */
static int take_ranks(struct export *r, struct ckpt_err *err)
{
	const char *s = r->c->value[OPT_RANK];
	uint32_t world = target_world(&r->to.target);
	unsigned long rank;
	char *end;

	r->first = 0;
	r->n = world;
	if (!s)
		return 0;
	r->one = true;
	r->n = 1;
	errno = 0;
	rank = strtoul(s, &end, 10);
	if (*s < '0' || *s > '9' || *end)
		return ckpt_error(err, -EINVAL, "--rank=%s is not a number", s);
	if (errno || rank >= world)
		return ckpt_error(err, -EINVAL, "--rank=%s: the mesh %s has the ranks 0 to %u", s,
				  r->c->value[OPT_MESH], world - 1);
	r->first = (uint32_t)rank;
	return 0;
}

/* The mesh and the ranks on it. Returns 0, or an exit code after the error was printed. */
static int take_mesh(struct export *r, const struct subject *s)
{
	struct ckpt_err err = { 0 };
	int code, rc;

	r->alone |= convert_alone(r->c, &s->ckpt->table, r->mesh);
	code = mesh_option(r->c, s, &r->to);
	if (code)
		return code;
	rc = take_ranks(r, &err);
	return rc ? cli_fail(r->c, rc, &err, NULL) : CLI_OK;
}

/* --- one rank: of thousands of parts it needs a few --- */

/* No part is opened for the sake of tensors that --only does not select. */
static int leave_unselected(struct export *r, const struct checkpoint *k)
{
	cleanup_free bool *take = calloc((size_t)k->table.ntensor + 1, sizeof *take);
	struct ckpt_err err = { 0 };
	int code;

	if (!r->c->value[OPT_ONLY])
		return CLI_OK;
	if (!take)
		return cli_fail(r->c, ckpt_error(&err, -ENOMEM, "out of memory for --only"), &err,
				NULL);
	code = only_take(r->c, k, take);
	for (uint32_t i = 0; i < k->table.ntensor && !code; i++)
		if (!take[i])
			r->to.target.tensor[i].cls = CKPT_SINK;
	return code;
}

static int choose_parts(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	struct reshard_opts opts = { .blobs = true };
	struct export *r = arg;
	struct subject s = r->s;
	struct reshard *plan;
	bool all = false;
	int rc;

	s.ckpt = (struct checkpoint *)k; /* it is not changed; remesh lasts as long as it does */
	r->refused = take_mesh(r, &s);
	if (r->refused)
		return -ECANCELED;
	r->refused = leave_unselected(r, k);
	if (r->refused)
		return -ECANCELED;
	rc = reshard_open(&k->table, &r->to.target, &opts, &plan, err);
	if (!rc)
		rc = reshard_ranks(plan, r->first, k->world, needed, &all, err);
	reshard_close(plan);
	if (rc || all) /* layouts are a hint: if they do not help, all parts are needed */
		memset(needed, true, k->world);
	return rc == -ENOMEM ? rc : 0;
}

/* Do the parts that were chosen hold all that the rank needs? */
static int is_enough(struct export *r, bool *ret, struct ckpt_err *err)
{
	struct plan_opts opts = { .memory_blobs = true };
	struct table mine = { 0 };
	struct plan plan = { 0 };
	int rc = target_rank(&r->to.target, r->first, &mine, err);

	if (!rc)
		rc = plan_make(&r->s.ckpt->table, &mine, &opts, &plan, NULL, err);
	plan_free(&plan);
	table_free(&mine);
	*ret = rc != -EMEDIUMTYPE;
	return *ret ? rc : 0;
}

/* --- what is damaged is left out --- */

/* As subject_get, but a damaged checkpoint is opened, too. */
static int subject_get_damaged(struct export *r)
{
	struct cli *c = r->c;
	struct ckpt_err err = { 0 };
	const struct format *force = NULL;
	int rc = subject_from(c, &force, &err);

	if (!rc)
		rc = subject_find(&r->s, c->ops, c->where, r->name, force, &err);

	if (rc)
		return subject_tell(c, rc, &err, r->name);
	subject_note(c, &r->s.ref);
	r->s.partial = true;
	rc = subject_open(&r->s, damage_fault, &r->damage, &err);
	if (rc == -EBADMSG && r->s.ckpt)
		rc = damage_settle(&r->damage, r->s.ckpt, &err);
	if (rc == -EBADMSG)
		return cli_fail(c, rc, &err,
				"ckptctl verify %s lists every fault; without its MANIFEST nothing "
				"can be restored",
				CLI_WORD(r->s.ref.path));
	return rc ? subject_tell_read(&r->s, c, rc, &err, r->name) : CLI_OK;
}

/* Damaged tensors are left out of the new mesh, as if the checkpoint did not have them. */
static int leave_out(struct export *r)
{
	struct table *to = &r->to.target;
	struct ckpt_err err = { 0 };
	uint32_t nkept = 0;
	char why[600];

	free(r->left);
	r->nleft = 0;
	r->left = calloc((size_t)to->ntensor + 1, sizeof *r->left);
	if (!r->left)
		return cli_fail(r->c, ckpt_error(&err, -ENOMEM, "no memory for the tensors' list"),
				&err, NULL);
	for (uint32_t i = 0; i < to->ntensor; i++) {
		r->left[i] = damage_of(&r->damage, &r->s.ckpt->table, i, why, sizeof why);
		if (r->left[i])
			to->tensor[i].cls = CKPT_SINK;
		r->nleft += r->left[i];
		nkept += to->tensor[i].cls != CKPT_SINK && to->tensor[i].numel;
	}
	if (!r->nleft || nkept)
		return CLI_OK;
	ckpt_error(&err, -EBADMSG, "each of the %u tensors is damaged: nothing can be restored",
		   r->nleft);
	return cli_fail(r->c, -EBADMSG, &err, "ckptctl verify --data %s lists every fault",
			CLI_WORD(r->s.ref.path));
}

/* Read every byte, so that no damaged tensor is written. */
static int find_damage(struct export *r)
{
	const struct checkpoint *k = r->only.whole   ? r->only.whole
				     : r->view.whole ? r->view.whole
						     : r->s.ckpt;
	struct cli *c = r->c;
	struct move_files files;
	struct move_verified size;
	struct progress progress;
	struct ckpt_err err = { 0 };
	char title[SUBJECT_TITLE];
	uint64_t bytes;
	int rc;

	r->scanned = true;
	if (!r->one)
		cli_hint(
			c,
			"The checkpoint is damaged: ckptctl reads it in full to find the undamaged tensors.");
	move_subset_size(k, &(struct move_subset){ 0 }, &size);
	rc = move_open(c->ops, r->s.ref.step_fd, k, true, IO_AUTO, &files, &err);
	if (rc)
		return export_fail(r, rc, true, &err);
	progress_begin(&progress, c, size.bytes, "%s", subject_short(k, r->s.ref.path, title));
	rc = move_verify(&files, progress_tick, &progress, damage_fault, &r->damage, &bytes, &err);
	progress_end(&progress);
	move_close(&files);
	if (rc && rc != -EBADMSG && rc != -EIO)
		return export_fail(r, rc, true, &err);
	rc = damage_settle(&r->damage, k, &err);
	return rc ? export_fail(r, rc, true, &err) : leave_out(r);
}

/* Open the checkpoint, and its tensors on the mesh. */
static int subject_get_mesh(struct export *r)
{
	struct cli *c = r->c;
	struct ckpt_err err = { 0 };
	bool enough;
	int code, rc;

	/* The tensors under a view are not known before all pieces are. */
	if (c->value[OPT_RANK] && c->value[OPT_MESH] && !c->value[OPT_VIEW] && !r->keep_going) {
		code = subject_get_some(c, r->name, choose_parts, r, &r->s);
		if (code)
			return code < 0 ? r->refused : code;
		if (c->value[OPT_ONLY]) {
			remesh_free(&r->to);
			code = only_begin(c, &r->s, false, &r->only);
			if (!code)
				code = take_mesh(r, &r->s);
			if (code)
				return code;
		}
		if (!r->s.ckpt->some)
			return r->to.from ? CLI_OK : take_mesh(r, &r->s);
		rc = is_enough(r, &enough, &err);
		if (rc)
			return export_fail(r, rc, true, &err);
		if (enough)
			return CLI_OK;
		remesh_free(&r->to);
		only_end(&r->s, &r->only);
		subject_close(&r->s);
	}
	code = r->keep_going ? subject_get_damaged(r) : subject_get(c, r->name, &r->s);
	if (!code)
		code = only_begin(c, &r->s, c->value[OPT_VIEW] != NULL, &r->only);
	if (!code)
		code = view_file_begin(c, &r->s, &r->view);
	if (!code)
		code = take_mesh(r, &r->s);
	return code || !r->keep_going ? code : leave_out(r);
}

static int checkpoint_export(struct export *r)
{
	int code = subject_get_mesh(r);

	if (code)
		return code;
	code = target_prepare(r);
	if (code)
		return code;
	/* The runs of all ranks must leave out the same tensors. */
	code = r->keep_going && r->one ? EXPORT_AGAIN : export_write(r);
	if (code == EXPORT_AGAIN)
		code = find_damage(r);
	if (!code && r->scanned)
		code = export_write(r);
	if (code)
		return code;
	return export_put(r);
}

/* Let the daemon write the step beside DIR first, after all that can be refused was checked. */
static int take_memory(struct export *r)
{
	struct cli *c = r->c;
	struct publish_path d;
	int code = convert_place(c, r->path, UINT64_MAX, &d);

	if (code)
		return code;
	code = from_memory(c, c->arg[0], d.parent, &r->memory);
	r->name = r->memory.path;
	return code;
}

/* Without the options that only export has: complete tensors, as convert writes them. */
static bool is_complete(const struct cli *c)
{
	static const enum cli_option_id ranks[] = { OPT_MESH,	OPT_RANK,	 OPT_ONLY,
						    OPT_LAYOUT, OPT_FROM_MEMORY, OPT_KEEP_GOING };

	for (uint32_t i = 0; i < ARRAY_LEN(ranks); i++)
		if (c->value[ranks[i]])
			return false;
	return true;
}

/* Refuse options that have no meaning together. */
static int check_options(struct cli *c)
{
	struct ckpt_err err = { 0 };

	if (c->narg < 2)
		return cli_fail(
			c, ckpt_error(&err, -EINVAL, "export needs a checkpoint and what to write"),
			&err, "ckptctl export latest DST");
	if (c->value[OPT_RANK] && !c->value[OPT_MESH])
		return cli_fail(
			c, ckpt_error(&err, -EINVAL, "--rank needs --mesh: a rank of which mesh?"),
			&err, "without --mesh and --rank export writes complete tensors");
	return CLI_OK;
}

static int export_run(struct cli *c)
{
	struct export r = { .c = c, .s.ref.step_fd = -1, .begin_ns = now_ns() };
	int code = check_options(c);

	if (code)
		return code;
	if (is_complete(c)) {
		c->value[OPT_TO_FORMAT] = FORMAT_NAME;
		return convert_run(c);
	}
	code = convert_sizes(c, &r.mem_limit, &r.shard_bytes);
	if (!code)
		code = explicit_links(c, &r.links_read, &r.links);
	if (code)
		return code;
	r.format = engine_format(&(struct engine){ .format = formats }, FORMAT_NAME);
	r.path = c->arg[1];
	r.name = c->arg[0];
	code = convert_tied(c, r.format, c->value[OPT_MESH] != NULL, &r.tied);
	if (!code && c->value[OPT_FROM_MEMORY])
		code = take_memory(&r);
	r.keep_going = c->value[OPT_KEEP_GOING] != NULL;
	if (!code)
		code = checkpoint_export(&r);
	ckpt_errlist_free(&r.cannot);
	export_beside_end(&r);
	damage_free(&r.damage);
	free(r.overflow);
	free(r.made_file);
	free(r.left);
	explicit_option_end(&r.explicit);
	remesh_free(&r.to);
	view_file_end(&r.s, &r.view);
	only_end(&r.s, &r.only);
	subject_close(&r.s);
	arena_free(&r.arena);
	memory_step_drop(&r.memory);
	return code;
}

const struct cli_verb verb_export = {
	.name = "export",
	.synonyms = (const char *const[]){ "restore", NULL },
	.help = "write safetensors: the complete model, or a file per rank",
	.synopsis =
		(const char *const[]){
			"CKPT DST [--from=FORMAT] [--only=COMPONENT]... [--strip=COMPONENT] [--dtype=DTYPE] "
			"[--view=FILE] [--shard-size=BYTES] [--tied=HOW] [--mem-limit=BYTES] [--keep-going] "
			"[--from-memory] [--drop-unsupported] [-n] " EXPLICIT_LINKS_SYNOPSIS,
			"CKPT DIR --mesh=SPEC [--from=FORMAT] [--rank=R] [--layout=RULE|FILE]... [--replicate=DIMS] [--only=COMPONENT]... "
			"[--strip=COMPONENT] [--dtype=DTYPE] [--view=FILE] [--mem-limit=BYTES] "
			"[--keep-going] [--from-memory] [--drop-unsupported] [-n] " EXPLICIT_LINKS_SYNOPSIS,
			NULL },
	.about =
		"Without --mesh, export writes the complete tensors, "
		"as Hugging Face has them: DST is one file, if its name ends in .safetensors, or a "
		"directory with model.safetensors, or, with --shard-size, with "
		"model-00001-of-00003.safetensors, ... and their index. Keys are component.name; "
		"--strip COMPONENT leaves out that component's name. DST has all components, also the "
		"optimizer: load_state_dict and from_pretrained need --only model. If a tensor has several "
		"names (tied weights), each name that a job declared gets a copy, for "
		"load_state_dict; names that a safetensors file had in its metadata stay there, and the "
		"tensor is stored once, for safetensors.torch.load_model. --tied once or --tied copy does "
		"the one or the other with all of them. If such a run is interrupted, the "
		"same command continues it; with --only, --layout, --keep-going or --from-memory it "
		"begins again.\n"
		"With --mesh, export writes the data of each rank of a mesh to DIR/rank-00000.safetensors, "
		"DIR/rank-00001.safetensors, .... Every program that reads safetensors can load these "
		"files. Keys are component/name, each tensor is the rank's local shard (also an "
		"empty one, with a 0 in its shape), blobs are U8. Blobs that belong to no rank are in "
		"every file. Blobs of a rank are in that rank's file; if the mesh has fewer ranks, "
		"rank R also has those of R + world, R + 2 world, ..., as "
		"component/name/rank-00007. The files' metadata has job, step, mesh and rank.\n"
		"ckptctl plan -h describes how tensors are cut on the new mesh. CKPT is latest, "
		"latest~1, 12000, JOB@latest, or a path. If DIR does not exist, export makes it; "
		"otherwise it must be empty. With --rank DIR may have other ranks' files of the same "
		"checkpoint and mesh, and export opens only the parts that have data of that rank. Name the "
		"step then, as in step:90: latest becomes another one while a job runs. Files of ranks that are "
		"of two checkpoints are refused by every verb. Second names of tensors are in the files' "
		"metadata.\n"
		"With --only export writes the tensors of one component, or those whose "
		"component/name, or name, matches a pattern with *; it can be given several times. "
		"Keys are then the tensors' own names, without a component: "
		"those of the model. If two tensors would have one name, export lists them and "
		"writes nothing. --only ema.fast is the averaged model: the averaged "
		"tensors, and those that the average copies (buffers, frozen tensors, ...; "
		"ckpt_average), which are the step's own. The file's metadata names the average, "
		"its schedule, its number of updates and their last step.\n"
		"With --dtype floating-point tensors (F16, BF16, F32, F64) are cast, rounded to "
		"nearest even; all others stay. Elements that are too large become infinite: "
		"export counts them, and exits with 3.\n"
		"With --view export first renames, copies, drops, splits, joins, transposes, "
		"reshapes and casts tensors, by the rules of a file, one a line: \"rename "
		"model/layers.*.wq -> blk.{1}.q\", \"copy model/wte.weight -> lm_head.weight\", "
		"\"drop optim/*\", \"split model/l.*.qkv dim 0 sizes 4096,1024,1024 -> l.{1}.q "
		"l.{1}.k l.{1}.v\", \"stack model/experts.#.up dim 0 -> experts.up\", \"transpose "
		"model/w dims 1,0\", \"reshape model/w 32,-1,128\", \"cast model/*norm* F32\" "
		"(docs/LAYOUTS.md describes all rules). A tensor that a rule casts is not cast by --dtype. "
		"A tensor that is cut or joined along "
		"a sharded dimension is cut along dimension 0, unless --layout places it otherwise. "
		"With --view export opens all parts. With --only the rules apply to the selected "
		"tensors alone, and averaged tensors have the components of those that they "
		"average: a file of rules that was written for the model serves its averages, too.\n"
		"export checks every byte that it reads, and uses a bounded amount of memory. "
		"The files appear when all of them are complete and on the disk; after an error "
		"or Ctrl-C DST is as it was. With --json the summary of a run without --mesh, --only, "
		"--layout, --keep-going and --from-memory has the keys of ckptctl convert.\n"
		"With --keep-going export leaves damaged tensors out of the files, lists them, and "
		"exits with 3. The files have no damaged data. If the damage is in the data, export "
		"reads the checkpoint in full to find it; with --rank it always does, so that every "
		"rank leaves out the same tensors.\n" EXPLICIT_ABOUT("export"),
	.example =
		(const struct cli_example[]){
			{ "ckptctl export latest model.safetensors --only model",
			  "the complete model in one file, under its own names" },
			{ "ckptctl export latest out --mesh fsdp=3", "all ranks of fsdp=3" },
			{ "ckptctl export step:90 out --mesh fsdp=1", "everything in one file" },
			{ "ckptctl export latest out --mesh fsdp=1 --view names.txt",
			  "the same under other names" },
			{ "ckptctl export 90 out --mesh fsdp=1 --keep-going",
			  "the undamaged tensors of a damaged step" },
			{ "ckptctl export demo@latest out --mesh fsdp=1 --from-memory",
			  "the newest step of job demo in the memory of ckptd" },
			{ "ckptctl export latest out --only ema.fast --dtype BF16",
			  "the averaged model in one file, under the model's names" },
			{ "ckptctl export step:90 out --mesh fsdp=16 --rank 5",
			  "one rank's file, on its own host" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			REMESH_OPTIONS,
			VIEW_OPTION,
			{ OPT_RANK, "only this rank's file" },
			{ OPT_ONLY,
			  "only this component, or tensors whose name matches, without the "
			  "component in the keys; can be repeated" },
			{ OPT_DTYPE, "cast floating-point tensors: F32, BF16 or F16" },
			{ OPT_MEM_LIMIT, "memory for data, as in 512M (default: 1G)" },
			{ OPT_FROM_MEMORY, "of the newest staged step, which a ckptd here holds" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_STRIP, "leave this component's name out of the keys" },
			{ OPT_SHARD_SIZE,
			  "split complete tensors into files of at most so many bytes" },
			{ OPT_TIED, CONVERT_TIED_HELP },
			{ OPT_DROP_UNSUPPORTED, "leave out what safetensors cannot hold" },
			{ OPT_DRY_RUN, "only print what would be made" },
			EXPLICIT_OPTIONS,
			EXPLICIT_LINKS_OPTION,
			{ OPT_KEEP_GOING, "leave out and list the tensors that are damaged" },
			{ OPT_FROM,
			  "the format of a CKPT that is a path, if ckptctl takes it for another" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0; 2 the mesh, the layout or view file, --rank or --only is wrong, DIR is not "
		"empty, is in a checkpoint or the directory of a job, or has the name that a store gives to a step; 3 damaged tensors were left out (--keep-going), or "
		"elements became infinite (--dtype, --view), or the mesh would hold copies that --replicate does "
		"not name, and nothing is written; 4 the checkpoint is damaged; 5 it is not "
		"committed; 7 DIR has files of another checkpoint or mesh (--rank), safetensors cannot hold a tensor, --dtype cannot cast one, two would "
		"have one name, an average is not complete, or nobody asked for a change "
		"(--explicit); 8 the average's rules are of a newer version; 10 there is no such "
		"store or checkpoint, or none in memory; 11 another export "
		"writes to DIR; 12 no permission; 13 no space, "
		"or --mem-limit is too small for what CKPT has compressed; 14 no daemon "
		"(--from-memory); 15 it does not "
		"answer; 130, 143 interrupted.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_DIR, ARG_NONE },
	.narg_max = 2,
	.run = export_run,
};
