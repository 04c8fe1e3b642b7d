/* mpi.c - Open MPI as a transport, opened when it is needed: building needs none of its files.
 *
 * It moves bytes. Its handles are addresses of its own symbols, the same from 4.0 to 5.0.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "mpi.h"

/* ---- the library ---- */

ul_mpi ul__mpi_calls;
static ul_mpi *const mpi = &ul__mpi_calls;

/* What the structure holds, in its order. */
static const char *const symbols[] = {"MPI_Init_thread",
                                      "MPI_Get_library_version",
                                      "MPI_Comm_rank",
                                      "MPI_Comm_size",
                                      "MPI_Comm_split",
                                      "MPI_Comm_set_errhandler",
                                      "MPI_Error_string",
                                      "MPI_Allgatherv",
                                      "MPI_Bcast",
                                      "MPI_Send",
                                      "MPI_Recv",
                                      "MPI_Isend",
                                      "MPI_Irecv",
                                      "MPI_Waitall",
                                      "MPI_Testall",
                                      "MPI_Test",
                                      "MPI_Cancel",
                                      "MPI_Request_free",
                                      "MPI_Barrier",
                                      "MPI_Abort",
                                      "MPI_Finalize",
                                      "MPI_Type_create_hvector",
                                      "MPI_Type_create_struct",
                                      "MPI_Type_commit",
                                      "MPI_Type_free",
                                      "ompi_mpi_comm_world",
                                      "ompi_mpi_byte",
                                      "ompi_mpi_errors_return",
                                      "ompi_request_null"};
enum { N_SYMBOLS = sizeof symbols / sizeof symbols[0], UNDEFINED = -32766, FUNNELED = 1, TAG = 1 };
static void *const in_place = (void *)1; /* MPI_IN_PLACE */
_Static_assert(sizeof *mpi == N_SYMBOLS * sizeof(void *), "a name for each symbol");

int64_t ul__mpi_most_bytes = 1 << 30;

/* InfiniBand and its like have transports that Open MPI chooses best by itself. */
static int has_fast_network(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    int n = 0;
    if (!folder) return 0;
    while (n < 3 && readdir(folder)) n++; /* with . and .. */
    closedir(folder);
    return n >= 3;
}

/* What Open MPI reads when it starts. Yielding is no matter of taste: ranks that wait in a loop
 * take the processor from those they wait for. Single copies fail in containers, and gain nothing.
 * Memory that goes back to the system after each message would have to be mapped anew for the next.
 */
static void prepare(void)
{
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("OMPI_MCA_btl_sm_single_copy_mechanism", "none", 0);
    if (!has_fast_network()) {
        setenv("OMPI_MCA_pml", "ob1", 0);
        setenv("OMPI_MCA_btl", "self,vader,tcp", 0);
    }
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    const char *text = getenv("UL_COMM_MESSAGE");
    int64_t bytes = text ? atoll(text) : 0;
    if (bytes > 0 && bytes < ul__mpi_most_bytes) ul__mpi_most_bytes = bytes;
}

static int load(void)
{
    const char *name = getenv("UL_MPI_LIB");
    if (!name || !*name) name = "libmpi.so.40";
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    UL_REQUIRE(library, UL_ECOMM,
               "group: several ranks need Open MPI (Debian: apt install openmpi-bin): %s",
               dlerror());
    void **slot = (void **)mpi;
    for (int i = 0; i < N_SYMBOLS; i++) {
        slot[i] = dlsym(library, symbols[i]);
        if (slot[i]) continue;
        char version[8192] = "it does not say what it is";
        int n;
        if (mpi->get_library_version) mpi->get_library_version(version, &n);
        version[strcspn(version, "\n,")] = 0;
        return ul__fail(UL_ECOMM, "group: %s has no %s: it is not Open MPI 4 or 5 (%s)", name,
                        symbols[i], version);
    }
    return UL_OK;
}

int ul__mpi_check(const char *what, int rc)
{
    if (rc == 0) return UL_OK;
    char text[512] = "";
    int n;
    mpi->error_string(rc, text, &n);
    return ul__fail(UL_ECOMM,
                    "group: MPI could not %s: %s; do all ranks call the same with the same "
                    "shapes? UL_COMM_CHECK=1 looks",
                    what, text);
}

int ul__mpi_open(ul_group *world, int size)
{
    int provided, rank, real;
    prepare();
    UL_TRY(load());
    UL_TRY(ul__mpi_check("start", mpi->init_thread(NULL, NULL, FUNNELED, &provided)));
    UL_TRY(ul__mpi_check("start", mpi->set_errhandler(mpi->world, mpi->errors_return)));
    UL_TRY(ul__mpi_check("start", mpi->comm_rank(mpi->world, &rank)));
    UL_TRY(ul__mpi_check("start", mpi->comm_size(mpi->world, &real)));
    UL_REQUIRE(
        real == size, UL_ECOMM,
        "group: the launcher started %d ranks, but Open MPI formed a world of %d: start with "
        "the mpirun of the same Open MPI, or srun --mpi=pmix",
        size, real);
    world->handle = mpi->world;
    UL_TRY(ul__group_sized(world, rank, size));
    return world->comm == &ul__interactive ? ul__interactive_open(world) : UL_OK;
}

/* ---- messages of any size ---- */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Posts the part of a piece that is sent in round `round`, if there is one. */
static int post(ul_group *g, int *posted, const ul_pieces *p, int other, int64_t round, int sends)
{
    int64_t done = round * ul__mpi_most_bytes, left = p->bytes[other] - done;
    if (left <= 0) return UL_OK;
    int n = (int)smaller(left, ul__mpi_most_bytes);
    char *data = p->data + p->at[other] + done;
    void **request = &g->requests[(*posted)++];
    if (sends)
        return ul__mpi_check("send",
                             mpi->post_send(data, n, mpi->byte, other, TAG, g->handle, request));
    return ul__mpi_check("receive",
                         mpi->post_receive(data, n, mpi->byte, other, TAG, g->handle, request));
}

static int wait_for(int posted, int receives, void **requests)
{
    (void)receives;
    return ul__mpi_check("exchange", mpi->wait_all(posted, requests, NULL));
}

/* Messages and not MPI's own all-to-all: that counts offsets in ints, and which ranks need more
 * than that is known to none of them. Two ranks cut what they exchange in the same way.
 */
static int all_to_all(ul_group *g, const ul_pieces *to, const ul_pieces *from)
{
    int64_t most = 0;
    for (int r = 0; r < g->size; r++) {
        if (to->bytes[r] > most) most = to->bytes[r];
        if (from->bytes[r] > most) most = from->bytes[r];
    }
    for (int64_t round = 0; round * ul__mpi_most_bytes < most; round++) {
        int posted = 0;
        for (int step = 1; step < g->size; step++)
            UL_TRY(post(g, &posted, to, (g->rank - step + g->size) % g->size, round, 0));
        for (int step = 1; step < g->size; step++)
            UL_TRY(post(g, &posted, from, (g->rank + step) % g->size, round, 1));
        if (round == 0)
            memmove(to->data + to->at[g->rank], from->data + from->at[g->rank],
                    (size_t)to->bytes[g->rank]);
        UL_TRY(wait_for(posted, 0, g->requests));
    }
    return UL_OK;
}

static int exchange(ul_group *g, const ul_cut *to, const ul_cut *from, int n)
{
    const ul_mpi_way way = {g->handle, NULL, TAG, wait_for};
    return ul__mpi_exchange(g, to, from, n, &way);
}

/* Whether one call can do it; all ranks know the same sizes here. */
static int fits(const ul_pieces *p, int size)
{
    for (int r = 0; r < size; r++)
        if (p->bytes[r] > ul__mpi_most_bytes || p->at[r] + p->bytes[r] > INT_MAX) return 0;
    return 1;
}

static int all_gather(ul_group *g, const ul_pieces *all, const void *mine)
{
    char *own = all->data + all->at[g->rank];
    if (mine != own) memcpy(own, mine, (size_t)all->bytes[g->rank]);
    if (fits(all, g->size)) {
        for (int r = 0; r < g->size; r++) {
            g->counts[r] = (int)all->bytes[r];
            g->counts[g->size + r] = (int)all->at[r];
        }
        int rc = mpi->all_gather(in_place, 0, mpi->byte, all->data, g->counts, g->counts + g->size,
                                 mpi->byte, g->handle);
        return ul__mpi_check("gather", rc);
    }
    for (int r = 0; r < g->size; r++) /* the same to everyone */
        g->offsets[r] = all->at[g->rank], g->offsets[g->size + r] = all->bytes[g->rank];
    const ul_pieces from = {all->data, g->offsets, g->offsets + g->size};
    return all_to_all(g, all, &from);
}

static int broadcast(ul_group *g, void *data, int64_t bytes, int root)
{
    for (int64_t done = 0; done < bytes; done += ul__mpi_most_bytes) {
        int n = (int)smaller(ul__mpi_most_bytes, bytes - done);
        UL_TRY(ul__mpi_check("broadcast",
                             mpi->broadcast((char *)data + done, n, mpi->byte, root, g->handle)));
    }
    return UL_OK;
}

static int send(ul_group *g, const void *data, int64_t bytes, int to)
{
    for (int64_t done = 0; done < bytes; done += ul__mpi_most_bytes) {
        int n = (int)smaller(ul__mpi_most_bytes, bytes - done);
        UL_TRY(ul__mpi_check(
            "send", mpi->send((const char *)data + done, n, mpi->byte, to, TAG + 1, g->handle)));
    }
    return UL_OK;
}

static int receive(ul_group *g, void *data, int64_t bytes, int from)
{
    for (int64_t done = 0; done < bytes; done += ul__mpi_most_bytes) {
        int n = (int)smaller(ul__mpi_most_bytes, bytes - done);
        UL_TRY(ul__mpi_check("receive", mpi->receive((char *)data + done, n, mpi->byte, from,
                                                     TAG + 1, g->handle, NULL)));
    }
    return UL_OK;
}

static int barrier(ul_group *g) { return ul__mpi_check("wait", mpi->barrier(g->handle)); }

static int split(ul_group *out, ul_group *g, const int *colors, int key)
{
    int mine = colors[g->rank];
    UL_TRY(ul__mpi_check(
        "split", mpi->comm_split(g->handle, mine < 0 ? UNDEFINED : mine, key, &out->handle)));
    out->size = 0;
    if (mine < 0) return UL_OK;
    UL_TRY(ul__mpi_check("split", mpi->comm_rank(out->handle, &out->rank)));
    return ul__mpi_check("split", mpi->comm_size(out->handle, &out->size));
}

static void end(int status)
{
    if (status)
        mpi->abort(mpi->world, status);
    else
        mpi->finalize();
}

const ul_comm ul__mpi = {.name = "mpi",
                         .all_reduce = ul__all_reduce,
                         .reduce_scatter = ul__reduce_scatter,
                         .all_gather = all_gather,
                         .all_to_all = all_to_all,
                         .exchange = exchange,
                         .broadcast = broadcast,
                         .send = send,
                         .receive = receive,
                         .barrier = barrier,
                         .split = split,
                         .end = end};
