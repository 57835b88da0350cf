/* Collectives, by the calls that MPI has for them. Input and output are apart; bytes are those of the larger of
 * the two. MPI knows no bf16: a reduction of it is one of ours, which adds in f32 and rounds once, over 16-bit
 * words.
 */
#include "ranks.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum op { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, BARRIER, OPS };
static const char *NAMES[OPS] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "barrier"};

struct collective {
    enum op op;
    int is_f32;
    /* Of the larger buffer, and of one rank's share of it, in elements. */
    int count, share;
    size_t element;
    MPI_Datatype type;
    MPI_Op sum;
    char *input, *output;
};

static void add_bf16(void *in, void *inout, int *length, MPI_Datatype *type) {
    const uint16_t *restrict a = in;
    uint16_t *restrict b = inout;
    int n = *length;
    (void)type;
    for (int i = 0; i < n; i++) b[i] = to_bf16(of_bf16(a[i]) + of_bf16(b[i]));
}

static void call(void *state) {
    struct collective *c = state;
    MPI_Comm all = MPI_COMM_WORLD;
    switch (c->op) {
    case ALL_REDUCE: MPI_Allreduce(c->input, c->output, c->count, c->type, c->sum, all); break;
    case ALL_GATHER: MPI_Allgather(c->input, c->share, c->type, c->output, c->share, c->type, all); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(c->input, c->output, c->share, c->type, c->sum, all); break;
    case BROADCAST: MPI_Bcast(c->output, c->count, c->type, 0, all); break;
    case ALL_TO_ALL: MPI_Alltoall(c->input, c->share, c->type, c->output, c->share, c->type, all); break;
    default: MPI_Barrier(all);
    }
}

static void end(void *state) {
    struct collective *c = state;
    free(c->input);
    free(c->output);
    if (c->sum != MPI_SUM) MPI_Op_free(&c->sum);
    free(c);
}

static void put(const struct collective *c, char *at, int i, float value) {
    if (c->is_f32) ((float *)at)[i] = value;
    else ((uint16_t *)at)[i] = to_bf16(value);
}

static float get(const struct collective *c, const char *at, int i) {
    return c->is_f32 ? ((const float *)at)[i] : of_bf16(((const uint16_t *)at)[i]);
}

/* Element i of a rank's input: small, so that sums are exact. */
static float element(int of, int i) { return (float)(of + 1 + i % 7); }

static float expected(const struct collective *c, int i) {
    int share = c->share ? c->share : 1;
    switch (c->op) {
    case ALL_GATHER: return element(i / share, i % share);
    case BROADCAST: return element(0, i);
    case ALL_TO_ALL: return element(i / share, rank * share + i % share);
    case REDUCE_SCATTER: i += rank * share; /* fall through */
    default: {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += element(r, i);
        return sum;
    }
    }
}

const char *begin_collective(struct work *work, const char *request) {
    char op[32], dtype[8];
    long bytes;
    if (sscanf(request, "%31s %7s %ld", op, dtype, &bytes) != 3) return "no request of mine";
    struct collective *c = room(sizeof *c);
    *work = (struct work){call, end, c};
    c->sum = MPI_SUM;
    while (c->op < OPS && strcmp(NAMES[c->op], op)) c->op++;
    if (c->op == OPS) return "an operation that MPI does not have";
    c->is_f32 = !strcmp(dtype, "f32");
    if (!c->is_f32 && strcmp(dtype, "bf16")) return "only bf16 and f32";
    c->element = c->is_f32 ? 4 : 2;
    c->type = c->is_f32 ? MPI_FLOAT : MPI_UINT16_T;
    if (!c->is_f32) MPI_Op_create(add_bf16, 1, &c->sum);
    c->count = (int)(bytes / (long)c->element);
    c->share = c->count / ranks;
    if (c->op == ALL_GATHER || c->op == REDUCE_SCATTER || c->op == ALL_TO_ALL) c->count = c->share * ranks;
    int inputs = c->op == ALL_GATHER ? c->share : c->count;
    int outputs = c->op == REDUCE_SCATTER ? c->share : c->count;
    c->input = room(inputs * c->element);
    c->output = room(outputs * c->element);
    for (int i = 0; i < inputs; i++) put(c, c->input, i, element(rank, i));
    for (int i = 0; i < outputs; i++) put(c, c->output, i, c->op == BROADCAST && !rank ? element(0, i) : -1);
    call(c);
    int good = 1;
    for (int i = 0; c->op != BARRIER && i < outputs; i++) good &= get(c, c->output, i) == expected(c, i);
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return good ? NULL : "a rank's results are wrong";
}
