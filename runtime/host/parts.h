/* How threads share work: each has a part of it, and takes what the others have left of theirs.
 *
 * A part is taken claim by claim. Its thread begins at the front and others at the back, so that what
 * two threads do lies apart: they seldom write to the same lines, and what a thread reads is mostly
 * its own. What another one is about to finish is left to it, for where its caches are far away it
 * takes longer to get what is there than to wait; so a thread takes that much of its own at once.
 */
#ifndef RUTC_PARTS_H
#define RUTC_PARTS_H

#include <stdatomic.h>
#include <stdint.h>

/* A thread's share of a launch: `size` tasks from `begin` on of every turn. All `tasks` of it are
 * numbered one turn after the other; a claim has `claim` of them, the last one what is left. */
typedef struct rutc_part {
  _Alignas(64) atomic_ullong taken; /* claims: of the thread, and in the upper half of others */
  int64_t begin;
  int64_t size;
  int64_t tasks;
  int64_t claim;
  int64_t claims;
} rutc_part;

/* Splits every turn's tasks evenly; the first `run % count` parts have one more. A part has at most so
 * many claims. */
void rutc_share_out(rutc_part *parts, int64_t turns, int64_t run, int64_t count, int64_t claims);

/* Does the tasks [begin, end) of a part, as they are numbered there. */
typedef void (*rutc_work)(const void *arg, const rutc_part *part, int64_t begin, int64_t end);

/* Takes claims until none is left: first those of part `index`, then what the others have left, for
 * a thread may come late or not at all while other processes hold its CPU. One that comes too late
 * for another launch, or was called for none, may find this one, which has no part for it. */
void rutc_take_parts(rutc_part *parts, int64_t count, int64_t index, rutc_work work,
                     const void *arg);

#endif
