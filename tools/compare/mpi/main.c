/* MPI as a contender: all its ranks, started by its launcher.
 *
 * Rank 0 reads requests, a line each: how many isolated calls, calls in a batch and batches without a pause; then
 * what is called. It answers with a line of JSON: the slowest rank's time of each isolated call (a barrier,
 * untimed; then one call) and of each of three rows of calls back to back, the mean of the rank that has the
 * largest. Times in microseconds. Between requests ranks sleep.
 */
#include "ranks.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCHES = 3 };

int rank, ranks;

void *room(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static double timed(struct work *work, int times) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < times; i++) work->call(work->state);
    return (MPI_Wtime() - start) * 1e6;
}

static void print(const char *name, const double *times, int count) {
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++) printf(i ? ", %.3f" : "%.3f", times[i]);
    printf("]");
}

static void measure(struct work *work, int n, int batch) {
    double *isolated = room(n * sizeof *isolated), periods[BATCHES];
    timed(work, 3);
    for (int i = 0; i < n; i++) isolated[i] = timed(work, 1);
    timed(work, 2);
    for (int i = 0; i < BATCHES; i++) periods[i] = timed(work, batch) / batch;
    MPI_Reduce(rank ? isolated : MPI_IN_PLACE, isolated, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(rank ? periods : MPI_IN_PLACE, periods, BATCHES, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank) {
        printf("{");
        print("isolated", isolated, n);
        printf(", ");
        print("periods", periods, BATCHES);
        printf("}\n");
    }
    free(isolated);
}

/* The next line of rank 0's input on every rank, whose others sleep until it comes; 0 at its end. */
static int next(char *line) {
    if (!rank) {
        if (!fgets(line, LINE, stdin)) line[0] = 0;
        for (int r = 1; r < ranks; r++) MPI_Send(line, LINE, MPI_CHAR, r, 0, MPI_COMM_WORLD);
    } else {
        MPI_Request request;
        int done = 0;
        MPI_Irecv(line, LINE, MPI_CHAR, 0, 0, MPI_COMM_WORLD, &request);
        for (;;) {
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
            if (done) break;
            usleep(2000);
        }
    }
    return line[0] != 0;
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (!rank) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        for (char *at = version; *at; at++) if (strchr("\"\\\t", *at)) *at = ' ';
        version[strcspn(version, ",\n")] = 0;
        printf("{\"mpi\": \"%s\", \"device\": \"cpu\", \"ranks\": %d}\n", version, ranks);
        fflush(stdout);
    }
    static char line[LINE];
    while (next(line)) {
        int iterations, calls, launches, read = 0;
        struct work work = {0};
        const char *because = "no request of mine";
        if (sscanf(line, "%d %d %d %n", &iterations, &calls, &launches, &read) == 3 && read) {
            const char *of = line + read;
            because = strncmp(of, "moe ", 4) ? begin_collective(&work, of) : begin_moe(&work, of + 4);
        }
        if (!because) measure(&work, iterations, calls * launches);
        else if (!rank) printf("{\"because\": \"%s\"}\n", because);
        fflush(stdout);
        if (work.end) work.end(work.state);
    }
    MPI_Finalize();
    return 0;
}
