/* events.h - events of a device's streams: made once, given back, and used again.
 *
 * An event may be given back as soon as nobody is going to ask for it again. Streams that still
 * wait for it are no obstacle: cudaStreamWaitEvent() keeps what the event was recorded for when it
 * was called, and a later record, for another owner, changes nothing of that. Only who asks later
 * (event_wait, event_has_come, event_finish) must keep it until then.
 *
 * All functions are called from the one thread that asks for work.
 */
#ifndef UL_EVENTS_H
#define UL_EVENTS_H

#include "../kernels/backend.h"

/* *event is the caller's until it is given back; UL_ENOMEM, and NULL, where there is none. */
int ul__event_take(void **event, const ul_backend *b);
/* NULL: nothing to do. */
void ul__event_give_back(void *event);
/* Later work on `s` begins when all that was asked of `of` until now is done. */
int ul__stream_after(ul_stream *s, ul_stream *of);
/* Frees those that nobody has. */
void ul__events_trim(const ul_backend *b);

#endif
