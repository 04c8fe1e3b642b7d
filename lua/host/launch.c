/* launch.c - mpirun: started with what it needs to know, and what it says on stderr heard.
 *
 * The front process stays: it turns Ctrl-C and SIGTERM into signals that mpirun hands on to all
 * ranks, and reads what comes on stderr, where mpirun has much to say of its own. Each line of the
 * ranks' errors begins with "[rank k] ", so that what all of them say is printed once.
 */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "front.h"
#include "ranks.h"

extern char **environ;

/* ---- what stderr says ---- */

/* A line of an error, and the rank that said it first. */
typedef struct said {
    struct said *next;
    int rank;
    char text[];
} said;

static struct {
    char line[8192];
    size_t n;
    char block[8192]; /* mpirun's own words, between two lines of dashes */
    size_t block_n;
    int in_block;
    int told_end;  /* which rank a signal has ended, or that one has left by itself */
    int has_ranks; /* the first one takes signals */
    said *errors;
    int n_errors;
} heard;

static void print(const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(STDERR_FILENO, text, n);
        if (done < 0 && errno != EINTR) return;
        if (done > 0) text += done, n -= (size_t)done;
    }
}

/* Whether another rank has said this. */
static int is_known(int from, const char *text)
{
    for (const said *e = heard.errors; e; e = e->next)
        if (!strcmp(e->text, text)) return e->rank != from;
    said *e = heard.n_errors < 1000 ? malloc(sizeof *e + strlen(text) + 1) : NULL;
    if (!e) return 0;
    e->rank = from;
    strcpy(e->text, text);
    e->next = heard.errors;
    heard.errors = e;
    heard.n_errors++;
    return 0;
}

/* The word behind the last of these words in mpirun's block; "?" where they are not there. */
static const char *word_behind(const char *words, char *word, int size)
{
    const char *found = NULL;
    for (const char *at = heard.block; (at = strstr(at, words)); at += strlen(words)) found = at;
    found = found ? found + strlen(words) + strspn(found + strlen(words), " ") : "?";
    snprintf(word, (size_t)size, "%.*s", (int)strcspn(found, " ,\n"), found);
    return word;
}

/* What mpirun says of other hosts, in a sentence of ours; whether it is something about them. */
static int tell_of_hosts(void)
{
    static int could_not_start;
    char word[256], file[PATH_MAX];
    if (strstr(heard.block, "has lost communication with a remote daemon")) {
        ranks_complain("host %s is lost: it is down, or the network to it is; the ranks on all "
                       "hosts have been ended",
                       word_behind(" on node ", word, sizeof word));
    } else if (strstr(heard.block, "unable to reliably start one or more daemons")) {
        could_not_start = 1;
        ranks_complain("a host could not be started on: for each of --hosts, ssh HOST orted "
                       "--version must work without a password, and HOST must reach this one");
    } else if (strstr(heard.block, "Executable: ") && strstr(heard.block, "Node: ")) {
        ranks_complain("host %s has no %s: hosts need the program, scripts and data under the "
                       "same names",
                       word_behind("Node: ", word, sizeof word),
                       word_behind("Executable: ", file, sizeof file));
    } else {
        return could_not_start && strstr(heard.block, "does not know how to route a message");
    }
    return 1;
}

/* What mpirun says of an end that the ranks have explained, or that takes fewer words. */
static void end_block(int interrupted)
{
    static const char *const known[] = {"MPI_ABORT was invoked", "Primary job  terminated normally",
                                        "exited with non-zero status"};
    const char *by = strstr(heard.block, " on signal "),
               *who = strstr(heard.block, "process rank ");
    int from, number;
    if (by && who && sscanf(who, "process rank %d", &from) == 1 &&
        sscanf(by, " on signal %d", &number) == 1) {
        heard.told_end = 1;
        if (!interrupted)
            ranks_complain("rank %d was ended by signal %d (%s)", from, number, strsignal(number));
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strstr(heard.block, known[i])) {
            heard.told_end = 1; /* that a rank has left with a status of its own */
            return;
        }
    if (!tell_of_hosts()) print(heard.block, heard.block_n);
}

static int is_rule(const char *text) { return strlen(text) == 75 && strspn(text, "-") == 74; }

static int is_chatter(const char *text)
{
    return strstr(text, ": Forwarding signal ") ||
           (text[0] == '[' &&
            (strstr(text, " sent help message ") || strstr(text, "show_help.c at line") ||
             strstr(text, "Set MCA parameter \"orte_base_help_aggregate\"")));
}

/* A line, with its end. */
static void hear_line(const char *text, size_t n, int interrupted)
{
    int from, length = 0;
    if (n > 1 && (text[n - 2] == RANK_IS_THERE || text[n - 2] == RANK_LEAVES)) {
        if (text[n - 2] == RANK_IS_THERE)
            heard.has_ranks = 1;
        else
            heard.told_end = 1;
        print(text, n - 2); /* of a line that another rank has not ended */
    } else if (is_rule(text)) {
        if (heard.in_block) end_block(interrupted);
        heard.in_block = !heard.in_block;
        heard.block_n = 0;
    } else if (heard.in_block) {
        if (heard.block_n + n >= sizeof heard.block) return;
        memcpy(heard.block + heard.block_n, text, n + 1);
        heard.block_n += n;
    } else if (sscanf(text, "[rank %d] %n", &from, &length) == 1 && length) {
        length = (int)(strstr(text, "] ") + 2 - text); /* not the blanks that follow */
        if (is_known(from, text + length)) return;
        if (from == 0) text += length, n -= (size_t)length;
        print(text, n);
    } else if (!is_chatter(text)) {
        print(text, n);
    }
}

static void hear(const char *data, size_t n, int interrupted)
{
    for (size_t i = 0; i < n; i++) {
        heard.line[heard.n++] = data[i];
        if (data[i] != '\n' && heard.n < sizeof heard.line - 1) continue;
        heard.line[heard.n] = 0;
        hear_line(heard.line, heard.n, interrupted);
        heard.n = 0;
    }
}

/* Nothing has come for a while: a line without an end is shown as it is. */
static void hear_silence(int is_over)
{
    if (is_over && heard.in_block) print(heard.block, heard.block_n);
    if (is_over || (!heard.in_block && heard.line[0] != '[' && heard.line[0] != '-')) {
        print(heard.line, heard.n);
        heard.n = 0;
    }
}

/* ---- the front process ---- */

static volatile sig_atomic_t signals, last_signal, presses;

static struct {
    pid_t mpirun;
    int errors;     /* what it says on stderr; -1 when that is over */
    int handed;     /* how many signals it has been sent */
    int has_prompt; /* Ctrl-C is not handed on: it is the prompt's */
} job = {.errors = -1};

static void on_signal(int number)
{
    if (job.has_prompt && number == SIGINT) {
        presses++;
        return;
    }
    last_signal = number;
    signals++;
}

static void watch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        struct sigaction action = {.sa_handler = on_signal}, before;
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], NULL, &before);
        int wanted = before.sa_handler != SIG_IGN || (job.has_prompt && numbers[i] == SIGINT);
        if (wanted) sigaction(numbers[i], &action, NULL);
    }
}

/* Starts a command with what it prints to file descriptor `from` in a pipe; *end is ours. */
static pid_t start(char **command, int from, int *end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return -1;
    pid_t front = getpid(), pid = fork();
    if (pid == 0) {
        /* Ctrl-C is ours to hand on, and nothing outlives us */
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != front) _exit(1);
        if (isatty(STDIN_FILENO) || front_fd() >= 0) { /* it is ours, or not for the background */
            int nothing = open("/dev/null", O_RDONLY);
            if (nothing >= 0) dup2(nothing, STDIN_FILENO);
        }
        dup2(ends[1], from);
        execvp(command[0], command);
        _exit(127);
    }
    close(ends[1]);
    *end = ends[0];
    if (pid < 0) close(ends[0]);
    return pid;
}

static int status_of(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Whether there is an mpirun, and Open MPI's: others have other options. */
static int has_mpirun(char *program)
{
    char *command[] = {program, "--version", NULL}, text[256] = "";
    int end = -1;
    size_t n = 0;
    pid_t pid = start(command, STDOUT_FILENO, &end);
    for (ssize_t got; pid > 0 && (got = read(end, text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    if (end >= 0) close(end);
    int status = pid > 0 ? status_of(pid) : 127;
    text[strcspn(text, "\n")] = 0;
    if (strstr(text, "Open MPI") || strstr(text, "OpenRTE")) return 1;
    if (status == 127)
        ranks_complain("--ranks needs Open MPI's mpirun, and there is no %s (Debian: apt install "
                       "openmpi-bin)",
                       program);
    else
        ranks_complain("--ranks needs Open MPI's mpirun, but %s is another: %s", program,
                       *text ? text : "it does not say which");
    return 0;
}

/* What is mpirun's alone to know; what Open MPI 5 reads is PRTE's. The user's own settings stay. */
static void set_environment(void)
{
    static const char *const settings[][2] = {
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_oob_tcp_keepalive_time", "10"},
        {"OMPI_MCA_oob_tcp_keepalive_intvl", "5"},
        {"OMPI_MCA_oob_tcp_keepalive_probes", "6"},
        {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
        {"PRTE_MCA_hwloc_default_binding_policy", "none"}};
    static const char *const as_root[] = {
        "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        setenv(settings[i][0], settings[i][1], 0);
    for (int i = 0; i < 4 && geteuid() == 0; i++) setenv(as_root[i], "1", 0);
    setenv("UL_RANK_FRONT", "1", 1);
    /* mpirun gives each rank a terminal of its own, whatever ours is */
    setenv("UL_RANK_TERMINAL", isatty(STDOUT_FILENO) ? "1" : "0", 1);
    setenv("UL_RANK_ERRORS", isatty(STDERR_FILENO) ? "terminal" : "elsewhere", 1);
}

/* mpirun .. this program and its arguments, in allocated memory */
static char **command_for(char *mpirun, char *n, char *hosts, char **argv)
{
    static char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = 0;
    int words = 16, k = 0;
    for (char **a = argv; *a; a++) words++;
    for (char **e = environ; *e; e++) words += 2;
    char **command = calloc((size_t)words, sizeof *command);
    if (!command) return NULL;
    command[k++] = mpirun;
    command[k++] = "-np";
    command[k++] = n;
    if (hosts) command[k++] = "--host", command[k++] = hosts;
    for (char **e = environ; *e; e++) { /* other hosts know nothing of ours */
        size_t name = strcspn(*e, "=");
        if (strncmp(*e, "UL_", 3) && strncmp(*e, "LUA_PATH=", 9) && strncmp(*e, "LUA_CPATH=", 10))
            continue;
        command[k++] = "-x";
        command[k++] = strndup(*e, name);
    }
    command[k++] = self;
    for (char **a = argv + 1; *a; a++) command[k++] = *a;
    return command;
}

int launch(char *n, char *hosts, char **argv, int has_prompt)
{
    char *mpirun = getenv("UL_MPIRUN");
    if (!mpirun || !*mpirun) mpirun = "mpirun";
    if (!has_mpirun(mpirun)) return 0;
    set_environment();
    job.has_prompt = has_prompt;
    static char **command; /* until the end */
    command = command_for(mpirun, n, hosts, argv);
    watch_signals();
    job.mpirun = command ? start(command, STDERR_FILENO, &job.errors) : -1;
    if (job.mpirun < 0) ranks_complain("--ranks: cannot start %s: %s", mpirun, strerror(errno));
    return job.mpirun > 0;
}

int launch_errors(void) { return job.errors; }
int launch_presses(void) { return presses; }
void launch_end(void) { kill(job.mpirun, SIGTERM); }

/* What mpirun gets before it has ranks is lost there: it waits for them, or for a second one, which
 * is in earnest.
 */
void launch_hand_on(void)
{
    if (!heard.has_ranks && signals < 2) return;
    for (; job.handed < signals; job.handed++)
        kill(job.mpirun, job.handed ? SIGTERM : last_signal == SIGINT ? SIGUSR1 : SIGUSR2);
}

int launch_hear(int is_ready)
{
    char data[4096];
    if (!is_ready) {
        hear_silence(0);
        return 1;
    }
    ssize_t n = read(job.errors, data, sizeof data);
    if (n > 0) hear(data, (size_t)n, signals > 0);
    if (n > 0 || (n < 0 && errno == EINTR)) return 1;
    hear_silence(1);
    close(job.errors);
    job.errors = -1;
    return 0;
}

int launch_status(void)
{
    int status = status_of(job.mpirun);
    /* ended by it, like any program; where mpirun was told in earnest it may have its own status */
    if (signals && (status > 128 || (status && job.handed > 1))) {
        signal(last_signal, SIG_DFL);
        raise(last_signal);
    }
    /* now and then mpirun ends without a word about it */
    if (status > 128 && status < 128 + NSIG && !signals && !heard.told_end)
        ranks_complain("a rank was ended by signal %d (%s)", status - 128, strsignal(status - 128));
    return status;
}

int launch_attend(void)
{
    do {
        struct pollfd waits[] = {{.fd = job.errors, .events = POLLIN},
                                 {.fd = front_fd(), .events = POLLIN}};
        int ready = poll(waits, 2, 100);
        launch_hand_on();
        if (ready < 0) continue;
        if (waits[1].revents) front_serve_script();
        if (!launch_hear(waits[0].revents)) break;
    } while (1);
    return launch_status();
}
