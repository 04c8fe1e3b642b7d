/* events.c - events of a device's streams: made once, given back, and used again. */
#include "events.h"

#include <stdlib.h>

#include "internal.h"

static struct {
    void **idle; /* room for all that are made: giving one back cannot fail */
    int64_t n_idle, made, room;
} pool;

static int make_room(void)
{
    if (pool.made < pool.room) return UL_OK;
    int64_t room = pool.room ? 2 * pool.room : 64;
    void **idle = realloc(pool.idle, (size_t)room * sizeof *idle);
    UL_REQUIRE(idle, UL_ENOMEM, "cuda: out of memory: no room for an event's record");
    pool.idle = idle;
    pool.room = room;
    return UL_OK;
}

int ul__event_take(void **event, const ul_backend *b)
{
    *event = NULL;
    if (pool.n_idle > 0) {
        *event = pool.idle[--pool.n_idle];
        return UL_OK;
    }
    UL_TRY(make_room());
    *event = b->event_new();
    UL_REQUIRE(*event, UL_ENOMEM, "cuda: there is no event");
    pool.made++;
    return UL_OK;
}

void ul__event_give_back(void *event)
{
    if (event) pool.idle[pool.n_idle++] = event;
}

int ul__stream_after(ul_stream *s, ul_stream *of)
{
    const ul_backend *cuda = ul__cuda();
    void *event;
    UL_TRY(ul__event_take(&event, cuda));
    int rc = cuda->event_record(event, of);
    if (rc == UL_OK) rc = cuda->event_wait(s, event);
    ul__event_give_back(event);
    return rc;
}

void ul__events_trim(const ul_backend *b)
{
    while (pool.n_idle > 0) {
        b->event_free(pool.idle[--pool.n_idle]);
        pool.made--;
    }
    if (pool.made > 0) return;
    free(pool.idle);
    pool.idle = NULL;
    pool.room = 0;
}

void ul_debug_events(int64_t *made, int64_t *idle)
{
    *made = pool.made;
    *idle = pool.n_idle;
}
