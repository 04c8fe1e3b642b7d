/* off_device.c - core.off_device: what recompute and the optimizers keep off a device. */
#include "host.h"

typedef int move(ul_tensor **out, ul_tensor *x);

static int moved(lua_State *L, const char *op, move *call)
{
    host_arguments(L, op, 1);
    host_box *box = host_new(L);
    host_check(L, call(&box->t, host_tensor(L, 1, op)));
    return 1;
}

/* copy(x): its values off its device, where ul_adamw_() takes them; the host may read them */
static int copy(lua_State *L) { return moved(L, "offload", ul_off_device); }

/* park(x): the same for unpark() alone; x may be freed */
static int park(lua_State *L) { return moved(L, "offload", ul_park); }

/* unpark(parked) -> x, with its history */
static int unpark(lua_State *L) { return moved(L, "offload", ul_unpark); }

/* wait(): until the host may read what optimizers have moved */
static int wait(lua_State *L)
{
    host_arguments(L, "wait", 0);
    host_check(L, ul_off_device_wait());
    return 0;
}

/* events() -> made, idle; for tests */
static int events(lua_State *L)
{
    int64_t made, idle;
    host_arguments(L, "events", 0);
    ul_debug_events(&made, &idle);
    lua_pushnumber(L, (lua_Number)made);
    lua_pushnumber(L, (lua_Number)idle);
    return 2;
}

void host_open_off_device(lua_State *L, int core)
{
    static const luaL_Reg functions[] = {{"copy", copy}, {"park", park},     {"unpark", unpark},
                                         {"wait", wait}, {"events", events}, {NULL, NULL}};
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    lua_setfield(L, core, "off_device");
}
