/* Items of both kinds, short ones with keys of 32 bits and long ones with keys of 64. What is made
 * of each is in the file RUTC_EACH, if there is one: it is included once for each kind, with
 * RUTC_KEY, RUTC_SIGNED and RUTC_ITEM as types and RUTC_OF(name) as the names of its functions. */
#include <stddef.h>
#include <string.h>

#include "keys.h"

#define RUTC_KEY uint32_t
#define RUTC_SIGNED int32_t
#define RUTC_ITEM uint64_t
#define RUTC_OF(name) rutc_short_##name
#include "items.h"
#ifdef RUTC_EACH
#include RUTC_EACH
#endif
#undef RUTC_KEY
#undef RUTC_SIGNED
#undef RUTC_ITEM
#undef RUTC_OF

__extension__ typedef unsigned __int128 rutc_two_words;
#define RUTC_KEY uint64_t
#define RUTC_SIGNED int64_t
#define RUTC_ITEM rutc_two_words
#define RUTC_OF(name) rutc_long_##name
#include "items.h"
#ifdef RUTC_EACH
#include RUTC_EACH
#endif
#undef RUTC_KEY
#undef RUTC_SIGNED
#undef RUTC_ITEM
#undef RUTC_OF
