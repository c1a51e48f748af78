/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/lwbench/hist.h"

static unsigned bucket_of(uint64_t value)
{
	if (value < 2 * HIST_STEPS)
		return (unsigned)value;
	unsigned shift = 63u - (unsigned)__builtin_clzll(value) - HIST_STEPS_LOG2;
	return shift * HIST_STEPS + (unsigned)(value >> shift); /* value >> shift is HIST_STEPS .. 2 * HIST_STEPS - 1 */
}

/* The middle of a bucket. */
static uint64_t value_of(unsigned bucket)
{
	if (bucket < 2 * HIST_STEPS)
		return bucket;
	unsigned shift = bucket / HIST_STEPS - 1;
	uint64_t low = (uint64_t)(bucket % HIST_STEPS + HIST_STEPS) << shift;
	return low + (UINT64_C(1) << shift) / 2;
}

void hist_add(struct hist *hist, uint64_t value)
{
	hist->buckets[bucket_of(value)]++;
	hist->count++;
	if (value > hist->max)
		hist->max = value;
}

void hist_merge(struct hist *hist, const struct hist *from)
{
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		hist->buckets[i] += from->buckets[i];
	hist->count += from->count;
	if (from->max > hist->max)
		hist->max = from->max;
}

uint64_t hist_quantile(const struct hist *hist, double share)
{
	double wanted = share * (double)hist->count;
	uint64_t seen = 0;

	for (unsigned i = 0; i < HIST_BUCKETS && hist->count; i++) {
		seen += hist->buckets[i];
		if (hist->buckets[i] && (double)seen >= wanted)
			return value_of(i) < hist->max ? value_of(i) : hist->max;
	}
	return hist->max;
}
