/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutants.h - every planted mistake of the project: its name, its room, which safety step it takes
 * away. MUTANT(NAME) of mutant.h is where it sits; tests/mutants/table says which tests find it.
 * A mistake that none of them finds is a test that is missing: add a line here for each step that
 * would be easy to lose.
 */
#ifndef CKPT_MUTANTS_H
#define CKPT_MUTANTS_H

/* One line each, which tests/mutants reads. */
/* clang-format off */
#define MUTANTS(X) \
	/* --- what redistributions cost --- */ \
	X(RING_WITHOUT_LATENCY, redist, "each hop around a ring has its latency") \
	X(EXCHANGE_ONE_REPLICA, redist, "of replicas, that with the receiver's coordinates sends") \
	X(DIRECT_LEFT_OUT, redist, "the direct exchange competes with all sequences") \
	/* --- changes that nobody asked for --- */ \
	X(EXPLICIT_TRUSTS_LAYOUT, plan, "a piece that is not where its layout says is a reshard") \
	X(EXPLICIT_AVERAGE_ENDS, daemon, "an average that no rank declares any more is a drop") \
	X(EXPLICIT_NO_REDUCE, plan, "a reduction that nobody asked for is found") \
	/* --- what ranks send each other --- */ \
	X(SENDS_UNOWNED, plan, "of small replicas the one that a name chooses sends") \
	X(SENDER_NOT_ITSELF, plan, "a rank takes from itself what it has") \
	X(SENDER_ALWAYS_FIRST, plan, "replicas share the work of sending") \
	X(SCHEDULE_KIND_ONCE, plan, "a schedule carries each of the tensors that are alike") \
	X(SCHEDULE_FEW_ROUNDS, plan, "no rank sends or receives more than a round allows") \
	X(SCHEDULE_NO_PHASE, plan, "short streams are spread over the rounds") \
	X(SPREAD_UNSORTED, spread, "what goes from rank to rank has one order on both sides") \
	X(SPREAD_NOT_ABORTED, spread, "a rank that cannot go on ends the exchange for all") \
	X(SPREAD_ELEMENT_SPLIT, spread, "no element goes in two rounds") \
	X(SPREAD_NOT_TAKEN, spread, "shared memory stays until the other rank has copied it") \
	X(SPREAD_ANY_MESSAGE, spread, "bytes go to memory only behind the expected header") \
	X(SPREAD_ONE_WINDOW, spread, "what goes beside a round has windows of its own") \
	X(NCCL_COPY_UNORDERED, nccl, "windows are full before NCCL sends, and empty after") \
	X(NCCL_NOT_ALL, nccl, "all ranks have a communicator, or none goes on") \
	X(SHARE_NOT_READ, client, "after a failed exchange each rank reads what it lacks") \
	X(MISSING_IS_ALL, daemon, "after a failed exchange no rank reads what has arrived") \
	X(MISSING_TOO_LITTLE, nccl, "a round that failed has not arrived") \
	X(PART_AS_WHOLE, daemon, "a part of a tensor lands where it lies in the whole") \
	/* --- redistributions drawn --- */ \
	X(ARROW_TO_NEIGHBOUR, draw, "the ranks of a group differ in the step's mesh dimension") \
	X(ARROW_OF_REPLICAS, draw, "of replicas one sends") \
	/* --- the last step --- */ \
	X(LAST_STORED, wire, "a rank that goes on is seen by one that stops at the same time") \
	X(LAST_TOO_SOON, wire, "the last step is one after which no rank goes on") \
	X(LAST_LINE_IGNORED, wire, "after a restore the last step is begun anew once") \
	X(LAST_NEWEST_PAGE, client, "ranks agree about the last step while they change daemons") \
	/* --- looks at averages, and attributes --- */ \
	X(LIVING_SUPERSEDED, daemon, "a launch whose ranks live and mark is not ended by another one that attaches") \
	X(OVERTAKEN_CRIED, daemon, "a restart logs no error about the launch before it") \
	X(FIRST_MARK_WINS, daemon, "a first mark takes nothing from a launch that lives and marks") \
	X(CLAIM_OF_ANOTHER_RANK_UNSEEN, client, "a launch that took over comes back whole, whichever rank asked") \
	X(TOKEN_JOINS_NOTHING, daemon, "ranks of one token that come to one daemon are one launch") \
	X(UNREAD_CLAIM_IS_DEAD, daemon, "a claim that cannot be read is not overtaken") \
	X(POLICY_FROM_BESIDE, daemon, "who attaches beside the holder sets no policy") \
	X(OWN_TOKEN_UNSEEN, daemon, "ranks of one launch on two daemons find out") \
	X(FOREIGN_OWNER_TRUSTED, daemon, "a directory of another user is attached to only if that is said") \
	X(PEEK_GOES_BACK, daemon, "a look leaves the launch where it is") \
	X(PEEK_FILLS_ALL, daemon, "a look fills SINKs alone") \
	X(PEEK_STOPS, daemon, "a step without the average is passed for the next older one") \
	X(PEEK_WAITS, daemon, "a look does not wait for the disk") \
	X(PEEK_BLOBS_TAKEN, client, "the blobs of the restored step stay after a look") \
	X(ATTR_OF_EACH_RANK, client, "the attributes of rank 0 are the step's") \
	X(ATTR_NO_SEAL_DUE, client, "another attribute makes a seal due") \
	/* --- averages --- */ \
	X(EMA_ONE_BRANCH, ema, "from 0.5 on the update goes out from the source") \
	X(EMA_TWO_PRODUCTS, ema, "an average that has reached its source stays there") \
	X(EMA_COPY_COMPUTED, ema, "a share of 1 copies the source") \
	X(EMA_CARRY_LOST, ema, "what rounding took away is added to the next update") \
	X(EMA_HELD_UPDATED, ema, "an average that is held keeps its bits") \
	X(EMA_FLUSHES, ema, "small numbers are kept whatever the thread does with its own") \
	X(EMA_DISTANCE_ONE, ema, "an average makes up for the steps that it missed") \
	X(EVERY_IN_HISTORY, ema, "an average that waits has the history of one that does not") \
	X(EMA_HISTORY_UNCHAINED, ema, "the history of an average has every step that was applied") \
	X(EMA_START_IGNORED, ema, "up to start= an average is copied") \
	X(EMA_SUMS_OVERFLOW, ema, "the sums of the health are right for any numbers") \
	X(ONLY_WITHOUT_COPIED, engine, "a model of an average has the tensors that it copies") \
	X(ONLY_RAW, engine, "a model of an average has averaged tensors, not the raw ones") \
	X(CAST_OVERFLOW_UNCOUNTED, move, "elements that a cast made infinite are counted") \
	X(CONVERTED_WITHOUT_CHAIN, native, "a converted average keeps its chain") \
	X(CHAINS_ALL_ALIKE, cli, "diff says when two averages took in different steps") \
	/* --- commit, recovery, fencing --- */ \
	X(OUTSIDE_BY_NAME, store, "nothing but steps is made in a job's directory, by whatever path") \
	X(PART_NOT_SYNCED, store, "a part is synced before it counts") \
	X(COLLECTING_NOT_SYNCED, store, "the collecting directory is synced before its rename") \
	X(LINK_UNSYNCED, store, "the collecting directory is synced also after a link was made in it") \
	X(SHARED_READ_TWICE, engine, "data that several steps share are read once in a run") \
	X(SHARED_VERDICT_LOST, engine, "what is wrong with a shared file is wrong with each step that names it") \
	X(LINKED_BYTES_TWICE, store, "bytes of a file with several names are counted once") \
	X(LINK_NOT_COMPARED, store, "a part that is linked is the file that this launch wrote") \
	X(CONST_OTHER_DECLARATION, daemon, "a const part is linked only by what declares it alike") \
	X(LANDING_WRITTEN_EARLY, daemon, "a window is the library's until its LAND comes") \
	X(LANDING_FAULT_IGNORED, daemon, "memory that cannot be written fails a restore") \
	X(LANDING_LEFT_QUEUED, device, "a landing that fails has ended on the device") \
	X(LANDING_ANYWHERE, client, "what is landed goes to declared memory alone") \
	X(SLOT_SUM_IGNORED, move, "a staged step whose sums are wrong is not restored") \
	X(GATE_RESET_EARLY, daemon, "a restore after snapshots begins when every rank waits in it") \
	X(CONST_OVER_RESTORE, daemon, "a const part is not linked after a restore") \
	X(CONST_DAMAGED_LINKED, daemon, "after damage was found a const part is written again") \
	X(CUDA_STABLE_UNAWAITED, device, "a copy waits for what is queued before the mark") \
	X(CUDA_GUARD_UNAWAITED, device, "the trainer's stream waits for the copies") \
	X(WINDOW_OF_HOST, client, "a bounded guard estimates with the device's time") \
	X(SETTLE_UNAWAITED, device, "a restore waits for the streams that it is given") \
	X(END_TOO_SOON, client, "a copy has ended when its devices have come to its own end") \
	X(FOLLOWS_ITSELF, client, "copies of a device come after the streams of all devices") \
	X(ORDERED_BEFORE_QUEUED, client, "ORDERED is set when all copies are queued") \
	X(STREAM_NOT_HELD, client, "a guard that returns early has the streams wait") \
	X(VOLATILE_NOT_MOVED, client, "VOLATILE state of a device is that of the mark") \
	X(FAULT_IGNORED, client, "a snapshot of unmapped memory is torn") \
	X(CONST_CHANGE_UNSEEN, daemon, "const tensors that have changed are written again") \
	X(MEND_NEVER, daemon, "a damaged const tensor is sought in other steps") \
	X(MENDED_WITH_ANY, engine, "a const tensor is taken from another step if it has its fingerprint") \
	X(CONST_NEVER_READ, daemon, "each commit that links a const part reads some of its file") \
	X(CONST_SHARED_FOR_EVER, daemon, "a const part is shared by a limited number of steps") \
	X(SOURCES_NOT_WRITTEN, daemon, "a main part names the other parts of its rank") \
	X(JOB_NOT_SYNCED, store, "the job's directory is synced before a commit is acknowledged") \
	X(FAILED_SYNC_RETRIED, store, "a sync that failed is not asked again") \
	X(NAMES_REUSED, store, "names of collecting directories and parts are used once") \
	X(CLAIM_NOT_CHECKED, store, "who has lost the claim commits nothing") \
	X(CLAIM_NOT_SYNCED, store, "a claim is durable before anything is written under it") \
	X(SWEEP_NOT_SYNCED, store, "what a claim finds is made durable before it is trusted") \
	X(ASIDE_AFTER_COMMIT, store, "steps are set aside before the step that replaces them appears") \
	X(ASIDE_NOT_UNDONE, store, "what was set aside comes back when the commit fails") \
	X(FAILED_PART_LEFT, store, "a part that failed is removed from its directory") \
	X(RENAMED_EARLY, store, "step-N appears when all that is in it is durable") \
	X(LINE_TRUSTED, store, "a line is read again when somebody else has changed the directory") \
	X(SEQ_NOT_RAISED, store, "a step is newer than all that were there") \
	X(OPEN_PARTS_COMMITTED, store, "a commit refuses parts that are not finished") \
	X(SPOILED_COMMITTED, store, "a directory with a dead part that stayed is not committed") \
	X(LEFT_CONTINUED, store, "a launch that has gone back does not continue its older line") \
	X(LINE_OVERWRITTEN, store, "a step that its own line has is not written again") \
	X(ASIDE_OLDEST_FIRST, store, "what is set aside is so from the newest back") \
	X(CLOSE_ERROR_IGNORED, store, "a part whose close failed is given up") \
	X(SWEPT_IN_PLACE, store, "what a claim sweeps is nobody's before it is taken apart") \
	X(OTHER_STEP_ACCEPTED, store, "a MANIFEST of another step is misplaced") \
	X(FOREIGN_JOB_ACCEPTED, store, "a step of another job is misplaced") \
	X(OTHER_PARENT_ACCEPTED, store, "a step that continues another parent is misplaced") \
	X(FOREIGN_HOME_CLAIMED, store, "a directory that belongs to another job is not claimed") \
	X(SWAPPED_ACCEPTED, engine, "what was opened is the checkpoint that was chosen") \
	X(NEWER_QUARANTINED, engine, "what a newer version wrote is not damaged") \
	X(LATEST_NOT_LOOKED_AT, store, "latest has all its parts") \
	X(NEWER_PASSED_OVER, store, "latest stops at a step that another version wrote") \
	X(TORN_LISTED, store, "a step without a whole MANIFEST is not listed as committed") \
	X(LOOKED_ONCE, store, "a step that moves between two looks is looked at again") \
	X(SWEPT_OUR_OWN, store, "a claim leaves alone what its own process has begun") \
	X(FIRST_CLAIM_UNCHECKED, store, "a first mark takes nothing if a step was committed meanwhile") \
	X(CLAIM_LOOKED_ONCE, store, "a claim stands when it is the highest after it was made") \
	X(CLAIM_SHARED, store, "two that claim the same generation are told apart") \
	X(NEW_JOB_NOT_SYNCED, store, "a new job's directories are durable before anything is in them") \
	X(DIRECTORY_REMEMBERED, store, "a directory is looked up by its name before each write") \
	/* --- labels, removal, repair --- */ \
	X(LABEL_NOT_SYNCED, store, "a label is synced before it counts") \
	X(LABEL_NAME_NOT_SYNCED, store, "the directory around a label is synced before it counts") \
	X(LABEL_OF_ANOTHER, store, "a label is of one checkpoint, not of all of its number") \
	X(LABEL_UNREAD_TRUSTED, store, "a verified label that cannot be read says nothing") \
	X(QUARANTINE_IGNORED, store, "a step in quarantine is nothing to start from") \
	X(LOCKS_OF_ONE_HOST, store, "a lock of a step, and of the line, holds on all hosts") \
	X(READINGS_FOR_EVER_YOUNG, store, "what a dead reader left counts for ten minutes") \
	X(READINGS_IGNORED, store, "a step that another host reads, its locks unseen, is not removed") \
	X(READERS_NOT_LOCKED, store, "a step that is being read is not removed") \
	X(LOCKED_NAME_UNCHECKED, store, "what was locked is what the name leads to") \
	X(LINE_NOT_LOCKED, store, "nothing is removed while a job goes back") \
	X(POLICY_KEY_IGNORED, store, "a policy with a rule of a newer version keeps every step") \
	X(POLICY_OF_ANOTHER_USER, store, "a policy that another user has written counts for nothing") \
	X(POLICY_UNREAD_IS_NONE, store, "a policy that cannot be read keeps every step") \
	X(POLICY_NOT_SYNCED, store, "a policy is durable before it is in force") \
	X(VERIFIED_PRUNED, store, "the newest verified step stays") \
	X(VERIFY_EACH, daemon, "not every step is read back") \
	X(VERIFY_STAYS, daemon, "nothing is read back while a step is written") \
	X(RESTART_NOT_AWAITED, client, "the library waits for a ckptd that it did not start") \
	X(HELD_PRUNED, store, "a policy keeps what somebody holds") \
	X(HELD_MEANWHILE_REMOVED, store, "a step that was held meanwhile is not removed") \
	X(ANOTHER_REMOVED, store, "what is removed is the checkpoint that was judged") \
	X(MISPLACED_REMOVED, store, "what is misplaced, or a newer version wrote, is not removed") \
	X(STRANGERS_REMOVED, store, "files of others in a step that is removed stay") \
	X(ROOM_FROM_THE_LINE, daemon, "what was set aside goes before any step of the line") \
	X(SET_ASIDE_EARLY, store, "what was set aside stays for its time, whatever the policy") \
	X(LAST_STEP_REMOVED, store, "the last complete step is not removed by name") \
	X(REWIND_NEWEST_FIRST, store, "a rewind brings steps back from the oldest on") \
	X(KEEPER_UNCHECKED, store, "the step that a removal relies on is there") \
	X(REMOVED_BEFORE_SYNC, store, "a step's name is gone for good before its first file") \
	X(PRUNED_UNVERIFIED, store, "older steps go when a newer one was verified") \
	X(PARTS_UNSEEN_PRUNED, store, "a step that lacks a part is not removed by a policy") \
	X(PRUNED_NEWEST, store, "the newest committed step is never removed") \
	X(FAULTY_UNSAID, store, "repair says which steps lack a part") \
	X(RELEASED_UNVERIFIED, store, "a step leaves quarantine when all of it was checked") \
	X(REBUILT_TRUSTED, store, "a step with a new MANIFEST is in quarantine until it was checked") \
	X(LIVE_LAUNCH_REPAIRED, store, "what the newest launch may be writing is left alone") \
	/* --- system calls --- */ \
	X(SHORT_WRITE_IGNORED, io, "a short write is continued") \
	X(WINDOW_ERROR_IGNORED, io, "what writing back a window reports is an error of the file") \
	X(CACHE_BELIEVED, io, "what O_DIRECT cannot read is read when the page cache forgot it") \
	X(RENAME_REPLACES, io, "a rename replaces nothing") \
	X(LINKS_FOLLOWED, io, "symbolic links inside of a store are not followed") \
	X(NAMES_CLIMB, io, "names do not leave their directory") \
	X(PUBLISHED_NOT_SYNCED, io, "a new file is synced before the rename") \
	X(PUBLISHED_NAMES_NOT_SYNCED, io, "the names in a new directory are synced before the rename") \
	X(PUBLISHED_NAME_NOT_SYNCED, io, "the directory around what was published is synced") \
	X(PUT_NOT_SYNCED, io, "a small file is synced") \
	X(PUBLISH_INTO_STRANGERS, io, "what another user owns or may write is not continued") \
	X(PUBLISHED_OVER_OTHERS, io, "a file gives way only if it begins as ours do") \
	X(PUBLISHED_OVER_LOST, io, "a file that gave way comes back when the rename fails") \
	X(PUBLISH_STRANGERS_REMOVED, io, "a lock directory with the files of others is left alone") \
	X(PUBLISH_UNLOCKED, io, "two runs do not write to one place") \
	X(PUBLISH_LOCK_UNNAMED, io, "a lock on a directory that was removed meanwhile is no lock") \
	X(PUBLISH_UNLOCKED_EARLY, io, "the journals go when the rename is durable") \
	X(PUBLISH_NOTE_IN_PLACE, io, "a journal replaces the older one of two") \
	X(PUBLISH_NOTE_NOT_SYNCED, io, "the name of a journal is synced") \
	X(PUBLISH_HOME_NOT_SYNCED, io, "the directories of a run are synced before its first journal") \
	X(PUBLISH_REMOVES_EARLIER, io, "what an earlier run wrote stays when the next one cannot begin") \
	X(FILES_UNLIMITED, io, "of many files few have a descriptor at once") \
	X(FILES_CLOSED_TAKEN, io, "a file that is being read stays open") \
	X(FILES_REPLACED, io, "a file that is opened again is the one that it was") \
	/* --- what is in files --- */ \
	X(KEYS_UNSEEDED, base, "names that were chosen to collide do not") \
	X(BLOCK_SUM_IGNORED, base, "a header or trailer has the checksum of its bytes") \
	X(SECTION_SUM_IGNORED, base, "a section has the checksum that the trailer says") \
	X(SECTION_GAPS_IGNORED, native, "bytes between sections are zero") \
	X(PIECE_BOUNDS_IGNORED, table, "a piece lies within its place") \
	X(PART_ROOT_IGNORED, native, "a part is the very file that MANIFEST names") \
	X(PART_IDENTITY_IGNORED, native, "a part's header is of this checkpoint") \
	X(PART_BYTES_IGNORED, native, "a part is no longer than MANIFEST says") \
	X(FOREIGN_IS_DAMAGE, native, "a foreign file in a checkpoint's directory is no damage") \
	X(SOURCES_IGNORED, native, "a checkpoint is complete when the parts are there that its main parts name") \
	X(FP_ZERO_KNOWN, native, "a fingerprint that is not known is compared with nothing") \
	X(NEWER_BY_SUMMARY, native, "a scan, too, calls nothing malformed that only a newer version knows") \
	X(NEWER_IS_MALFORMED, native, "a file of a newer version is called newer, also if it contradicts itself") \
	X(OPTIONAL_REFUSED, native, "an optional section never keeps anybody from restoring") \
	X(TWINS_NOT_SOUGHT, native, "a derived piece has its twin in the same file") \
	X(FINGERPRINTS_NOT_SUMMED, native, "a tensor's fingerprint is the sum of its pieces'") \
	X(BOXES_WRITTEN_BY_ALL, native, "one rank of a mesh writes each element of its boxes") \
	X(BOXES_IN_FILES, table, "boxes as a layout are for declarations, not for files") \
	X(BRANCHES_PASSED_OVER, table, "a tree of pieces returns every piece that a set meets") \
	X(CHUNK_HASH_IGNORED, move, "a chunk has its hash") \
	X(CHUNK_SUM_ANYWHERE, move, "a chunk's sums say where it belongs") \
	X(PADDING_IGNORED, move, "bytes between chunks are zero") \
	X(RANGE_CRC_IGNORED, move, "a CRC-32 that a file holds is compared") \
	X(MADE_ALWAYS_ANEW, move, "what is asked for in its order is decoded once") \
	X(DECODED_MORE, coding, "a decoder that would give more bytes than announced fails") \
	X(DECODED_CRC_IGNORED, coding, "the CRC-32 of decoded bytes is compared") \
	X(DERIVED_UNCHECKED, move, "a derived tensor without bytes was compared with what it derives from") \
	X(DERIVED_FLUSHES, move, "rounding keeps subnormal numbers") \
	X(PIECE_PRINT_IGNORED, move, "verify compares the fingerprints of pieces") \
	X(SHORT_READ_ACCEPTED, move, "a file that ends inside its data is damage") \
	X(MOVED_NOT_COUNTED, move, "a restore has moved as many bytes as its plan") \
	X(WRITE_ERROR_IGNORED, move, "a write that failed fails its part") \
	X(DRAIN_FORGOTTEN, move, "a part ends when its last write has ended") \
	X(BUFFER_GIVEN_EARLY, move, "a buffer is used again when its write has ended") \
	X(PADDING_NOT_CLEARED, move, "bytes that no chunk stores are written as zeros") \
	/* --- memory shared with trainers --- */ \
	X(TEAR_BLIND, client, "a guard tears by compare-and-swap") \
	X(TEAR_NEVER, client, "a guard tears a copy that has not ended") \
	X(COPIED_BLIND, client, "a copy ends by compare-and-swap") \
	X(COPIED_WITH_ONE, client, "a snapshot is copied when both of its copiers have ended") \
	X(GUARD_IGNORES_DAEMON, client, "a guard that a device lets go does not leave the daemon's copier behind") \
	X(TEAR_AFTER_ORDERED, client, "what a guard has let go is torn by no later one") \
	X(OVER_UNCHECKED, client, "a rank that is late does not write to a slot that was given away") \
	X(SLOT_BEFORE_COPYING, daemon, "a slot is given when no copier of a rank writes to it") \
	X(COPYING_OF_ALL_SLOTS, client, "the end of a copy says nothing of other slots") \
	X(DEAD_BY_SOCKET, daemon, "who has lost its socket is not dead yet") \
	X(SLOTS_AS_ASKED, client, "SEALED says how many slots a rank has") \
	X(SEED_LOST, daemon, "a daemon's death before the first average loses no seed") \
	X(SEEDS_FORGOTTEN, client, "the next daemon gets the seeds of averages too") \
	X(SEED_IN_HISTORY, daemon, "the text of seed= is no part of an average's history") \
	X(AVERAGES_AS_CALLED, client, "the order of calls of ckpt_average changes nothing") \
	X(AVERAGES_UNJUDGED, client, "averages with mistakes are not declared") \
	X(SLOTS_OF_OLD_REV, client, "no daemon gets a slot in which pieces lie elsewhere") \
	X(ROWS_OF_OLD_REV, daemon, "a snapshot is copied by the rows of its own declaration") \
	X(MOVE_ANY_SEQ, client, "a copier decides for the snapshot that it copied, for no newer one") \
	X(TICKET_PER_RANK, client, "all ranks of a step have one ticket") \
	X(RETRY_ALONE, client, "a rank that marks a step again obeys what another one has begun") \
	X(SKIPS_ALIKE, client, "ranks that mark a step again together skip it together") \
	X(SKIP_STAYS, client, "a skipped step that is marked again is taken when a slot is free") \
	X(OVER_BY_STEP, client, "an earlier ticket of the same step is over, too") \
	X(STEPS_WRAP, client, "tickets know which of the steps with their bits they mean") \
	X(GATE_BLIND, client, "the gate is moved by compare-and-swap") \
	X(PAST_FORGOTTEN, client, "late ranks find the ticket of their step") \
	X(UPDATING_NOT_SET, client, "a trainer that changes its state says so") \
	X(UPDATING_NOT_CLEARED, client, "a snapshot says that the state is stable") \
	X(UNGUARDED_TRUSTED, client, "a rank that marks without a guard is known") \
	X(WAKE_FORGOTTEN, client, "a guard that waits for a copy is woken") \
	X(READ_UNCHECKED, client, "a record is read whole or not at all") \
	X(CANARY_FAR_IGNORED, client, "what devices had beside the copies is compared with the slot") \
	X(CANARY_FAR_ONCE, client, "a change behind the copy of a word is found") \
	X(CANARY_FAR_UNREAD, client, "a change before the copy of a word is found") \
	X(CANARY_IGNORED, client, "what was noted at the mark is compared with the slot") \
	X(CHANGED_LATE, client, "a guard reports a change before it reports success") \
	X(TORCH_ORDER_LITERAL, client, "torch's split factors are read as an order where the trainer says so") \
	X(BLOB_CUT, client, "a blob that is longer than its capacity is not cut to it") \
	X(SEALS_UNCHECKED, client, "memory from a peer is sealed against shrinking") \
	/* --- snapshots in the daemon --- */ \
	X(STAGED_BEFORE_ALL, daemon, "a step is staged when all ranks are copied") \
	X(TORN_STAGED, daemon, "a step of which one copy was given up is not staged") \
	X(RELEASED_BEFORE_STAGED, daemon, "a staged step is released only when a newer one is staged") \
	X(SLOT_NOT_GIVEN, daemon, "a slot that nobody needs goes back to the gate") \
	X(SLOT_TAKEN_WHILE_HELD, daemon, "a slot that a new launch took over is used when its step is released") \
	X(SLOT_NOT_CLEANED, daemon, "old bytes between the pieces of a slot that was taken over are cleared") \
	X(SEGMENTS_KEPT, daemon, "a staged step of a launch that has ended keeps no memory but its slots") \
	X(WHOLE_NOT_COUNTED, native, "a step whose pieces do not add up to its tensors is not committed") \
	X(AGREED_UNCHECKED, daemon, "declarations that contradict each other are refused") \
	X(AVERAGES_UNCOMPARED, daemon, "ranks that average otherwise are refused") \
	X(AVERAGES_OF_REPLICAS, daemon, "of what several ranks hold one makes the average") \
	X(PREDECESSOR_UNPINNED, daemon, "the step before stays as long as a pass reads it") \
	X(AVERAGE_UNGUARDED, daemon, "averages are made of guarded steps") \
	X(LEFT_OUT_UNCOUNTED, daemon, "what was marked and not averaged is counted") \
	X(LEFT_OUT_NOT_RESTORED, daemon, "the count of left-out steps goes on after a restore") \
	X(LEFT_OUT_CRIED, client, "the log names left-out steps above one of a hundred only") \
	X(EVERY_GIVEN_UP, daemon, "with every no step gives up its averages for a slot") \
	X(EVERY_OUTRUN, daemon, "with every the older step is averaged before a newer one is written") \
	X(EVERY_NOT_AWAITED, client, "with every the guard waits until the next mark has a slot") \
	X(AVERAGE_IN_PLACE, daemon, "an average is made out of place, from the step before") \
	X(GATE_PER_RANK, daemon, "a step that is not finite is left out by all ranks") \
	X(SEAL_MISSED, client, "ckpt_seal returns when its epoch was ready, whoever has begun the next") \
	X(SEAL_EARLY, daemon, "a slot is sealed when the averages of all ranks are made") \
	X(CHAIN_UNCHECKED, daemon, "averages are taken over from a slot of the same declaration") \
	X(PASSED_AGAIN, move, "a part that is written anew is not walked anew") \
	X(UNGUARDED_COMMITTED, daemon, "a step is committed when its ranks were seen to guard") \
	X(COMMITTED_TOO_EARLY, daemon, "a step is told committed after its last sync") \
	X(FOREIGN_UID_TRUSTED, daemon, "other users are turned away") \
	X(ADOPTED_FROM_ONE, daemon, "a step is taken over when every rank brings it along") \
	X(RESTORE_BEFORE_ADOPT, daemon, "a restore waits for the steps that ranks bring along") \
	X(SPACE_GUARD_OFF, daemon, "a step that does not fit is known before its first byte") \
	X(DAMAGE_FORGOTTEN, daemon, "a step that a restore found damaged is put in quarantine") \
	X(NOT_READ_BACK, engine, "the newest step is read back before older ones go") \
	X(LINE_FORGOTTEN, daemon, "what a launch has committed stays in its line when it cannot be read") \
	X(TURN_READ_AS_WHOLE, daemon, "bytes that a turn did not copy are read by nobody") \
	X(TURN_OUTDATED_STAGED, daemon, "no step is staged with a turn known to be unequal") \
	X(TURN_OFFERED_UNCOMPARED, client, "no other daemon takes a step with an unequal turn") \
	X(TURN_UNCOMPARED, daemon, "each turn is compared before its step is staged") \
	X(TURNS_OVER_RESTORE, daemon, "after a restore derived tensors are compared whole first") \
	X(STAGED_UNTRUSTED, daemon, "a step is staged when its ranks are known to guard") \
	X(ALLOC_UNTOUCHED, client, "memory of ckpt_alloc is there before anybody writes to it") \
	X(FILL_UNTOLD, daemon, "the library knows that a restore which failed had begun to write") \
	X(START_UNCHECKED, client, "no step is marked beside steps that nobody asked for") \
	X(FRESH_FORGOTTEN, daemon, "one rank's ckpt_fresh counts for the launch") \
	X(PASSED_UNSAID, daemon, "a restore says which newer steps it passed over") \
	X(DRIFT_UNCOMPARED, daemon, "replicas that differ are found") \
	X(DRIFT_GROUPS_MIXED, daemon, "only ranks with the same elements are compared") \
	X(DRIFT_SELF, daemon, "the ranks of a replicated dimension are replicas") \
	X(DRIFT_NOT_BROUGHT, daemon, "of replicas only what the library has brought is compared") \
	X(DRIFT_UNGUARDED, daemon, "what was not guarded is not compared") \
	X(NEVER_THINNED, daemon, "of the steps that wait for a slow disk the newest is kept") \
	X(ORDERED_THINNED, daemon, "a step that somebody ordered is written") \
	X(THINNED_UNAVERAGED, daemon, "averages take a step in before it is thinned") \
	X(THIRD_NEVER, daemon, "a launch whose disk is slow has a third slot") \
	X(TICKET_LOST_UNSAID, daemon, "ckpt_wait fails at once for a step that ckptd will not write") \
	X(DEBT_LOST, client, "if the step in place of a thinned one is lost, the next one is due") \
	X(FAILING_UNSAID, daemon, "a trainer learns that nothing can be written") \
	X(BASE_OF_OTHER_STEP, daemon, "averages go on from the step that was restored") \
	X(BASE_STALE, daemon, "an average goes on from the newest averaged step") \
	X(BASE_LET_GO, daemon, "the averages of the step before stay while ranks seal") \
	X(SEAL_OF_REV, daemon, "the averages of a slot outlive a move of memory") \
	X(STATE_NOT_RESTORED, daemon, "an average goes on with its history and its product") \
	/* --- formats of others --- */ \
	X(JSON_DEEP, json, "JSON is read to a limited depth") \
	X(JSON_HALF_PAIR, json, "half a surrogate pair is no character") \
	X(SAFETENSORS_SIZE, safetensors, "a tensor has the bytes that its shape and dtype say") \
	X(SAFETENSORS_HOLES, safetensors, "every byte between the first tensor and the last is in exactly one") \
	X(SAFETENSORS_TAIL, safetensors, "no byte is behind the last tensor") \
	X(SAFETENSORS_HEADER_HUGE, safetensors, "a header has at most 100,000,000 bytes") \
	X(EXPORT_COMPARES_ONCE, cli, "of two exports of ranks at once one sees the other's file") \
	X(TIED_ALWAYS_COPIED, safetensors, "a tensor that a file stored once under two names is stored once again") \
	X(ATTRIBUTE_READS_AS_TIE, safetensors, "an attribute with a tensor's name as value is no tie") \
	X(RANKS_SOURCE_UNSAID, engine, "files of ranks of two models without an id are never joined") \
	X(ORIGINS_NOT_COMPARED, safetensors, "files of two checkpoints are never joined") \
	X(ORIGIN_NONE_FITS_ALL, safetensors, "a file that names no checkpoint is not joined with one that does") \
	X(SAFETENSORS_INDEX_UNREAD, safetensors, "an index and its files name the same tensors") \
	/* --- conversion --- */ \
	X(SOURCE_NOT_STAMPED, engine, "a source that changed while it was read gives nothing") \
	X(CONVERTED_NOT_COMPARED, engine, "what was converted is compared with its source") \
	X(CONVERTED_NOT_OPENED, engine, "what was converted is opened before it gets its name") \
	X(COPIES_NOT_COMPARED, engine, "copies of the same elements are equal") \
	X(CHECK_NOT_READ, engine, "with --check every byte of the result is read again") \
	X(RESUMED_NOT_READ, engine, "what an earlier run wrote without sums is read again") \
	X(KEPT_AFTER_FAILED_WRITE, engine, "after a failed write or sync nothing is continued") \
	X(SOURCE_BY_METADATA, engine, "equal headers of other files are another source") \
	X(JOURNAL_OF_ANOTHER, engine, "the conversion of another source is not continued") \
	X(JOURNAL_SUMS_LOST, engine, "sums of a file go on where the journal has them") \
	X(PLAIN_ERROR_IGNORED, engine, "a write that failed fails a conversion") \
	X(PLAIN_BUFFER_EARLY, engine, "a buffer is used again when its write has ended") \
	X(PLAIN_RUN_ACROSS, engine, "one write is of one file") \
	X(PLAIN_NOT_DRAINED, engine, "a window is read when the writes of the one before have ended") \
	X(PROBE_TIE_TAKEN, engine, "two formats that fit equally are refused") \
	X(UNKNOWN_EQUAL, engine, "what has no fingerprint is not equal by it") \
	X(UNSUMMED_IS_SUMMED, engine, "bytes without a sum are said to have none") \
	X(JOURNAL_PARTS_TRUSTED, engine, "parts that a journal names are looked at before they are used") \
	X(BUFFERS_FRESH, move, "a read uses the buffers of the one before") \
	X(JOURNAL_BYTES_TRUSTED, move, "bytes that a journal names are read again before they are used") \
	X(REDIST_FIRST_WAY, redist, "a cheaper way to a state replaces the first one") \
	X(REDIST_ANY_CUT, redist, "only the last cut of a tensor dimension is undone") \
	X(REDIST_NESTED, redist, "the greedy pass gathers before it cuts inside other cuts") \
	X(REDIST_BOUND_OWN, redist, "the bound of a ring leaves out what a member holds already") \
	X(REDIST_BOUND_UNCUT, redist, "the bound allows for cuts that a dimension has already") \
	X(REDIST_TWINS_IN_DST, redist, "tensor dimensions that dst cuts are not like others") \
	X(JOURNAL_BEFORE_PARTS, engine, "parts are durable before the journal names them")
/* clang-format on */
#endif
