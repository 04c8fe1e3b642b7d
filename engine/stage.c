/* stage.c - a kernel on the device over state that is kept in the host's memory.
 *
 * Two buffers take turns: while the kernel works on one, what it has left in the other goes back,
 * and what comes next is on its way. All waiting is by events on the device; the host waits in
 * ul_off_device_wait() alone.
 */
#include "off_device.h"

/* Of each state, at most: 4 MiB take 80 microseconds over PCIe 5, and far less to ask for. */
enum { PIECE = 4 << 20, BUFFERS = 2 };

static struct buffer {
    ul_tensor *memory[UL_MAX_STATE]; /* NULL where there is none yet */
    void *emptied;                   /* an event; NULL: it is empty */
} buffers[BUFFERS];
static int turn;

static int empty(struct buffer *b)
{
    int rc = b->emptied ? ul__cuda()->event_finish(b->emptied) : UL_OK;
    ul__event_give_back(b->emptied);
    b->emptied = NULL;
    for (int i = 0; i < UL_MAX_STATE; i++) {
        ul_tensor_free(b->memory[i]);
        b->memory[i] = NULL;
    }
    return rc;
}

int ul_off_device_wait(void)
{
    int rc = UL_OK;
    for (int i = 0; i < BUFFERS; i++) {
        int bad = empty(&buffers[i]);
        if (rc == UL_OK) rc = bad;
    }
    return rc;
}

/* Memory for pieces of so many bytes on `home`, of which the streams know that it is theirs. */
static int make_room(struct buffer *b, ul_device home, ul_tensor *const *off, int n_off,
                     int64_t bytes)
{
    int fits = 1;
    for (int i = 0; i < n_off; i++) {
        const ul_tensor *m = b->memory[i];
        fits &= !off[i] || (m && m->storage->device == home && m->shape[0] >= bytes);
    }
    if (fits) return UL_OK;
    UL_TRY(empty(b));
    for (int i = 0; i < n_off; i++)
        if (off[i]) UL_TRY(ul_tensor_new(&b->memory[i], UL_U8, home, 1, &bytes));
    if (home == UL_META) return UL_OK;
    return ul__stream_after(ul__cuda()->copy_stream(0), ul__cuda()->stream());
}

/* One piece there, through the kernel and back. */
static int pass(struct buffer *b, ul_tensor *const *off, int n_off, int64_t at, int64_t n,
                ul_stage_run *run, void *context)
{
    const ul_backend *cuda = ul__cuda();
    ul_stream *in = cuda->copy_stream(0), *out = cuda->copy_stream(1);
    void *data[UL_MAX_STATE] = {NULL};
    if (b->emptied)
        UL_TRY(cuda->event_wait(in, b->emptied));
    else
        UL_TRY(ul__event_take(&b->emptied, cuda));
    for (int i = 0; i < n_off; i++) {
        if (!off[i]) continue;
        int64_t e = ul_dtype_bytes(off[i]->dtype);
        data[i] = ul__data(b->memory[i]);
        UL_TRY(cuda->copy(data[i], (char *)ul__data(off[i]) + at * e, n * e, 0, in));
    }
    UL_TRY(ul__stream_after(cuda->stream(), in));
    UL_TRY(run(context, at, n, data));
    UL_TRY(ul__stream_after(out, cuda->stream()));
    for (int i = 0; i < n_off; i++) {
        if (!off[i]) continue;
        int64_t e = ul_dtype_bytes(off[i]->dtype);
        UL_TRY(cuda->copy((char *)ul__data(off[i]) + at * e, data[i], n * e, 1, out));
    }
    return cuda->event_record(b->emptied, out);
}

/* On meta all is one piece; there is nothing behind the addresses. */
static int count(ul_tensor *const *off, int n_off, int64_t n, ul_stage_run *run, void *context)
{
    void *data[UL_MAX_STATE];
    for (int i = 0; i < n_off; i++) data[i] = off[i];
    return run(context, 0, n, data);
}

/* The slots are in use until the last piece is back, and where one has failed, until it has come.
 */
static int close(ul_tensor *const *off, int n_off, int rc)
{
    const ul_backend *cuda = ul__cuda();
    if (rc < 0) ul__stream_after(cuda->copy_stream(1), cuda->copy_stream(0));
    for (int i = 0; i < n_off; i++) {
        int bad = off[i] ? ul__slot_copied(off[i]->storage->slot, cuda->copy_stream(1)) : UL_OK;
        if (rc == UL_OK) rc = bad;
    }
    return rc;
}

int ul__stage(ul_tensor *const *off, int n_off, ul_stage_run *run, void *context)
{
    const ul_backend *cuda = ul__cuda();
    ul_device home = ul__home(off[0]);
    int64_t n = ul_tensor_size(off[0]), e = ul_dtype_bytes(off[0]->dtype);
    int64_t piece = n < PIECE / e ? n : PIECE / e;
    if (n == 0) return UL_OK;
    for (int i = 0; i < BUFFERS && (i == 0 || piece < n); i++)
        UL_TRY(make_room(&buffers[(turn + i) % BUFFERS], home, off, n_off, piece * e));
    if (home == UL_META) return count(off, n_off, n, run, context);
    for (int i = 0; i < n_off; i++)
        if (off[i]) UL_TRY(ul__slot_order(off[i]->storage->slot, cuda->copy_stream(0)));
    int rc = UL_OK;
    for (int64_t at = 0; at < n && rc == UL_OK; at += piece, turn = (turn + 1) % BUFFERS) {
        int64_t some = n - at < piece ? n - at : piece;
        rc = pass(&buffers[turn], off, n_off, at, some, run, context);
    }
    return close(off, n_off, rc);
}
