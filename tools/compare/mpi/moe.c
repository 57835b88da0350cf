/* Rounds of routed tokens.
 *
 * A round, and its parts, are what moe.py says:
 *   dispatch: this rank counts its rows for each rank by the indices; MPI_Alltoall of those counts, one int
 *     for each pair of ranks; rows are gathered in the order of ranks, one for each choice of a token;
 *     MPI_Alltoallv.
 *   combine: MPI_Alltoallv back; the weighted sum of each token's rows, added in f32, rounded once.
 * With layout vdev rows are in the order of experts before, and stay: neither gathering nor sum.
 */
#include "ranks.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    char layout[16], part[16], dtype[8], routes[LINE];
    int tokens, hidden, experts, top_k;
};

struct state {
    struct request of;
    size_t row;
    MPI_Datatype type;
    int *experts;
    float *weights, *sum;
    int *to, *from, *to_at, *from_at, *next, *place;
    char *x, *sent, *received, *back, *sums;
};

static int owner(int expert, int experts) { return (int)(((int64_t)(expert + 1) * ranks - 1) / experts); }

static int is_by_choice(const struct request *of) { return !strcmp(of->layout, "vdev"); }

/* Where the rows of each rank begin. */
static int offsets(const int *counts, int *at) {
    int sum = 0;
    for (int r = 0; r < ranks; r++) {
        at[r] = sum;
        sum += counts[r];
    }
    return sum;
}

static void exchange(struct state *s) {
    int choices = s->of.tokens * s->of.top_k;
    memset(s->to, 0, ranks * sizeof *s->to);
    for (int i = 0; i < choices; i++) s->to[owner(s->experts[i], s->of.experts)]++;
    MPI_Alltoall(s->to, 1, MPI_INT, s->from, 1, MPI_INT, MPI_COMM_WORLD);
    offsets(s->to, s->to_at);
    offsets(s->from, s->from_at);
}

static void gather(struct state *s) {
    int choices = s->of.tokens * s->of.top_k;
    memcpy(s->next, s->to_at, ranks * sizeof *s->next);
    for (int i = 0; i < choices; i++) {
        int at = s->next[owner(s->experts[i], s->of.experts)]++;
        s->place[i] = at;
        memcpy(s->sent + at * s->row, s->x + (i / s->of.top_k) * s->row, s->row);
    }
}

static void weighted_sum(struct state *s) {
    int hidden = s->of.hidden, top_k = s->of.top_k, is_f32 = !strcmp(s->of.dtype, "f32");
    for (int t = 0; t < s->of.tokens; t++) {
        float *restrict sum = s->sum;
        for (int k = 0; k < top_k; k++) {
            float weight = s->weights[t * top_k + k];
            const char *row = s->back + s->place[t * top_k + k] * s->row;
            if (is_f32) {
                const float *restrict in = (const float *)row;
                if (k == 0) for (int h = 0; h < hidden; h++) sum[h] = weight * in[h];
                else for (int h = 0; h < hidden; h++) sum[h] += weight * in[h];
            } else {
                const uint16_t *restrict in = (const uint16_t *)row;
                if (k == 0) for (int h = 0; h < hidden; h++) sum[h] = weight * of_bf16(in[h]);
                else for (int h = 0; h < hidden; h++) sum[h] += weight * of_bf16(in[h]);
            }
        }
        char *to = s->sums + t * s->row;
        if (is_f32) memcpy(to, sum, s->row);
        else for (int h = 0; h < hidden; h++) ((uint16_t *)to)[h] = to_bf16(sum[h]);
    }
}

static void dispatch(struct state *s) {
    exchange(s);
    if (!is_by_choice(&s->of)) gather(s);
    MPI_Alltoallv(s->sent, s->to, s->to_at, s->type, s->received, s->from, s->from_at, s->type, MPI_COMM_WORLD);
}

static void combine(struct state *s) {
    MPI_Alltoallv(s->received, s->from, s->from_at, s->type, s->back, s->to, s->to_at, s->type, MPI_COMM_WORLD);
    if (!is_by_choice(&s->of)) weighted_sum(s);
}

static void call(void *state) {
    struct state *s = state;
    if (s->of.part[0] != 'c') dispatch(s);
    if (s->of.part[0] != 'd') combine(s);
}

/* What is wrong with the results of a round whose experts do nothing, if anything is. */
static const char *wrong(struct state *s) {
    size_t choices = (size_t)s->of.tokens * s->of.top_k;
    if (memcmp(s->sent, s->back, choices * s->row)) return "what came back is not what was sent";
    if (is_by_choice(&s->of)) return NULL;
    for (int t = 0; t < s->of.tokens; t++) {
        float weight = 0;
        for (int k = 0; k < s->of.top_k; k++) weight += s->weights[t * s->of.top_k + k];
        for (int h = 0; h < s->of.hidden; h++) {
            size_t at = (size_t)t * s->of.hidden + h;
            int is_f32 = !strcmp(s->of.dtype, "f32");
            float x = is_f32 ? ((float *)s->x)[at] : of_bf16(((uint16_t *)s->x)[at]);
            float sum = is_f32 ? ((float *)s->sums)[at] : of_bf16(((uint16_t *)s->sums)[at]);
            float error = sum - weight * x;
            if (error * error > 1e-3f * (1 + x * x)) return "the sums are wrong";
        }
    }
    return NULL;
}

static void end(void *state) {
    struct state *s = state;
    void *all[] = {s->experts, s->weights, s->sum, s->to, s->from, s->to_at, s->from_at,
        s->next, s->place, s->x, s->sent, s->received, s->back, s->sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    if (s->type != MPI_DATATYPE_NULL) MPI_Type_free(&s->type);
    free(s);
}

const char *begin_moe(struct work *work, const char *request) {
    struct state *s = room(sizeof *s);
    *work = (struct work){call, end, s};
    s->type = MPI_DATATYPE_NULL;
    struct request *of = &s->of;
    int items = sscanf(request, "%15s %15s %7s %d %d %d %d %4095s", of->layout, of->part, of->dtype, &of->tokens,
        &of->hidden, &of->experts, &of->top_k, of->routes);
    if (items != 8) return "no request of mine";
    int is_f32 = !strcmp(of->dtype, "f32");
    if (!is_f32 && strcmp(of->dtype, "bf16")) return "only bf16 and f32";
    size_t choices = (size_t)of->tokens * of->top_k, all = choices * ranks;
    s->row = (size_t)of->hidden * (is_f32 ? 4 : 2);
    int *experts = room(all * sizeof *experts);
    s->weights = room(choices * sizeof *s->weights);
    FILE *file = fopen(of->routes, "rb");
    int read = file && fread(experts, sizeof *experts, all, file) == all
        && !fseek(file, (long)(choices * rank * sizeof *s->weights), SEEK_CUR)
        && fread(s->weights, sizeof *s->weights, choices, file) == choices;
    if (file) fclose(file);
    int *received = room(ranks * sizeof *received);
    for (size_t i = 0; read && i < all; i++) received[owner(experts[i], of->experts)]++;
    s->experts = room(choices * sizeof *s->experts);
    memcpy(s->experts, experts + choices * rank, choices * sizeof *experts);
    free(experts);
    MPI_Allreduce(MPI_IN_PLACE, &read, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    int rows = received[rank];
    free(received);
    if (!read) return "the routes cannot be read";
    MPI_Type_contiguous((int)s->row, MPI_BYTE, &s->type);
    MPI_Type_commit(&s->type);
    s->to = room(ranks * sizeof *s->to);
    s->from = room(ranks * sizeof *s->from);
    s->to_at = room(ranks * sizeof *s->to_at);
    s->from_at = room(ranks * sizeof *s->from_at);
    s->next = room(ranks * sizeof *s->next);
    s->place = room(choices * sizeof *s->place);
    s->sum = room(of->hidden * sizeof *s->sum);
    s->x = room(of->tokens * s->row);
    s->sent = room(choices * s->row);
    s->received = room(rows * s->row);
    s->back = room(choices * s->row);
    s->sums = room(of->tokens * s->row);
    uint64_t word = 1 + rank;
    for (size_t i = 0; i < (size_t)of->tokens * of->hidden; i++) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        float value = (float)(int32_t)(word >> 32) / (1 << 29);
        if (is_f32) ((float *)s->x)[i] = value;
        else ((uint16_t *)s->x)[i] = to_bf16(value);
    }
    exchange(s);
    gather(s);
    dispatch(s);
    combine(s);
    const char *found = wrong(s);
    int good = !found, mine = good;
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return good ? NULL : mine ? "another rank's results are wrong" : found;
}
