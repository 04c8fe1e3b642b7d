/* ranks.c - ulysses-lua --ranks N: a front process, mpirun below it, and the ranks below that.
 *
 * Here are the options, and what a rank does to be one. Ranks other than 0 have no output, unless
 * there is a prompt over all of them.
 */
#define _GNU_SOURCE
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"
#include "launch.h"

enum { MOST_RANKS = 256 }; /* on one machine */

/* ---- a rank ---- */

static int rank = -1;   /* that complains with its number; -1: the only one */
static int has_front;   /* which is told the number of rank 0 too */
static int prompt = -1; /* the connection to a front process that has the prompt */
static int has_prompt;  /* this is that front process */
static int plans;       /* --plan is among the options */
static char *script;    /* what it had on standard input */
static size_t script_size;

int ranks_prompt(void) { return prompt; }
int ranks_is_front(void) { return has_prompt; }

const char *ranks_script(size_t *size)
{
    *size = script_size;
    return script;
}

void ranks_complain(const char *format, ...)
{
    char *text = NULL, prefix[32] = "";
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) < 0) text = NULL;
    va_end(list);
    if (prompt < 0 && (rank > 0 || (rank == 0 && has_front)))
        snprintf(prefix, sizeof prefix, "[rank %d] ", rank);
    /* in one piece, so that those of several ranks do not mix */
    char *all = NULL;
    size_t size = 0;
    FILE *out = text ? open_memstream(&all, &size) : NULL;
    if (!out) return;
    fprintf(out, "%sulysses-lua: ", prefix);
    for (const char *line = text; line;) {
        const char *end = strchr(line, '\n');
        int n = end ? (int)(end - line) : (int)strlen(line);
        fprintf(out, "%s%.*s\n", line == text ? "" : prefix, n, line);
        line = end && end[1] ? end + 1 : NULL;
    }
    fclose(out);
    fwrite(all, 1, size, stderr);
    free(all);
    free(text);
}

static int number_in(const char *const *names)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (text && *text) return atoi(text);
    }
    return -1;
}

/* What the front process has sent through mpirun, as what was meant. */
static void on_forwarded(int number) { raise(number == SIGUSR1 ? SIGINT : SIGTERM); }

/* Connects to the front process where it has the prompt, or a script; 0, or -1 with errno. */
static int find_front(void)
{
    const char *at = getenv("UL_RANK_PROMPT"), *source = getenv("UL_RANK_SCRIPT");
    if (at) prompt = front_connect(at, rank);
    unsetenv("UL_RANK_PROMPT"); /* those that a rank starts are none */
    if (at || !source) return at && prompt < 0 ? -1 : 0;
    int fd = front_connect(source, rank);
    FILE *in = fd < 0 ? NULL : fdopen(fd, "r"), *out = open_memstream(&script, &script_size);
    char data[4096];
    size_t n;
    if (!in || !out) return -1;
    while ((n = fread(data, 1, sizeof data, in)) > 0) fwrite(data, 1, n, out);
    fclose(in);
    return fclose(out);
}

/* Whether a launcher has started this process as one of several; sets up what follows from that. */
static int join(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
                                        NULL};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
    static const char *const torch_size[] = {"WORLD_SIZE", NULL}, *const torch_rank[] = {"RANK",
                                                                                         NULL};
    int by_torch = number_in(sizes) <= 1 && number_in(torch_rank) >= 0;
    if (number_in(by_torch ? torch_size : sizes) <= 1) return 0;
    rank = number_in(by_torch ? torch_rank : ranks);
    has_front = getenv("UL_RANK_FRONT") != NULL;
    if (rank > 0) unsetenv("UL_RANK_ERRORS"); /* rank 0 alone answers Ctrl-C (signal.c) */
    if (has_front) {
        struct sigaction action = {.sa_handler = on_forwarded}; /* without SA_RESTART */
        sigemptyset(&action.sa_mask);
        sigaction(SIGUSR1, &action, NULL);
        sigaction(SIGUSR2, &action, NULL);
        if (rank == 0) fprintf(stderr, "%c\n", RANK_IS_THERE);
    }
    if (find_front()) {
        ranks_complain("rank %d cannot connect to the program that started it: %s", rank,
                       strerror(errno));
        exit(1);
    }
    const char *output = getenv("UL_RANK_OUTPUT");
    if (prompt < 0 && rank > 0 && !(output && !strcmp(output, "all"))) {
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
        if (nowhere >= 0) close(nowhere);
    }
    return 1;
}

/* ---- options ---- */

/* The number that a text is, or -1. */
static long number(const char *text, const char *end)
{
    char *stop;
    long n = strtol(text, &stop, 10);
    return stop == end && stop != text && n >= 1 && n <= 1 << 20 ? n : -1;
}

/* How many ranks the hosts have room for, as in a:4,b:4 (a alone: one); -1: they read otherwise. */
static long room(const char *hosts)
{
    long sum = 0;
    for (const char *host = hosts;; host++) {
        const char *end = host + strcspn(host, ","),
                   *colon = memchr(host, ':', (size_t)(end - host));
        long n = colon ? number(colon + 1, end) : 1;
        if (n < 0 || host == end || host == colon) return -1;
        sum += n;
        if (!*end) return sum;
        host = end;
    }
}

/* Whether so many ranks can be started; complains where not. */
static int fits(const char *text, const char *hosts)
{
    long n = number(text, text + strlen(text)), most = hosts ? room(hosts) : MOST_RANKS;
    if (n < 0 || (!hosts && n > most))
        return ranks_complain("--ranks needs a number from 1 to %d, not %s", MOST_RANKS, text), 0;
    if (most < 0)
        return ranks_complain("--hosts needs names and numbers of ranks, as in a:4,b:4, not %s",
                              hosts),
               0;
    if (n > most)
        return ranks_complain("--ranks %ld cannot be placed: --hosts %s has room for %ld", n, hosts,
                              most),
               0;
    return 1;
}

/* What follows the options that are taken out moves up. */
static void take_out(char **at)
{
    do at[0] = at[2];
    while (*at++);
}

/* Options that a word follows. */
static int has_word(const char *option)
{
    static const char *const all[] = {"-e", "-l", "-j", "--threads", "--device", "--report"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(option, all[i])) return 1;
    return 0;
}

/* Options without which, or a script, there is the prompt. */
static int does_something(const char *option)
{
    static const char *const silent[] = {"-l", "-j", "-O", "-i", "--threads", "--device"};
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++)
        if (!strncmp(option, silent[i], silent[i][1] == '-' ? 10 : 2)) return 0;
    return 1;
}

int ranks_is_plan(const char *option)
{
    return !strncmp(option, "--plan", 6) && (!option[6] || option[6] == '=');
}

int ranks_plans(void) { return plans; }

int ranks_start(char **argv)
{
    char *ranks = NULL, *hosts = NULL;
    int is_rank = join(), prompts = 0, works = 0, at = 1;
    while (argv[at] && argv[at][0] == '-' && argv[at][1]) {
        char **taken = !strcmp(argv[at], "--ranks")   ? &ranks
                       : !strcmp(argv[at], "--hosts") ? &hosts
                                                      : NULL;
        if (taken && !argv[at + 1])
            return ranks_complain("%s needs a %s", argv[at],
                                  taken == &ranks ? "number" : "list of hosts"),
                   1;
        if (taken) {
            *taken = argv[at + 1];
            take_out(argv + at);
            continue;
        }
        prompts |= !strcmp(argv[at], "-i");
        plans |= ranks_is_plan(argv[at]);
        works |= does_something(argv[at]);
        at += has_word(argv[at]) && argv[at + 1] ? 2 : 1;
    }
    if (hosts && !ranks) return ranks_complain("--hosts needs --ranks N"), 1;
    if (!ranks) return -1;
    if (!fits(ranks, hosts)) return 1;
    if (plans) return setenv("UL_PLAN_RANKS", ranks, 1), -1; /* pretended by one process */
    if (number(ranks, ranks + strlen(ranks)) == 1 && !hosts) return -1;
    if (is_rank)
        return ranks_complain("--ranks starts ranks by itself, but this is one that a launcher has "
                              "started"),
               1;
    int reads = argv[at] ? !strcmp(argv[at], "-") : !works; /* standard input */
    if (prompts && argv[at] && reads)
        return ranks_complain("--ranks with -i needs a script in a file, or none"), 1;
    has_prompt = prompts || (reads && !argv[at] && isatty(STDIN_FILENO));
    reads = reads && !has_prompt;
    if ((has_prompt || reads) &&
        front_listen(has_prompt ? "UL_RANK_PROMPT" : "UL_RANK_SCRIPT",
                     (int)number(ranks, ranks + strlen(ranks)), hosts != NULL))
        return ranks_complain("--ranks: no place for ranks to connect to: %s", strerror(errno)), 1;
    if (reads && front_read_script()) return ranks_complain("out of memory"), 1;
    if (!launch(ranks, hosts, argv, has_prompt)) return 1;
    return has_prompt ? -1 : launch_attend();
}
