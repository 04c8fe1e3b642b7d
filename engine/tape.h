/* tape.h - what tape.c (recording) and backward.c (walking) share. */
#ifndef UL_TAPE_H
#define UL_TAPE_H

#include "internal.h"

typedef struct ul_tape {
    ul_call **calls; /* in the order made; NULL where a call has been freed */
    int64_t count, capacity;
    int64_t floor; /* a backward inside a rule walks only what was made since that rule began */
    int depth;     /* how many backwards are running */
    int enabled, seen;
    int draining;
    ul_call *dead;
} ul_tape;

extern _Thread_local ul_tape ul__tape;

/* Frees what the call saved. */
void ul__call_empty(ul_call *call);
/* Takes the call off the tape and frees it; its outputs can then not be differentiated any more. */
void ul__call_drop(ul_call *call);

#endif
