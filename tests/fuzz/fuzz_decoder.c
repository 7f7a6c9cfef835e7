/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_decoder.c - arbitrary bytes to every decoder: in cuts that the input says, with an announced
 * size that it says. No more bytes come out than were announced, and all of them if it is accepted.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/coding/decoder.h"

#define OUT_MAX 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t out[OUT_MAX];
	struct decoder_opts o;
	struct decoding x = { .out = out };
	struct decoder *d;
	uint64_t cut, made, idle = 0;
	int e = 0;

	if (size < 4)
		return 0;
	o = (struct decoder_opts){ .how = (enum decode_how)(data[0] % 3),
				   .elem = (uint8_t)(1 + data[0] / 3 % DECODE_ELEM_MAX),
				   .bytes = data[1] | (uint64_t)data[2] << 8 };
	cut = 1 + data[3];
	data += 4;
	size -= 4;
	if (decoder_open(&o, &d, NULL))
		return 0;
	while (!e && idle < 2) {
		uint64_t had = x.in_len + x.out_len;

		if (!x.in_len && size) {
			x.in = data;
			x.in_len = size < cut ? size : cut;
			data += x.in_len;
			size -= x.in_len;
			idle = 0;
		}
		if (!x.out_len && (uint64_t)(x.out - out) < o.bytes) {
			x.out_len = o.bytes - (uint64_t)(x.out - out);
			x.out_len = x.out_len < cut ? x.out_len : cut;
			idle = 0;
		}
		e = decoder_take(d, &x, NULL);
		idle += x.in_len + x.out_len >= had;
	}
	made = (uint64_t)(x.out - out);
	assert(made <= o.bytes);
	if (!e && !size && !x.in_len && !decoder_end(d, NULL))
		assert(made == o.bytes);
	decoder_close(d);
	return 0;
}
