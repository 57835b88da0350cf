/* What the files of this program share: who this rank is, and what a request asks for. */
#ifndef RANKS_H
#define RANKS_H

#include <stddef.h>
#include <stdint.h>

enum { LINE = 4096 };

extern int rank, ranks;

/* What is measured: a call, and its state. */
struct work {
    void (*call)(void *state);
    void (*end)(void *state);
    void *state;
};

/* Zeroed memory; ends all ranks where there is none. */
void *room(size_t bytes);

/* Each reads its request and makes the work, whose results it has found right. The answer to what cannot be
 * done, the same on every rank, or NULL. */
const char *begin_collective(struct work *work, const char *request);
const char *begin_moe(struct work *work, const char *request);

static inline float of_bf16(uint16_t bits) {
    union { uint32_t bits; float value; } x = {(uint32_t)bits << 16};
    return x.value;
}

static inline uint16_t to_bf16(float value) {
    union { float value; uint32_t bits; } x = {value};
    return (uint16_t)((x.bits + 0x7fff + ((x.bits >> 16) & 1)) >> 16);
}

#endif
