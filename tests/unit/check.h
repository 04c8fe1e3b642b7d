/* check.h - the few lines a C test needs. A test is a function; main() calls RUN() for each and
 * returns check_done(), which prints "N passed, N failed, N skipped".
 */
#ifndef UL_CHECK_H
#define UL_CHECK_H

#include <math.h>
#include <stdio.h>

static int check_passed, check_failed, check_bad;

#ifdef __clang__ /* CHECK(condition) alone is fine */
#pragma clang diagnostic ignored "-Wgnu-zero-variadic-macro-arguments"
#endif

/* Says what is wrong and where, and goes on. */
#define CHECK(condition, ...)                                     \
    do {                                                          \
        if (!(condition)) {                                       \
            check_bad++;                                          \
            printf("%s:%d: %s:", __FILE__, __LINE__, #condition); \
            printf(" " __VA_ARGS__);                              \
            printf("\n");                                         \
        }                                                         \
    } while (0)

#define RUN(test)                       \
    do {                                \
        check_bad = 0;                  \
        test();                         \
        if (check_bad) {                \
            check_failed++;             \
            printf("FAIL %s\n", #test); \
        } else {                        \
            check_passed++;             \
        }                               \
    } while (0)

static inline int check_done(void)
{
    printf("%d passed, %d failed, 0 skipped\n", check_passed, check_failed);
    return check_failed != 0;
}

#endif
